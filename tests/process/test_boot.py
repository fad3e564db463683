"""What a worker takes over from the parent, and what is its own."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mpsched._pool.launch import Exited
from mpsched._worker import boot, environment
from tests.support.launching import (
    DEADLINE_S,
    ROOT,
    Launched,
    open_descriptors,
)
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_thread_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test program's own libraries must not decide how many threads a worker's have."""
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        monkeypatch.delenv(f"{name}_NUM_THREADS", raising=False)


def test_worker_has_the_parents_surroundings(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directory, path, variables, arguments, limits, warnings, log level: as when it was made."""
    inside = tmp_path / "inside \udcff"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setenv("MPSCHED_PROBE", "set before")
    monkeypatch.setattr(sys, "argv", ["program", "an argument"])
    monkeypatch.setattr(sys, "path", [*sys.path, "", "/nowhere \udcfe"])
    recursion, level = sys.getrecursionlimit(), logging.getLogger().level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="prob.*", category=UserWarning)
        sys.setrecursionlimit(1234)
        logging.getLogger().setLevel(17)
        try:
            launched = Launched(start_method, "surroundings")
        finally:
            sys.setrecursionlimit(recursion)
            logging.getLogger().setLevel(level)
    with launched:
        monkeypatch.setenv("MPSCHED_PROBE", "set after")
        monkeypatch.chdir(tmp_path)
        launched.launcher.start(0, 0)
        ((found,),) = launched.lines(1)
        assert found["cwd"] == str(inside)
        assert found["path"] == [*sys.path[:-2], str(inside), "/nowhere \udcfe"]
        assert found["environ"]["MPSCHED_PROBE"] == "set before"
        assert found["argv"] == ["program", "an argument"]
        assert found["recursion"] == 1234
        assert found["log"] == 17
        assert found["raised"] == ["UserWarning"]
        assert found["stdin"] == ["", ""]
        assert found["main"] == []
        assert found["optimize"] == sys.flags.optimize


def test_warning_filter_holds_for_a_category_imported_later() -> None:
    """A filter is taken over by the category's name, without importing its module."""
    category = type("Deprecated", (UserWarning,), {"__module__": "package_not_imported"})
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore", category)
        spec = boot.snapshot()
    state = sys.path[:], sys.argv[:], os.getcwd(), sys.warnoptions[:], dict(os.environ)
    with warnings.catch_warnings(record=True) as seen:
        environment.apply(spec)
        warnings.warn("ignored by name", type("Later", (category,), {}), stacklevel=1)
        warnings.warn("another category", UserWarning, stacklevel=1)
    assert [str(w.message) for w in seen] == ["another category"]
    sys.path[:], sys.argv[:], _, sys.warnoptions[:], environ = state
    os.environ.clear()
    os.environ.update(environ)


def test_numeric_libraries_get_one_thread_each(start_method: str) -> None:
    """The variables of BLAS and OpenMP are 1 where the user has not set them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launched = Launched(start_method, "surroundings")
    with launched:
        launched.launcher.start(0, 0)
        ((found,),) = launched.lines(1)
        for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
            assert found["environ"][f"{name}_NUM_THREADS"] == "1"


def test_thread_variables_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS speaks for all libraries: no other variable contradicts it."""
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    environ = boot.snapshot().environ
    assert (environ["MKL_NUM_THREADS"], environ["OPENBLAS_NUM_THREADS"]) == ("3", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    environ = boot.snapshot().environ
    assert environ["OMP_NUM_THREADS"] == "4"
    assert "OPENBLAS_NUM_THREADS" not in environ


@pytest.mark.parametrize("preload", [(), ("numpy", "random")])
def test_random_seeds_differ(start_method: str, preload: tuple[str, ...]) -> None:
    """`random` and NumPy give other numbers in each worker, also when their state was forked."""
    with Launched(start_method, "seeds", preload=preload) as launched:
        for index in range(3):
            launched.launcher.start(index, 0)
        values = [value for line in launched.lines(3) for value in line]
        assert len({*values, float(np.random.random())}) == 7


def test_worker_has_no_other_descriptors(start_method: str) -> None:
    """Only 0, 1, 2, those passed, and its lifeline; not the template's socket."""
    mine = socket.socket()
    mine.set_inheritable(True)
    with mine, Launched(start_method, "descriptors") as launched:
        inherited = open_descriptors()
        launched.launcher.start(0, 0)
        ((found,),) = launched.lines(1)
        if start_method == "fork":  # copies of what the program itself has open
            found = {
                fd: to
                for fd, to in found.items()
                if inherited.get(fd) != to or fd == str(launched.write)
            }
        passed = found.pop(str(launched.write))
        assert passed == os.readlink(f"/proc/self/fd/{launched.write}")
        rest = {fd: to for fd, to in found.items() if int(fd) > 2}
        assert len(rest) == 1, found
        assert all(to.startswith("pipe:") for to in rest.values()), found


def test_exit_functions_are_each_processs_own(start_method: str, tmp_path: Path) -> None:
    """A worker runs what was registered in it, and nothing that the parent has registered."""
    mark = tmp_path / "ran"
    atexit.register(mark.touch)
    try:
        with Launched(start_method, "at_exit") as launched:
            launched.launcher.start(0, 0)
            assert launched.lines(1) == [["registered in the worker"]]
            launched.wait(Exited)
            assert launched.silent()
            assert not mark.exists()
    finally:
        atexit.unregister(mark.touch)


def test_output_is_flushed_once(start_method: str) -> None:
    """What a worker has printed is written at its end; what the parent had buffered is not."""
    code = (
        "import sys; from tests.support.launching import Launched, launch\n"
        "print('of the parent', end=';')\n"
        f"with Launched({start_method!r}, 'end') as launched:\n"
        "    launched.launcher.start(0, 0); launched.launcher.start(1, 0)\n"
        "    launched.wait(launch.Exited, 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.count("of the parent;") == 1
    assert done.stdout.count("printed and not flushed") == 2


def test_logging_threads_of_the_parent_block_no_worker(start_method: str) -> None:
    """Threads that log while a template is forked leave no held lock of logging in the workers."""
    count = 20 if start_method == "fork" else 2
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.launch_logging", start_method, str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S * 2,
    )
    assert done.stdout == f"{count} workers have logged\n"


def test_program_without_main_guard_is_not_run_again(start_method: str, tmp_path: Path) -> None:
    """The user's script is not imported by its workers."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('run')\n"
        "from tests.support.launching import Launched, launch\n"
        f"with Launched({start_method!r}, 'surroundings') as launched:\n"
        "    launched.launcher.start(0, 0)\n"
        "    print(launched.lines(1)[0][0]['main'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "run\n[]\n"


@pytest.mark.parametrize(
    ("stream", "style", "text"),
    [
        ("stderr", "%", "%(levelname)s %(process)d %(message)s"),
        ("stdout", "{", "{levelname} {process} {message}"),
    ],
)
def test_logging_of_a_worker_shows_what_that_of_its_program_would(
    start_method: str, stream: str, style: str, text: str
) -> None:
    """`basicConfig` counts for workers: level, stream, format; each record is written once."""
    result = run_script(
        f"""
        import logging, os, sys
        import mpsched

        logging.basicConfig(level=logging.INFO, stream=sys.{stream}, style="{style}", format="{text}")

        def task(number):
            logging.debug("too little")
            logging.getLogger("module").info("number %d", number)
            return os.getpid()

        with mpsched.WorkStealingExecutor(1, mp_context="{start_method}") as ex:
            pid = ex.submit(task, 7).result()
        sys.__stdout__.write(f"worker {{pid}}\\n")
        """
    )
    assert result.rc == 0, result.err
    *said, last = (result.err + result.out).splitlines()
    assert said == [f"INFO {last.split()[1]} number 7"]


def test_logging_handlers_that_a_worker_cannot_copy_stay_the_programs(tmp_path: Path) -> None:
    """Files, filters and classes of the program's own are not doubled."""
    root = logging.getLogger()
    file = logging.FileHandler(tmp_path / "log")
    filtered = logging.StreamHandler(sys.stderr)
    filtered.addFilter(lambda record: False)
    shaped = logging.StreamHandler(sys.stderr)
    shaped.setFormatter(type("Own", (logging.Formatter,), {})())
    derived = type("Own", (logging.StreamHandler,), {})(sys.stderr)
    plain = logging.StreamHandler(sys.stderr)
    plain.setLevel(33)
    added = [file, filtered, shaped, derived, plain]
    before = boot.snapshot().consoles
    for handler in added:
        root.addHandler(handler)
    try:
        consoles = boot.snapshot().consoles
    finally:
        for handler in added:
            root.removeHandler(handler)
        file.close()
    assert consoles[len(before) :] == (environment.Console(False, 33, None, None, "%"),)
