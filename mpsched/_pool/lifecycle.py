"""How a pool ends: accepting -> draining -> terminated, or failed. See README.md, "Lifecycle"."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from mpsched._pool import core, guards
from mpsched._pool.report import CloseReport
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task


GRACE_S: Final = 0.5
"""Seconds that running tasks have to stop after Ctrl-C, before their workers are ended."""


def state(pool: Pool) -> str:
    """Return "accepting", "draining", "terminated" or "failed"."""
    supervisor = pool.supervisor
    if supervisor.failed is not None:
        return "failed"
    if supervisor.done.is_set():
        return "terminated"
    return "draining" if supervisor.draining or pool.refusal is not None else "accepting"


def begin(pool: Pool) -> None:
    """Refuse new roots; the pool ends by itself when nothing is open. Any thread, any time."""
    if pool.forked:
        return
    pool.refuse(core.closed)
    pool.supervisor.draining = True
    with pool.room:
        pool.room.notify_all()
    ring(pool)


def ring(pool: Pool) -> None:
    """Wake the supervisor, unless its bell is gone with the pool."""
    if not pool.supervisor.done.is_set():
        with contextlib.suppress(OSError):  # it ended between the look and the ring
            pool.ring()


def wait(pool: Pool, timeout: float | None) -> bool:
    """Wait until nothing of the pool is left; True if so. Never waits in the pool's own thread."""
    if threading.current_thread() is pool.supervisor.thread:
        return False
    if pool.forked:
        return True
    done = pool.supervisor.done.wait(timeout)
    if done:
        pool.supervisor.thread.join()
    return done


def shutdown(pool: Pool, *, wait_for: bool, cancel_futures: bool) -> None:
    """What `Executor.shutdown` does."""
    if pool.forked:
        return
    begin(pool)
    if cancel_futures:
        pool.revoker.cancel_waiting()
    ring(pool)
    if wait_for:
        wait(pool, None)


def running(pool: Pool) -> list[Task]:
    """Return the tasks that run now."""
    found = []
    for task in list(pool.dispatcher.inflight.values()):
        handle = task.handle
        if handle >= 0 and (pool.table.state[handle] & 255) == st.RUNNING:
            found.append(task)
    return found


def close(
    pool: Pool, timeout: float | None, *, cancel_pending: bool, kill_after: float | None
) -> CloseReport:
    """Drain for `timeout` seconds, then cancel and signal, then kill; see the executor."""
    begun = time.monotonic()
    if pool.forked or threading.current_thread() is pool.supervisor.thread:
        begin(pool)
        return CloseReport(0, 0, (), (), 0.0)
    open_before = _open(pool)
    begin(pool)
    cancelled = pool.revoker.cancel_waiting() if cancel_pending else 0
    killed: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    if not wait(pool, timeout):
        cancelled += pool.revoker.cancel_waiting()
        for task in running(pool):
            if task.handle >= 0:
                pool.table.cancel[task.handle] = 1
        if kill_after is None:
            if not wait(pool, 0.05):
                still = tuple(task.describe() for task in running(pool))
        elif not wait(pool, kill_after):
            killed = tuple(task.describe() for task in running(pool))
            pool.supervisor.kill_now = True
            ring(pool)
            wait(pool, None)
    finished = max(0, open_before - cancelled - len(killed) - len(still))
    return CloseReport(finished, cancelled, killed, still, time.monotonic() - begun)


def _open(pool: Pool) -> int:
    return pool.pending()


def _at_exit() -> None:
    """The interpreter ends: what was accepted is still done, as in the standard library.

    Unless Ctrl-C has ended the program, or does so now: then as if it had struck in a `with`.
    """
    for pool in guards.live_pools():
        if ended_by_ctrl_c():
            close(pool, 0.0, cancel_pending=True, kill_after=GRACE_S)
            continue
        try:
            shutdown(pool, wait_for=True, cancel_futures=False)
        except KeyboardInterrupt:
            close(pool, 0.0, cancel_pending=True, kill_after=GRACE_S)
            raise


def ended_by_ctrl_c() -> bool:
    """Whether KeyboardInterrupt has left the main module, which prints it and then exits."""
    if hasattr(sys, "ps1"):
        return False  # a prompt, where the last error may be an old one
    last = getattr(sys, "last_type", None)
    return isinstance(last, type) and issubclass(last, KeyboardInterrupt)


# Before the interpreter joins its threads and stops starting callbacks; concurrent.futures does it
# the same way. The public `atexit` comes later, when a future's callback may not be able to run.
_register = getattr(threading, "_register_atexit", atexit.register)
_register(_at_exit)
