"""Pull mode: the caller runs the work, in his own threads. See README.md, "Pull"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mpsched._schedule import closing
from mpsched._schedule.mending import whole
from mpsched._timers.due import Due, Wait
from mpsched.errors import SchedulerClosed, StaleVersion

if TYPE_CHECKING:
    from mpsched._schedule.desk import Desk
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.verdict import Verdict


@whole
def take(desk: Desk, timeout: float | None) -> Due | Wait | None:
    """Take what is due, waiting for it; see `Scheduler.next`."""
    desk.enter()
    until = None if timeout is None else time.monotonic() + timeout
    taken: list[Due] = []
    try:
        while True:
            found, verdicts, over = _turn(desk, until, taken)
            for verdict in verdicts:
                verdict.tell()
            if over:
                return found
    except BaseException:
        for due in taken:  # interrupted on its way to the caller
            put_back(desk, due)
        raise


@whole
def _turn(
    desk: Desk, until: float | None, taken: list[Due]
) -> tuple[Due | Wait | None, list[Verdict], bool]:
    """Look once, and wait if nothing is due. Returns what was found, what to tell, whether to return."""
    with desk.lock:
        with desk.whole:
            if desk.end is not None and not len(desk.workers):
                raise SchedulerClosed("the scheduler was closed, and nothing is left to start")
            found = _look(desk, taken)
            verdicts = desk.verdicts(desk.clock.monotonic())
        left = None if until is None else until - time.monotonic()
        over = isinstance(found, Due) or (left is not None and left <= 0)
        if not (over or verdicts):
            # Under the same lock as the look, so that no wake-up is lost.
            seconds = found.seconds if isinstance(found, Wait) else None
            wait = desk.clock.timeout(seconds, walls=desk.follows_wall())
            desk.changed.wait(min((one for one in (left, wait) if one is not None), default=None))
    return found, verdicts, over


def put_back(desk: Desk, due: Due) -> None:
    """Have somebody else take it, unless it was ended; as it counts as started, in another attempt."""
    while True:
        try:
            with desk.lock, desk.whole:
                handle = desk.taken.get(due.version)
                if handle is not None and handle.attempt == due.attempt:
                    del desk.taken[due.version]
                desk.whole.mend()
            return
        except KeyboardInterrupt:
            continue  # one is on its way already


def _look(desk: Desk, taken: list[Due]) -> Due | Wait | None:
    """Claim the first that is due. Lock held."""
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
        job = handle.job
        taken.append(found)
        desk.taken[found.version] = handle  # from here on it is the caller's
        found = found._replace(fn=job.fn, args=job.args, kwargs=job.kwargs)
    return found


def end(desk: Desk, due: Due, value: Any, error: BaseException | None) -> None:
    """Note how an attempt ended; see `Scheduler.complete` and `Scheduler.fail`."""
    desk.enter()
    if not isinstance(due, Due):
        raise TypeError(f"give back what next() returned, a Due, not {due!r:.60}")
    _conclude(desk, due, value, error)
    closing.close_if_idle(desk)


@whole
def _conclude(desk: Desk, due: Due, value: Any, error: BaseException | None) -> None:
    with desk.lock, desk.whole:
        handle: TaskHandle[Any] | None = desk.taken.get(due.version)
        if handle is None or handle.due is None or handle.due.attempt != due.attempt:
            raise StaleVersion(
                f"version {due.version} of {due.task_id!r:.60}, attempt {due.attempt}, is over: an "
                "attempt is completed once"
            )
        job = handle.job
        if job is None or due.run_at != handle.due.run_at or due.fn is not job.fn:
            raise StaleVersion(
                f"version {due.version} of {due.task_id!r:.60} is another scheduler's: this one has "
                f"{handle.describe()}"
            )
        handle.ending = (value, error)  # from here on it is over, whatever comes between
        now = desk.clock.monotonic()
        desk.conclude(handle, None, value, error, now)
        desk.taken.pop(due.version, None)
        verdicts = desk.verdicts(now)
    for verdict in verdicts:
        verdict.tell()
