"""How a scheduler ends: accepting -> closing -> draining -> closed. See README.md, "Close"."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from mpsched._pool import lifecycle
from mpsched._pool.lifecycle import GRACE_S
from mpsched._schedule.attempt import ThreadRun
from mpsched._schedule.verdict import telling

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mpsched._schedule.desk import Desk
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.verdict import Verdict

_LOG = logging.getLogger("mpsched")

Queued = Literal["run", "keep", "cancel"]

_MOMENT_S: Final = 0.05
"""Seconds that what was asked to stop has before `close` reports it as running."""
_END_S: Final = 10.0
"""Seconds in which killed workers are gone, and their attempts accounted for."""
_THREADS_S: Final = 2.0


class Kept(NamedTuple):
    """A version that was not run because the scheduler closed; enough to schedule it again.

    Attributes:
        task_id: its id.
        version: its version.
        seconds: from the close until it would have been due; negative if it was.
        at: its calendar time, in seconds since 1970, or None.
        priority: its priority.
    """

    task_id: Hashable
    version: int
    seconds: float
    at: float | None
    priority: int


class SchedulerReport(NamedTuple):
    """What `close` did; the same object for everybody who closes.

    Attributes:
        state: "closed"; "draining" if something still runs.
        finished: attempts that came to their end after the call, failed ones among them.
        cancelled: versions that never ran, or stopped as they were asked to.
        kept: versions that were not run, with `queued="keep"`.
        killed: descriptions of those whose workers were ended.
        running: descriptions of those that still run.
        seconds: how long it took.
    """

    state: str
    finished: int
    cancelled: int
    kept: tuple[Kept, ...]
    killed: tuple[str, ...]
    running: tuple[str, ...]
    seconds: float


class End:
    """The one end of a desk. Its lock guards it."""

    __slots__ = ("before", "begun", "kept", "killed", "report", "without_threads")

    def __init__(self, desk: Desk) -> None:
        self.begun = time.monotonic()
        self.before = dict(desk.history.outcomes)
        self.kept: tuple[Kept, ...] = ()
        self.killed: tuple[str, ...] = ()
        self.report: SchedulerReport | None = None
        self.without_threads = False  # nobody waits for jobs in threads any more

    def take(self, desk: Desk) -> SchedulerReport:
        """Say what has become of everything. Lock held."""
        if self.report is not None:
            return self.report
        counts = {
            name: count - self.before.get(name, 0) for name, count in desk.history.outcomes.items()
        }
        report = SchedulerReport(
            state=desk.state,
            finished=sum(counts.get(name, 0) for name in ("completed", "failed", "timed_out")),
            cancelled=counts.get("cancelled", 0),
            kept=self.kept,
            killed=self.killed,
            running=tuple(handle.describe() for handle in _active(desk)),
            seconds=time.monotonic() - self.begun,
        )
        if desk.state == "closed":
            self.report = report
        return report


def begin(desk: Desk, queued: Queued) -> End:
    """Refuse new work, stop the timers, decide what becomes of what waits. Never waits long."""
    verdicts: list[Verdict] = []
    dropped = 0
    with desk.lock, desk.whole:
        end = desk.end
        if end is None:
            end = desk.end = End(desk)
        if desk.state in {"accepting", "closing"}:  # or whoever closed was interrupted here
            desk.state = "closing"
            now = desk.clock.monotonic()
            kept, dropped = _stop_timers(desk, queued, now)
            end.kept += kept
            verdicts = desk.verdicts(now)
            desk.state = "draining"
            desk.tell_waiters()
        desk.bell.ring()
    if dropped and queued == "run":
        _LOG.warning(
            "%s scheduled tasks were not due when the scheduler closed, and were cancelled; s.wait() keeps "
            "it open, queued= says what becomes of them",
            dropped,
        )
    for verdict in verdicts:
        verdict.tell()
    close_if_idle(desk)
    return end


def _stop_timers(desk: Desk, queued: Queued, now: float) -> tuple[tuple[Kept, ...], int]:
    """End every version that waits; with "run", leave those that are due. Lock held.

    Returns what is kept, and how many were ended.
    """
    kept = []
    dropped = 0
    for handle in list(desk.current.values()):
        if handle.begun or handle.run is not None or handle.recalling:
            continue  # claimed: it comes to its end
        heap = handle.heap
        status = heap.status(handle.task_id)
        if status is None:
            continue
        if queued == "run" and status.run_at <= now:
            continue  # also if it waits for older versions of its id: they come to their end
        dropped += 1
        if queued == "keep":
            handle.why = "kept"
            kept.append(
                Kept(
                    handle.task_id,
                    handle.version,
                    status.run_at - now,
                    status.at,
                    status.priority,
                )
            )
        else:
            handle.why = "the scheduler was closed"
        heap.cancel(handle.task_id, handle.version)
    return tuple(kept), dropped


def close(
    desk: Desk, timeout: float | None, queued: Queued, kill_after: float | None, *, wait: bool
) -> SchedulerReport:
    """End a scheduler; see `Scheduler.close`."""
    if desk.forked:
        return SchedulerReport("closed", 0, 0, (), (), (), 0.0)
    if desk.lock._is_owned():  # type: ignore[attr-defined]
        # A signal handler, in the middle of a call of this very thread: it must not wait for itself.
        threading.Thread(
            target=close,
            args=(desk, timeout, queued, kill_after),
            kwargs={"wait": wait},
            daemon=True,
        ).start()
        return SchedulerReport("closing", 0, 0, (), (), (), 0.0)
    if desk.threads.here() and wait:
        raise RuntimeError(
            "a job of this scheduler calls its close(), which waits until all jobs are done: use "
            "close(wait=False), or close it outside of its jobs"
        )
    end = begin(desk, queued)
    # In a callback, which somebody waits for to be over: the pool's own thread, or whoever cancels.
    can_wait = wait and not desk.in_own_thread() and telling() is not desk
    if desk.pool is None and timeout is None:
        can_wait = False  # the caller runs the work: it cannot both wait for it and do it
    if can_wait and not desk.closed.wait(timeout):
        _hurry(desk, end, kill_after)
    with desk.lock:
        return end.take(desk)


def _hurry(desk: Desk, end: End, kill_after: float | None) -> None:
    """The time to drain is over: cancel what has not started, ask what runs, end it after a while."""
    # First what has not started: a job that hears its signal makes room for the next one at once.
    for handle in sorted(_open(desk), key=desk.is_running):
        desk.cancel_version(handle.task_id, handle, why="the scheduler was closed")
    if desk.closed.wait(_MOMENT_S if kill_after is None else kill_after) or kill_after is None:
        return
    with desk.lock:
        active = _active(desk)
        end.without_threads = True
        end.killed = tuple(
            handle.describe() for handle in active if not isinstance(handle.run, ThreadRun)
        )
        runs = [handle.run for handle in active if handle.run is not None]
        desk.bell.ring()
    for run in runs:
        run.kill()
    desk.closed.wait(_END_S)


def _open(desk: Desk) -> list[TaskHandle[Any]]:
    with desk.lock:
        older = [one for group in desk.older.values() for one in group]
        return [*older, *desk.current.values()]


def _active(desk: Desk) -> list[TaskHandle[Any]]:
    return [one for one in _open(desk) if one.run is not None or one.begun]


def is_over(desk: Desk) -> bool:
    """Whether nothing is left to wait for. Lock held."""
    if desk.end is None:
        return False
    if desk.idle():
        return True
    return desk.end.without_threads and not desk.handed


def finish(desk: Desk) -> None:
    """Give everything back; the dispatcher does it last."""
    try:
        if desk.owned is not None:
            lifecycle.shutdown(desk.owned, wait_for=True, cancel_futures=False)
        desk.threads.close(0.0 if desk.end is not None and desk.end.without_threads else _THREADS_S)
    finally:
        with desk.lock:
            close_now(desk)


def close_if_idle(desk: Desk) -> None:
    """In pull mode nobody else does."""
    if desk.pool is None and desk.end is not None:
        for verdict in desk.stuck():
            verdict.tell()
        with desk.lock:
            if desk.idle():
                close_now(desk)


def close_now(desk: Desk) -> None:
    """Nothing is left. Lock held."""
    if desk.pool is None:
        desk.unwatch()
    desk.state = "closed"
    desk.closed.set()
    desk.tell_waiters()


def give_up(desk: Desk) -> None:
    """The dispatcher cannot go on: nothing that waits will ever start."""
    begin(desk, "cancel")
    for handle in _open(desk):
        desk.cancel_version(handle.task_id, handle, why="the scheduler failed")


def _leave_threads(desk: Desk, end: End) -> None:
    """The interpreter ends: jobs in threads had their time, and one may never end."""
    with desk.lock:
        left = [one.describe() for one in _active(desk) if isinstance(one.run, ThreadRun)]
        end.without_threads = True
        desk.bell.ring()
    if left:
        _LOG.warning("the program ends without jobs that run in threads: %s", ", ".join(left))


def _at_exit() -> None:
    """The interpreter ends: what is due is still done; what is not would keep it for ever."""
    from mpsched._schedule.desk import desks

    for desk in list(desks):
        if desk.forked or desk.pool is None or desk.closed.is_set():
            continue
        if lifecycle.ended_by_ctrl_c():
            close(desk, 0.0, "cancel", GRACE_S, wait=True)
            continue
        try:
            end = begin(desk, "run")
            if not desk.closed.wait(_END_S):
                _leave_threads(desk, end)
            desk.closed.wait()
        except KeyboardInterrupt:
            close(desk, 0.0, "cancel", GRACE_S, wait=True)
            raise


# Before the pools end: see lifecycle.py, which has registered earlier and so comes later.
_register = getattr(threading, "_register_atexit", atexit.register)
_register(_at_exit)
