"""Starting, watching and ending worker processes: real processes, real signals, each start method."""

from __future__ import annotations

import atexit
import ctypes
import errno
import json
import logging
import multiprocessing
import multiprocessing.spawn
import os
import resource
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mpsched._pool import descriptors, launch
from mpsched._pool.launch import Exited, NotStarted, Started, TemplateDied
from mpsched._worker import boot, control, environment, lifeline
from tests.support.launching import (
    DEADLINE_S,
    Launched,
    Watched,
    children_of,
    open_descriptors,
    wait_readable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 2.0  # guarantee 9

needs_template = pytest.mark.parametrize("method", ["forkserver", "fork"])


@pytest.fixture(autouse=True)
def no_thread_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test program's own libraries must not decide how many threads a worker's have."""
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        monkeypatch.delenv(f"{name}_NUM_THREADS", raising=False)


# --- start and end --------------------------------------------------------------------------------


def test_start_runs_the_entry_in_a_process_of_its_own(start_method: str) -> None:
    """The entry gets index and incarnation, and `Started` names its process."""
    with Launched(start_method, "hello") as launched:
        (event,) = launched.start((3, 7))
        assert (event.index, event.incarnation) == (3, 7)
        assert launched.lines(1) == [[3, 7, event.pid]]
        assert event.pid != os.getpid()


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("return", 0),
        ("raise", 1),
        ("exit 3", 3),
        ("exit-text", 1),
        ("_exit 7", 7),
        (f"signal {signal.SIGKILL:d}", -signal.SIGKILL),
        (f"signal {signal.SIGQUIT:d}", -signal.SIGQUIT),
        (f"signal {signal.SIGTERM:d}", -signal.SIGTERM),
    ],
)
def test_exited_has_the_exact_status(start_method: str, how: str, status: int) -> None:
    """An exit code comes as it is, a signal as its negative number."""
    with Launched(start_method, "end", config=how.encode()) as launched:
        (started,) = launched.start((0, 0))
        (event,) = launched.wait(Exited)
        assert event == Exited(0, 0, started.pid, status)


def test_replacement_starts_under_the_same_index(start_method: str) -> None:
    """After a worker was killed, its index starts again as another incarnation."""
    with Launched(start_method, "idle") as launched:
        (first,) = launched.start((0, 0))
        assert launched.lines(1) == [[0, 0, first.pid]]
        assert launched.launcher.kill(first.pid, signal.SIGKILL)
        assert launched.wait(Exited) == [Exited(0, 0, first.pid, -signal.SIGKILL)]
        (second,) = launched.start((0, 1))
        assert launched.lines(1) == [[0, 1, second.pid]]


def test_kill_hits_the_named_worker_only(start_method: str) -> None:
    """Other workers live on; an ended or unknown process is not signalled."""
    with Launched(start_method, "idle") as launched:
        one, two = launched.start((0, 0), (1, 0))
        assert launched.launcher.kill(one.pid, signal.SIGTERM)
        assert launched.wait(Exited) == [Exited(one.index, 0, one.pid, -signal.SIGTERM)]
        assert not launched.launcher.kill(one.pid, signal.SIGKILL)
        assert not launched.launcher.kill(os.getpid(), signal.SIGKILL)
        others = Watched(two.pid)
        assert others.alive() == [two.pid]
        others.close()


def test_two_hundred_workers_in_a_row_leave_no_zombie(start_method: str) -> None:
    """Each ended worker is reaped before its `Exited` comes."""
    count = 200 if start_method != "spawn" else 10
    with Launched(start_method, "hello") as launched:
        for number in range(count):
            launched.launcher.start(0, number)
            launched.wait(Exited, number + 1)
        parent = getattr(launched.launcher, "template_pid", os.getpid())
        assert children_of(parent) == []
        assert {e.status for e in launched.seen if isinstance(e, Exited)} == {0}


@needs_template
def test_many_requests_without_reading_do_not_block(method: str) -> None:
    """Answers that nobody reads fill the socket; the template goes on taking requests."""
    with Launched(method, "hello") as launched:
        for number in range(400):
            launched.launcher.start(number, 0)
        launched.wait(Exited, 400)
        assert sorted(e.index for e in launched.wait(Started, 400)) == [*range(400)]
        assert sorted(index for index, _, _ in launched.lines(400)) == [*range(400)]


def test_stop_waits_for_workers_that_leave(start_method: str) -> None:
    """Within the time, nobody is killed: the statuses are the workers' own."""
    launched = Launched(start_method, "end", config=b"exit 5")
    for index in range(3):
        launched.launcher.start(index, 0)
    launched.wait(Started, 3)
    launched.seen += launched.launcher.stop(DEADLINE_S)
    assert {(e.index, e.status) for e in launched.wait(Exited, 3)} == {(0, 5), (1, 5), (2, 5)}
    launched.close()


def test_stop_kills_what_is_left_after_the_time(start_method: str) -> None:
    """Workers in C code, asleep or stopped end with the launcher, each with its status."""
    launched = Launched(start_method, "busy")
    launched.start(*((index, 0) for index in range(4)))
    launched.lines(4)
    launched.seen += launched.launcher.stop(0.05)
    assert [e.status for e in launched.wait(Exited, 4)] == [-signal.SIGKILL] * 4
    assert launched.launcher.events() == []
    assert launched.launcher.fileno() == -1
    launched.close()


def test_stop_ends_a_worker_that_was_just_asked_for(start_method: str) -> None:
    """A request on its way does not leave a process behind (see the leak check)."""
    launched = Launched(start_method, "idle")
    launched.launcher.start(0, 0)
    launched.close()


# --- the death of others --------------------------------------------------------------------------


@contextmanager
def parent_program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Run tests/support/launch_parent.py in a session of its own; yield it and its first line."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.launch_parent", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert wait_readable(program.stdout.fileno(), DEADLINE_S)
            yield program, json.loads(program.stdout.readline())
        finally:
            program.kill()


def all_pids(told: dict[str, object]) -> list[int]:
    """Return the workers and, where there is one, the template."""
    assert isinstance(told["workers"], list)
    assert isinstance(told["template"], int)
    return [*told["workers"], *([told["template"]] if told["template"] else [])]


@pytest.mark.parametrize("entry", ["idle", "busy"])
def test_workers_end_when_the_parent_is_killed(start_method: str, entry: str) -> None:
    """Idle, asleep, busy in C or Python code, or stopped: nothing is left within 2 s."""
    with parent_program(start_method, entry, "4") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            assert len(watched.alive()) == len(all_pids(told))
            program.kill()
            assert watched.alive_after(GONE_WITHIN_S) == []
        finally:
            watched.close()


@pytest.mark.parametrize("stopped", [False, True])
@needs_template
def test_workers_end_when_parent_and_template_are_killed(method: str, stopped: bool) -> None:
    """Together, or the template stopped so that it can do nothing about it."""
    with parent_program(method, "busy", "4") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            assert isinstance(told["template"], int)
            os.kill(told["template"], signal.SIGSTOP if stopped else signal.SIGKILL)
            program.kill()
            assert watched.alive_after(GONE_WITHIN_S) == []
        finally:
            watched.close()


@needs_template
def test_template_that_imports_ends_with_the_parent(method: str) -> None:
    """A preloaded module that takes long does not outlive the parent."""
    with parent_program(method, "idle", "0", "importing") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            program.kill()
            assert watched.alive_after(GONE_WITHIN_S) == []
        finally:
            watched.close()


def test_workers_end_with_the_parent_though_a_fork_of_it_lives(start_method: str) -> None:
    """A forked child of the parent holds nothing that keeps workers alive."""
    with parent_program(start_method, "busy", "2", "forked") as (program, told):
        assert isinstance(told["child"], int)
        watched, child = Watched(*all_pids(told)), Watched(told["child"])
        try:
            program.kill()
            assert watched.alive_after(GONE_WITHIN_S) == []
            assert child.alive() == [told["child"]]
        finally:
            child.close()
            watched.close()


@needs_template
def test_template_death_ends_all_workers_and_is_one_event(method: str) -> None:
    """When `TemplateDied` has come no worker runs any more, and a new template serves."""
    with Launched(method, "busy") as launched:
        started = launched.start(*((index, 0) for index in range(4)))
        launched.lines(4)
        watched = Watched(*(e.pid for e in started))
        try:
            os.kill(launched.launcher.template_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]
            assert watched.alive() == []
        finally:
            watched.close()
        assert launched.launcher.fileno() == -1
        assert not launched.launcher.kill(started[0].pid, signal.SIGKILL)
        assert not any(isinstance(e, Exited) for e in launched.seen)
        launched.launcher.restart()
        (again,) = launched.start((2, 1))
        assert launched.lines(1) == [[2, 1, again.pid]]


@needs_template
def test_template_death_with_open_requests_loses_no_event(method: str) -> None:
    """Requests that it has not read are void: `TemplateDied` comes, after what it said before."""
    with Launched(method, "idle") as launched:
        launched.start((0, 0))
        template = launched.launcher.template_pid  # type: ignore[attr-defined]
        os.kill(template, signal.SIGSTOP)
        for index in range(1, 20):
            launched.launcher.start(index, 0)
        os.kill(template, signal.SIGKILL)
        assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]
        launched.launcher.restart()
        launched.start((5, 1))


