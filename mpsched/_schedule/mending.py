"""An interrupted call leaves the book whole. See README.md, "Interrupts".

KeyboardInterrupt may come between any two lines of the calling thread, also in the middle of a change. The
heaps' entries say what is true; everything else is made from them anew.
"""

from __future__ import annotations

import functools
import logging
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, final

from mpsched._schedule.attempt import Attempt, ThreadRun
from mpsched._schedule.verdict import inside, telling
from mpsched._timers.due import Due
from mpsched._timers.states import State
from mpsched.errors import PendingLimitReached, SchedulerClosed, StaleVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mpsched._schedule.desk import Desk
    from mpsched._schedule.handle import TaskHandle

_LOG = logging.getLogger("mpsched")

P = ParamSpec("P")
R = TypeVar("R")

_REFUSALS: Final = (SchedulerClosed, PendingLimitReached, StaleVersion, ValueError, TypeError)
"""What is raised before anything is changed."""


@final
class Whole:
    """Entered right after the lock, left right before it: what is cut short in between is mended.

    Attributes:
        torn: the thread that changes something now; whoever finds it set has to mend first. 0: nobody.
    """

    __slots__ = ("_desk", "torn")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.torn = 0

    def __enter__(self) -> None:
        if self.torn:
            self._mend(None)
        self.torn = get_ident()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            if not issubclass(kind, _REFUSALS):
                self._mend(problem)
            self._desk.entering = None
        self.torn = 0

    def mend(self) -> None:
        """Make everything agree with the heaps, which is where the truth is."""
        _mend(self._desk, self.torn)

    def _mend(self, problem: BaseException | None) -> None:
        """Mend to the end, whatever interrupts it; then let the first interrupt out."""
        struck: BaseException | None = None
        while True:
            try:
                self.mend()
                break
            except KeyboardInterrupt as another:
                struck = another
            except Exception:
                _LOG.exception("an interrupted call of the scheduler could not be mended")
                break
        self.torn = 0
        if struck is not None and not isinstance(problem, KeyboardInterrupt):
            raise struck


def whole(call: Callable[Concatenate[Desk, P], R]) -> Callable[Concatenate[Desk, P], R]:
    """Decorate what callers of the scheduler call: if it is cut short, what it left undone is done."""

    @functools.wraps(call)
    def guarded(desk: Desk, /, *args: P.args, **kwargs: P.kwargs) -> R:
        outer = telling()
        try:
            return call(desk, *args, **kwargs)
        except _REFUSALS:
            raise
        except BaseException:
            if desk.forked or desk.lock._is_owned():  # type: ignore[attr-defined]
                raise  # refused (`enter`): there is nothing to mend, or somebody is in the middle
            while True:
                try:
                    inside.telling = outer
                    _catch_up(desk)
                    break
                except KeyboardInterrupt:
                    continue  # one is on its way already
            raise

    return guarded


def _catch_up(desk: Desk) -> None:
    """Have the dispatcher do what an interrupted call of this thread has not: pump, ask, tell."""
    with desk.lock, desk.whole:
        # Even if the lock was not held: the pool may have been telling of something.
        desk.whole.mend()
    me = get_ident()
    for verdict in list(desk.telling):
        if verdict.who == me:
            desk.telling[verdict] = 0.0
    desk.cut = True
    desk.bell.ring()
    if desk.pool is None:
        for verdict in desk.stuck():
            verdict.tell()
        desk.close_if_idle()


def _mend(desk: Desk, who: int) -> None:
    """Make the registers from the heaps anew. Lock held; may be interrupted and begun again."""
    for heap in (desk.workers, desk.inside):
        heap.repair()
    now = desk.clock.monotonic()
    _adopt(desk)
    desk.verdicts(now)  # kept in `telling`
    older = [one for group in desk.older.values() for one in group]
    handles = list({*desk.current.values(), *older, *desk.taken.values()})
    for handle in handles:
        _mend_one(desk, handle, who, now)
    for handle in handles:
        if handle.over:
            desk.forget(handle)
            desk.taken.pop(handle.version, None)
    for verdict in list(desk.telling):
        if verdict.who == who:
            desk.telling[verdict] = 0.0
    alive = [one for one in handles if not one.over]
    for handle in alive:
        if handle.waits and handle.task_id not in desk.older:
            handle.waits = False
            handle.heap.resume(handle.task_id)
    desk.deadlines = sum(one.deadline is not None for one in alive)
    desk.handed = sum(isinstance(one.run, Attempt) for one in alive)
    desk.in_threads = sum(isinstance(one.run, ThreadRun) for one in alive)
    desk.blocked = False
    desk.handing = desk.first = None
    desk.way = []
    if desk.making == who:
        desk.making = 0
    desk.cut = True
    desk.bell.ring()
    desk.tell_waiters()


