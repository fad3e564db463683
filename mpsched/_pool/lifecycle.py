"""How a pool ends: accepting -> draining -> terminated, or failed. See README.md, "Lifecycle"."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpsched._pool import core, guards
from mpsched._pool.report import NOTHING, CloseReport
from mpsched._pool.task import Task

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.future import Future
    from mpsched._pool.mapping import MapRun

GRACE_S: Final = 0.5
"""Seconds that running tasks have to stop after Ctrl-C, before their workers are ended."""
_REPORT_S: Final = 0.05
"""Seconds after its bound for which `close` without killing waits for those that heed their signal."""
_KILL_S: Final = 10.0
"""Seconds after which `close` returns though the pool's thread has not ended: a callback holds it, or the
kernel a process."""


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


class _Open(NamedTuple):
    """A task or map that was open when `close` was called."""

    name: str
    future: Future[Any] | None
    run: MapRun | None


def _open(pool: Pool) -> list[_Open]:
    """Return what is open. Whatever moves meanwhile goes from one to the next of these three."""
    waiting = [*pool.ready.items(), *pool.supervisor.alone.waiting]
    items = [*waiting, *pool.dispatcher.in_hand(), *pool.dispatcher.inflight.values()]
    found: dict[int, _Open] = {}
    for item in items:
        future = getattr(item, "future", None)
        if isinstance(item, Task) and future is not None:
            found[id(item)] = _Open(item.describe(), future, None)
    for run in list(pool.runs):
        found[id(run)] = _Open(run.describe(), None, run)
    return list(found.values())


def _running(pool: Pool) -> list[Task]:
    """Return the tasks, and pieces of maps, that run now."""
    return [task for task in list(pool.dispatcher.inflight.values()) if pool.is_running(task)]


def close(
    pool: Pool, timeout: float | None, *, cancel_pending: bool, kill_after: float | None
) -> CloseReport:
    """Drain for `timeout` seconds, then cancel and signal, then kill; see the executor."""
    begun = time.monotonic()
    if pool.forked or threading.current_thread() is pool.supervisor.thread:
        begin(pool)
        return NOTHING
    opened = _open(pool)
    begin(pool)
    bound = None if timeout is None else begun + timeout
    if cancel_pending:
        pool.revoker.cancel_waiting(bound)
    if not wait(pool, None if bound is None else max(0.0, bound - time.monotonic())):
        most = _REPORT_S if kill_after is None else min(kill_after, _REPORT_S)
        pool.revoker.cancel_waiting(time.monotonic() + most)
        for task in _running(pool):
            pool.revoker.tell(task)
            if task.run is not None:
                # Results of items before the one that runs may still be its worker's own.
                pool.helper_bells[pool.table.state[task.handle] >> 8].wake()
        if kill_after is None:
            wait(pool, _REPORT_S)
        else:
            assert bound is not None, "without a timeout it waits until all is done"
            if not wait(pool, max(0.0, bound + kill_after - time.monotonic())):
                pool.supervisor.kill_now = True
                ring(pool)
                wait(pool, _KILL_S)
    return _report(pool, opened, time.monotonic() - begun)


def _report(pool: Pool, opened: list[_Open], seconds: float) -> CloseReport:
    finished: list[str] = []
    cancelled: list[str] = []
    killed: list[str] = []
    running: list[str] = []
    supervisor = pool.supervisor
    for name, future, run in opened:
        if id(future or run) in supervisor.killed:
            killed.append(name)
        elif id(future) in supervisor.unstarted:
            cancelled.append(name)
        elif run is not None:
            over = cancelled if run.cut_off else finished
            (over if run.finished else running).append(name)
        elif future is not None:
            over = cancelled if future.cancelled() else finished
            (over if future.done() else running).append(name)
    return CloseReport(
        len(finished),
        len(cancelled),
        tuple(killed),
        tuple(running),
        seconds,
        tuple(finished),
        tuple(cancelled),
    )


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
