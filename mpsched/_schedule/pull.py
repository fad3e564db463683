"""Pull mode: the caller runs the work, in his own threads. See README.md, "Pull"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mpsched._schedule import closing
from mpsched._timers.due import Due, Wait
from mpsched.errors import SchedulerClosed, StaleVersion

if TYPE_CHECKING:
    from mpsched._schedule.desk import Desk
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.verdict import Verdict


def take(desk: Desk, timeout: float | None) -> Due | Wait | None:
    """Take what is due, waiting for it; see `Scheduler.next`."""
    desk.enter()
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        verdicts: list[Verdict] = []
        with desk.lock:
            if desk.end is not None and not len(desk.workers):
                raise SchedulerClosed("the scheduler was closed, and nothing is left to start")
            found = _look(desk)
            verdicts = desk.verdicts(desk.clock.monotonic())
            left = None if until is None else until - time.monotonic()
            over = isinstance(found, Due) or (left is not None and left <= 0)
            if not (over or verdicts):
                # Under the same lock as the look, so that no wake-up is lost.
                seconds = found.seconds if isinstance(found, Wait) else None
                wait = desk.clock.timeout(seconds, walls=desk.follows_wall())
                desk.changed.wait(
                    min((one for one in (left, wait) if one is not None), default=None)
                )
        for verdict in verdicts:
            verdict.tell()
        if over:
            return found


def _look(desk: Desk) -> Due | Wait | None:
    """Take the first that is due. Lock held."""
    now = desk.clock.monotonic()
    if desk.walls.look() is not None:
        desk.jumps += 1
        desk.workers.rebase(desk.walls.offset)
    if desk.deadlines:
        desk.workers.expire(now)
    found = desk.workers.next(now)
    if isinstance(found, Due):
        handle: Any = found.fn
        handle.due = found
        handle.begun = True
        handle.taken_at = now
        desk.taken[found.version] = handle
        job = handle.job
        found = found._replace(fn=job.fn, args=job.args, kwargs=job.kwargs)
    return found


def end(desk: Desk, due: Due, value: Any, error: BaseException | None) -> None:
    """Note how an attempt ended; see `Scheduler.complete` and `Scheduler.fail`."""
    desk.enter()
    if not isinstance(due, Due):
        raise TypeError(f"give back what next() returned, a Due, not {due!r:.60}")
    with desk.lock:
        handle: TaskHandle[Any] | None = desk.taken.get(due.version)
        if handle is None or handle.due is None or handle.due.attempt != due.attempt:
            raise StaleVersion(
                f"version {due.version} of {due.task_id!r:.60}, attempt {due.attempt}, is over: an "
                "attempt is completed once"
            )
        del desk.taken[due.version]
        now = desk.clock.monotonic()
        desk.conclude(handle, None, value, error, now)
        verdicts = desk.verdicts(now)
    for verdict in verdicts:
        verdict.tell()
    closing.close_if_idle(desk)