def _adopt(desk: Desk) -> None:
    """A version that the heap has taken, and the book perhaps not yet, is the newest of its id."""
    handle = desk.entering
    if handle is None:
        return
    status = handle.heap.status(handle.task_id)
    old = desk.current.get(handle.task_id)
    older = desk.older.get(handle.task_id, ())
    known = {one.version for one in (*older, *(() if old is None else (old,))) if one is not handle}
    if (
        status is not None
        and status.outcome is None
        and status.version not in known
        and handle.version in {0, status.version}
    ):
        handle.version = status.version
        handle.run_at, handle.at, handle.deadline = status.run_at, status.at, status.deadline
        if old is not None and old is not handle:
            _put_off(desk, old)
        desk.current[handle.task_id] = handle
        if handle.waits and not status.paused:
            handle.waits = desk.older.get(handle.task_id) is not None and handle.heap.pause(
                handle.task_id
            )
    desk.entering = None


def _put_off(desk: Desk, old: TaskHandle[Any]) -> None:
    """A newer version has taken the place of `old`."""
    if old.begun:
        group = desk.older.setdefault(old.task_id, [])
        if old not in group:
            group.append(old)
        if old.run is not None:
            old.run._unwanted = True
        return
    old.why = "superseded"
    old.heap.cancel(old.task_id, old.version)  # of the other heap, if it still is one
    old.run = None
    if old.verdict is None and not old.over:
        desk.drop(old, _due(old), "superseded", desk.clock.monotonic())


def _due(handle: TaskHandle[Any]) -> Due:
    """Return what the heap gives out for a version, for asking it about that."""
    if handle.due is not None:
        return handle.due
    version: int = handle.version
    fn: Any = handle
    return Due(handle.task_id, version, handle.run_at, 0, version, fn, (), None, handle.attempt)


def _mend_one(desk: Desk, handle: TaskHandle[Any], who: int, now: float) -> None:
    """Make what is noted of one version agree with where it stands in its heap."""
    if handle.over:
        return
    if handle.verdict is not None:  # all is on record but the end
        desk.close_handle(handle)
        return
    if handle.recalling == who:
        handle.recalling = 0
    due = _due(handle)
    state = handle.heap.state_of(due)
    run = handle.run
    if isinstance(run, Attempt) and run.cancelled():
        run = handle.run = None  # the pool has given it back, and the telling was cut short
    if state is State.RUNNING:
        _mend_running(desk, handle, due, now)
    elif state is State.CLAIMED:
        handle.begun = False
        if handle.recalling:
            return  # another thread says what comes next
        if isinstance(run, ThreadRun):
            # Perhaps no thread has got it: it is handed out once more.
            run.take_back()
            run = handle.run = None
        if run is None:
            handle.due = due
            desk.give_back(handle)
            desk.taken.pop(handle.version, None)
        elif run is desk.handing:
            desk.chores.append(run.take_back)  # perhaps it never got into the pool's queue
    elif state is State.PENDING:
        status = handle.heap.status(handle.task_id)
        assert status is not None
        handle.begun, handle.run, handle.due, handle.ending = False, None, None, None
        handle.attempt, handle.waits = status.attempt, status.paused
        handle.run_at, handle.at = status.run_at, status.at
        desk.taken.pop(handle.version, None)
    elif handle.ending is not None:
        desk.end_version(handle, due, *handle.ending, now)
    else:
        status = handle.heap.status(handle.task_id)
        newest = status is not None and status.version == handle.version
        outcome = "cancelled" if newest else "superseded"
        if newest and status is not None and status.outcome == "missed":
            outcome = "missed"
        desk.drop(handle, due, outcome, now)


def _mend_running(desk: Desk, handle: TaskHandle[Any], due: Due, now: float) -> None:
    handle.begun = True
    handle.due = due
    run = handle.run
    if handle.ending is not None:
        desk.conclude(handle, run, *handle.ending, now)
    elif run is not None:
        if handle.cancel_requested:
            desk.chores.append(run.ask)
    elif desk.pool is not None:
        # It was taken for started, and never will be.
        handle.prevented = True
        desk.finish_with(handle, "cancelled", now, None, cancelled=True)
    elif handle.version not in desk.taken:
        # Nobody has got it; as it counts as started, it is another attempt.
        if handle.heap.retry(due, due.run_at):
            handle.begun, handle.due = False, None
            handle.attempt += 1
        else:  # replaced, or asked to stop
            desk.finish_with(handle, "cancelled", now, None, cancelled=True)