@needs_template
def test_start_after_the_template_died_is_answered_by_its_death(method: str) -> None:
    """`start` does not raise when it meets a dead template that `events` has not reported."""
    with Launched(method, "idle") as launched:
        template = Watched(launched.launcher.template_pid)  # type: ignore[attr-defined]
        template.close()  # kills it
        launched.launcher.start(0, 0)
        assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]


@needs_template
def test_orphans_that_this_process_adopts_are_reaped(method: str) -> None:
    """Number 1 of a container adopts the workers of a dead template: none stays a zombie."""
    prctl = ctypes.CDLL(None).prctl
    set_child_subreaper = 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        with Launched(method, "idle") as launched:
            launched.start(*((index, 0) for index in range(3)))
            os.kill(launched.launcher.template_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            launched.wait(TemplateDied)
            assert children_of(os.getpid()) == []
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)


@needs_template
def test_status_taken_by_other_code_is_none(method: str) -> None:
    """`os.wait()` in the user's program may reap the template; its death is still seen."""
    with Launched(method, "idle") as launched:
        template = launched.launcher.template_pid  # type: ignore[attr-defined]
        os.kill(template, signal.SIGKILL)
        os.waitpid(template, 0)
        assert launched.wait(TemplateDied) == [TemplateDied(None, None)]


