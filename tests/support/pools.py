"""Real pools for tests: closed whatever the test does, watched from outside."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mpsched
from tests.support import crash_calls, leaks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_S = 60.0
"""Only a hang takes so long."""


@contextmanager
def pool(
    workers: int = 2, method: str = "forkserver", **options: Any
) -> Iterator[mpsched.WorkStealingExecutor]:
    """A pool that has to end by itself when the block is left, and is killed if the block fails."""
    ex = mpsched.WorkStealingExecutor(workers, method, **options)
    try:
        yield ex
    except BaseException:
        ex.close(timeout=0, cancel_pending=True, kill_after=0)
        raise
    report = ex.close(timeout=DEADLINE_S, kill_after=0)
    assert not report.killed, f"the pool did not end by itself: {report}"
    assert ex.state in {"terminated", "failed"}


def wait_until(condition: Callable[[], Any], what: str, timeout: float = DEADLINE_S) -> Any:
    """Return the first true value of `condition`.

    Raises:
        AssertionError: It has none within `timeout` seconds; the message names `what`.
    """
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, f"not within {timeout} s: {what}"
        time.sleep(0.002)
    return value


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to one worker; False if it has ended.

    Never to another process that has its number by now: workers share this one's process group.
    """
    assert pid > 1, f"not the number of a worker: {pid}"
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if os.getpgid(pid) != os.getpgrp():
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def pids(ex: mpsched.WorkStealingExecutor) -> list[int]:
    """Return the process of each worker; waits for those of a pool that was just made.

    Those of spares follow, 0 for one that has left.
    """
    width = ex._pool.width

    def found() -> list[int] | None:
        numbers = [worker.pid for worker in ex.stats().workers]
        return numbers if all(numbers[:width]) or ex.state != "accepting" else None

    return wait_until(found, "a process of each worker")  # type: ignore[no-any-return]


def alive(pid: int) -> bool:
    """Tell whether a process runs (one that waits to be reaped does not)."""
    return pid in leaks.live_pids()


def template_of(ex: mpsched.WorkStealingExecutor) -> int:
    """Return the process of the pool's template."""
    launcher: Any = ex._pool.supervisor._launcher  # type: ignore[union-attr]
    return int(launcher.template_pid)


def holders(folder: Path) -> dict[str, int]:
    """Return name -> pid of the `crash_calls.hold` tasks that have started."""
    return {path.stem: int(path.read_text()) for path in folder.glob("*.started")}


def wait_for_holders(folder: Path, *names: str) -> dict[str, int]:
    """Wait until these tasks have started; return name -> pid of all that have."""
    return wait_until(  # type: ignore[no-any-return]
        lambda: (found := holders(folder)).keys() >= {*names} and found, f"start of {names}"
    )


def release(folder: Path, *names: str) -> None:
    """Let `crash_calls.hold` tasks go on."""
    for name in names:
        (folder / f"{name}.go").touch()


def assert_full_width(ex: mpsched.WorkStealingExecutor, folder: Path) -> None:
    """Assert that all workers of the pool run tasks at the same time."""
    width = len(ex.stats().workers)
    meeting = folder / f"meeting-{time.monotonic_ns()}"
    meeting.mkdir()
    futures = [ex.submit(crash_calls.meet, str(meeting), width) for _ in range(width)]
    indices = {future.result(DEADLINE_S) for future in futures}
    assert indices == set(range(width))
