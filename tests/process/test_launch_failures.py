"""What cannot be started says why, and leaves nothing."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.spawn
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mpsched._pool import descriptors, launch
from mpsched._pool.launch import Exited, NotStarted, TemplateDied
from mpsched._worker import boot
from tests.support.launching import (
    DEADLINE_S,
    ROOT,
    Launched,
    open_descriptors,
    wait_readable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_template = pytest.mark.parametrize("method", ["forkserver", "fork"])


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