def test_ignored_sigchld_in_the_parent_loses_no_worker(start_method: str) -> None:
    """With SIGCHLD ignored the kernel reaps the parent's children; ends are still reported."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Launched(start_method, "end", config=b"exit 5") as launched:
            launched.launcher.start(0, 0)
            (event,) = launched.wait(Exited)
            assert event.status == (None if start_method == "spawn" else 5)
    finally:
        signal.signal(signal.SIGCHLD, before)


# --- signals --------------------------------------------------------------------------------------


def test_interrupt_of_the_group_ends_neither_template_nor_workers(start_method: str) -> None:
    """Ctrl-C reaches all processes of the group: only the parent decides what it means."""
    with parent_program(start_method, "idle", "2", "interrupted") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            os.killpg(program.pid, signal.SIGINT)
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("wake\n")
            program.stdin.flush()
            assert wait_readable(program.stdout.fileno(), DEADLINE_S)
            assert json.loads(program.stdout.readline()) == [["woken"], ["woken"]]
            assert len(watched.alive()) == len(all_pids(told))
            program.stdin.close()
            assert watched.alive_after(DEADLINE_S) == []
            assert program.wait(DEADLINE_S) == 0
        finally:
            watched.close()


def test_program_started_by_a_task_has_normal_signals(start_method: str) -> None:
    """SIGINT is neither blocked nor ignored there, so that Ctrl-C ends it."""
    with Launched(start_method, "signals_of_a_program") as launched:
        launched.launcher.start(0, 0)
        ((blocked, ignored),) = launched.lines(1)
        assert blocked == 0
        assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1))


def test_handlers_of_the_parent_are_not_in_the_workers(start_method: str) -> None:
    """A Python handler for SIGTERM in the parent must not keep workers alive under fork."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    try:
        with Launched(start_method, "idle") as launched:
            (started,) = launched.start((0, 0))
            launched.lines(1)
            launched.launcher.kill(started.pid, signal.SIGTERM)
            assert launched.wait(Exited) == [Exited(0, 0, started.pid, -signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what a worker takes over ---------------------------------------------------------------------


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


# --- what can go wrong ----------------------------------------------------------------------------


@needs_template
@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("tests.support.no_such_module", "named in preload="),
        ("tests.support.preload_raises", "on purpose"),
        ("tests.support.preload_thread", "leaves 1 thread(s) running"),
    ],
)
def test_failed_preload_names_the_module(method: str, module: str, message: str) -> None:
    """The template says why it ends; a module that starts a thread is refused."""
    with Launched(method, "idle", preload=("json", module)) as launched:
        launched.launcher.start(0, 0)
        (event,) = launched.wait(TemplateDied)
        assert event.status == 1
        assert event.reason is not None
        assert module in event.reason
        assert message in event.reason


def test_failed_preload_of_a_spawned_worker_is_its_exit() -> None:
    """Where each worker imports by itself, its `Exited` has the reason."""
    with Launched("spawn", "idle", preload=("tests.support.no_such_module",)) as launched:
        launched.launcher.start(0, 4)
        (event,) = launched.wait(Exited)
        assert (event.index, event.incarnation, event.status) == (0, 4, boot.BOOT_FAILED)
        assert event.reason is not None
        assert "named in preload=" in event.reason


@needs_template
def test_fork_that_fails_is_not_started(method: str) -> None:
    """The event has the system's error, and the template goes on serving."""
    with Launched(method, "idle", preload=("tests.support.preload_no_fork",)) as launched:
        launched.launcher.start(0, 3)
        (event,) = launched.wait(NotStarted)
        assert (event.index, event.incarnation, event.error.errno) == (0, 3, errno.EAGAIN)
        launched.start((0, 4))


def test_interpreter_that_is_missing_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """spawn: the event has the system's error; forkserver: construction raises it."""
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", "/nowhere/python")
    with Launched("spawn", "idle") as launched:
        launched.launcher.start(0, 0)
        (event,) = launched.wait(NotStarted)
        assert isinstance(event.error, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        Launched("forkserver", "idle")


@pytest.mark.parametrize(("attribute", "value"), [("executable", ""), ("frozen", True)])
def test_program_that_is_no_interpreter_is_refused(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object
) -> None:
    """A frozen program must not run itself again; multiprocessing.set_executable is heeded."""
    python = sys.executable
    monkeypatch.setattr(sys, attribute, value, raising=False)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", sys.executable)
    with pytest.raises(OSError, match=r"multiprocessing\.set_executable"):
        Launched("forkserver", "idle")
    # Another name of the same interpreter than the program's own.
    multiprocessing.set_executable(os.path.join(os.path.dirname(python), ".", "python3"))
    with Launched("forkserver", "hello") as launched:
        launched.start((0, 0))


@contextmanager
def descriptor_limit(free: int) -> Iterator[None]:
    """Let this process open `free` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_descriptors())) + 32, hard))
        while True:
            try:
                taken.append(os.dup(probe))
            except OSError:
                break
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in (probe, *taken):
            os.close(fd)


@pytest.mark.parametrize("free", range(8))
def test_too_few_descriptors_is_an_error_at_construction(start_method: str, free: int) -> None:
    """It raises OSError and leaves nothing, however far it came; see the leak check."""
    spec = boot.snapshot(entry="tests.support.entries:idle")
    made: list[launch.Launcher] = []
    failures: list[int | None] = []
    with descriptor_limit(free):
        try:
            made.append(launch.make(start_method, spec, []))
        except OSError as error:
            failures.append(error.errno)
    for launcher in made:
        launcher.close()
    assert failures == [errno.EMFILE] or (made and free >= 4)


def test_required_descriptors_are_asked_for_with_a_clear_message() -> None:
    """The message has the number, the limit and the remedy; nothing stays open."""
    with descriptor_limit(5):
        descriptors.require(5)
        with pytest.raises(OSError, match=r"opens 9 descriptors, and only 5 are left.*ulimit"):
            descriptors.require(9)
        descriptors.require(5)


@needs_template
def test_worker_without_room_for_its_pidfd_can_be_killed(method: str) -> None:
    """The kernel drops a descriptor that has no room; the template kills on request."""
    with Launched(method, "idle") as launched:
        launched.start((0, 0))
        with descriptor_limit(0):
            (started,) = launched.start((1, 0))
            assert started.pidfd == -1
            assert launched.launcher.kill(started.pid, signal.SIGKILL)
            assert launched.wait(Exited) == [Exited(1, 0, started.pid, -signal.SIGKILL)]


def test_spawn_without_descriptors_is_not_started() -> None:
    """No process is left when its pidfd cannot be opened."""
    with Launched("spawn", "idle") as launched, descriptor_limit(0):
        launched.launcher.start(0, 0)
        (event,) = launched.wait(NotStarted)
        assert event.error.errno == errno.EMFILE


def test_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    """A template that starts after the directory was removed says so."""
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    spec = boot.snapshot(entry="tests.support.entries:idle")
    os.chdir(tmp_path)
    gone.rmdir()
    launcher = launch.make("forkserver", spec, [])
    try:
        events: list[launch.Event] = []
        while not events:
            assert wait_readable(launcher.fileno(), DEADLINE_S)
            events = launcher.events()
        (died,) = events
        assert isinstance(died, TemplateDied)
        assert died.reason is not None
        assert str(gone) in died.reason
    finally:
        launcher.close()


def test_unknown_method_and_standard_descriptors_are_refused() -> None:
    """ValueError names what there is, or the descriptors."""
    spec = boot.snapshot()
    with pytest.raises(ValueError, match="forkserver, spawn, fork, not 'threads'"):
        launch.make("threads", spec, [])
    with pytest.raises(ValueError, match=r"descriptors \[1\]"):
        launch.make("spawn", spec, [1, 5])
    with pytest.raises(TypeError, match="not 'numpy'"):
        boot.snapshot(preload="numpy")


def test_closed_standard_descriptors_are_filled(start_method: str) -> None:
    """A program without standard input, output and error still gets working processes."""
    code = (
        "import os; report = os.dup(1); os.closerange(0, 3)\n"
        "from mpsched._pool import descriptors; descriptors.fill_standard()\n"
        "from tests.support.launching import Launched, launch\n"
        f"with Launched({start_method!r}, 'hello') as launched:\n"
        "    launched.launcher.start(0, 0); launched.lines(1)\n"
        "    os.write(report, str(launched.wait(launch.Exited)[0].status).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("0", "", 0)


# --- the parts ------------------------------------------------------------------------------------


def test_lifeline_of_a_dead_holder_kills_at_once() -> None:
    """The holder may die before the other process has tied itself."""
    end, held = lifeline.create()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        os.read(end, 1)  # the holder has ended
        lifeline.tie(end)
        os._exit(0)
    os.close(end)
    os.close(held)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_record_of_a_killed_sender_is_read_before_the_end() -> None:
    """A connection reset hides nothing that was sent before."""
    ours, theirs = control.pair()
    with ours:
        control.send(ours, control.Record(control.Kind.START, 1, 2))
        sent = control.Record(control.Kind.EXITED, 3, 4, 5, -6, "why \udcff")
        control.send(theirs, sent)
        theirs.close()  # with the START unread: the kernel resets the connection
        assert control.receive(ours) == sent._replace(text="why ?")
        assert control.receive(ours) is None
