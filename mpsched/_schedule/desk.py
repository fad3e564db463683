"""The desk: which version of which id is where, under one lock. See README.md, "Desk"."""

from __future__ import annotations

import os
import weakref
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, final

from mpsched._base.cancelresult import CancelResult
from mpsched._pool import guards, lifecycle
from mpsched._schedule import closing, makeway
from mpsched._schedule.attempt import Attempt, ThreadRun
from mpsched._schedule.handle import TaskHandle
from mpsched._schedule.handout import PIECE, HandOut
from mpsched._schedule.mending import Whole, whole
from mpsched.errors import PendingLimitReached

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable

    from mpsched._base.clock import Clock
    from mpsched._pool.core import Pool
    from mpsched._schedule.history import Run
    from mpsched._schedule.job import Job, Policy
    from mpsched._schedule.verdict import Verdict
    from mpsched._timers.due import Due, TimerStatus
    from mpsched._timers.instants import Instant

    Raw = Callable[[], tuple[Any, BaseException | None]]

_AWAKE_S: Final = 0.000_5
"""For so long after its time a worker looks for what was expected."""

UNKNOWN: Final = CancelResult.UNKNOWN
PREVENTED: Final = CancelResult.PREVENTED
REQUESTED: Final = CancelResult.REQUESTED
TOO_LATE: Final = CancelResult.TOO_LATE


@final
class Desk(HandOut):
    """What is scheduled, and how it gets to the workers and to threads. Any thread.

    It stands for the pool where a handle, which is a future of the pool's kind, asks its pool.

    Attributes:
        owned: the pool, if it ends with the scheduler.
        keeps: the executor: its pool ends when nobody has it any more.
        thread: the dispatcher's.
        arrived: attempts whose records are there, to be accounted for by the pool's own thread, which is
            `called`.
        whole: entered after the lock by whoever changes something; see `mending.py`.
        most: versions that may wait, or None.
        entering: the version that is just being put in.
        chores, cut: what the dispatcher is to do after an interrupt, without the lock; and that it is to.
        turns: how often the dispatcher went to sleep.
        forked: this process was forked from the scheduler's.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        pool: Pool | None,
        own: bool,
        heaps: dict[str, Any],
        history: int,
        threads: int,
        report: Callable[[Run, BaseException, str], None],
    ) -> None:
        super().__init__(clock, heaps, history, report, pool, own, threads)
        self.owned = pool if own else None
        self.keeps: object = None
        self.thread: threading.Thread | None = None
        self.arrived: deque[tuple[Attempt, Any, Raw | None]] = deque()
        self.called = False
        self.whole = Whole(self)
        self.most: int | None = heaps["max_pending"]
        self.entering: TaskHandle[Any] | None = None
        self.chores: deque[Callable[[], None]] = deque()
        self.cut = False
        self.turns = 0
        self.forked = False
        self.pid = os.getpid()
        if pool is None:
            # Whoever waits in `next` on a clock that is moved by hand is woken by its moves.
            self.unwatch = clock.watch(self.wake)
        desks.add(self)

    # --- what a handle asks of its pool ------------------------------------------------------------

    @property
    def leader(self) -> Desk:
        """Whoever leads: nobody who waits for a handle does."""
        return self

    @property
    def supervisor(self) -> Any:
        """The pool's own thread."""
        return self.pool.supervisor if self.pool is not None else None

    def lead(self, done: Callable[[], bool], _deadline: float | None) -> bool:
        """Whoever waits for a handle follows."""
        return done()

    def outsider(self) -> None:
        """Somebody waits: results of the pool should not lie."""
        if self.pool is not None:
            self.pool.leader.outsider()

    def wake(self) -> None:
        """Have those who wait in `next` look again."""
        with self.lock:
            self.tell_waiters()

    def ring(self) -> None:
        """Nobody need be woken: the pool's own thread tells of every end."""

    def in_own_thread(self) -> bool:
        """Whether the caller is a callback in the pool's own thread."""
        return self.pool is not None and self.pool.in_own_thread()

    def check_process(self) -> None:
        """Raise ForkedPool in a forked process."""
        if self.forked:
            raise guards.forked()

    def state_now(self) -> str:
        """Where it stands, for users: "failed" if its pool has, and it was not closed."""
        pool = self.pool
        if self.state == "accepting" and pool is not None and lifecycle.state(pool) == "failed":
            return "failed"
        return self.state

    def is_running(self, handle: TaskHandle[Any]) -> bool:
        """Whether it runs now, as far as can be seen."""
        run = handle.run
        return handle.begun or (run is not None and run.has_begun())

    def cancel(self, handle: TaskHandle[Any]) -> bool:
        """What `handle.cancel()` does: True if it never starts (again)."""
        return self.cancel_version(handle.task_id, handle) is PREVENTED

    # --- asking, with the lock ---------------------------------------------------------------------

    def enter(self) -> None:
        """Refuse a call that could not go on. Before the lock is taken.

        Raises:
            ForkedPool: this process was forked from the scheduler's.
            RuntimeError: a signal handler or finalizer has interrupted a call of the same thread.
        """
        if self.forked:
            raise guards.forked()
        if self.lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "a signal handler or finalizer calls the scheduler in the middle of another call of the "
                "same thread: let it set a flag, or use close(), which is always allowed"
            )

    # --- in ------------------------------------------------------------------------------------------

    @whole
    def schedule(
        self,
        task_id: Hashable,
        when: Instant,
        priority: int,
        job: Job,
        policy: Policy,
        *,
        deadline: float | None,
        group: str | None,
        if_exists: Literal["replace", "keep", "error"],
        if_running: Literal["let_finish", "cancel", "wait", "error"],
    ) -> TaskHandle[Any]:
        """Take a version, in place of the one before. See README.md, "Replace"."""
        ask: list[Attempt | ThreadRun] = []
        verdicts: list[Verdict] = []
        pump = False
        in_thread = policy.where == "thread" and self.pool is not None
        heap = self.inside if in_thread else self.workers
        handle: TaskHandle[Any] = TaskHandle(self, task_id, heap, job, policy)
        recalled: TaskHandle[Any] | None = None
        while True:
            if recalled is not None:
                self._take_back(recalled)
            with self.lock, self.whole:
                if recalled is not None:
                    self._look_again(recalled)
                self.refuse()
                old = self.current.get(task_id)
                if old is not None:
                    if if_exists == "keep":
                        return old
                    if if_exists == "error":
                        raise ValueError(f"{old.describe()} is not over, and if_exists='error'")
                    if self._recall(old):
                        recalled = old
                        continue
                running = list(self.older.get(task_id, ()))
                if old is not None and old.begun:
                    running.append(old)
                if running and if_running == "error":
                    raise ValueError(f"{running[-1].describe()} is running, and if_running='error'")
                if self.most is not None and (old is None or old.begun):
                    self._refuse_more(handle, self.most)
                # From here on it is put in, by whoever mends if this is cut short.
                handle.waits = bool(running) and if_running == "wait"
                handle.deadline = deadline
                self.entering = handle
                handle.version = heap.schedule(
                    task_id,
                    when.run_at,
                    priority,
                    handle,  # type: ignore[arg-type]  # the heap never calls it
                    deadline=deadline,
                    group=group,
                    at=when.at,
                )
                handle.run_at, handle.at = when.run_at, when.at
                if deadline is not None:
                    self.deadlines += 1
                if old is not None:
                    if old.begun:
                        self.older.setdefault(task_id, []).append(old)
                        if old.run is not None:
                            old.run._unwanted = True  # should it not have started after all
                    elif old.heap is not heap:
                        old.why = "superseded"
                        old.heap.cancel(task_id, old.version)
                self.current[task_id] = handle
                if handle.waits:
                    handle.waits = heap.pause(task_id)
                elif running and if_running == "cancel":
                    for one in running:
                        one.cancel_requested = True
                        one.heap.cancel(task_id, one.version)
                        if one.run is not None:
                            ask.append(one.run)
                self.entering = None
                now = self.clock.monotonic()
                look_at = when.run_at
                if when.run_at <= self.latest or priority != self.usual:
                    self._note_order(when.run_at, priority)
                if when.run_at <= now and not in_thread:
                    pump = self.hand_out(now, look=True)
                    look_at = float("inf")
                if deadline is not None:
                    look_at = min(look_at, deadline)
                if look_at < self.wakes_at or (in_thread and look_at <= now):
                    self.wakes_at = look_at
                    self.bell.ring()
                if self.pool is None:
                    self.tell_waiters()
                if self._drops or self._untold:
                    verdicts = self.verdicts(now)
            break
        if pump:
            self.pump()
        for run in ask:
            run.ask()
        for verdict in verdicts:
            verdict.tell()
        return handle

    def _refuse_more(self, handle: TaskHandle[Any], most: int) -> None:
        """Both heaps together hold up to `most`; each by itself refuses what its own are too many for."""
        if len(self.workers) + len(self.inside) >= most:
            raise PendingLimitReached(
                f"{handle.id} would be one more than the {most} tasks that may be pending (max_pending): "
                "cancel some, or wait until some are run",
                limit=most,
            )

    # --- taking back ---------------------------------------------------------------------------------

    def _recall(self, handle: TaskHandle[Any]) -> bool:
        """Have what is dispatched taken back. Lock held.

        Returns:
            Whether the caller has to leave the lock, call `_take_back`, come again and call
            `_look_again`. Else it is pending, or runs.
        """
        run = handle.run
        if handle.begun or (run is None and not handle.recalling):
            return False
        if isinstance(run, ThreadRun):
            run.take_back()
            handle.run = None
            self.in_threads -= 1
            self.give_back(handle)
            return False
        if not handle.recalling:
            handle.recalling = get_ident()
        return True

    def _take_back(self, handle: TaskHandle[Any]) -> None:
        """Ask the pool for it, or wait for the thread that does. No lock is held."""
        run = handle.run
        if handle.recalling == get_ident():
            if isinstance(run, Attempt):
                run.take_back()
            return
        with self.lock:
            if handle.recalling:
                self.changed.wait(1.0)

    def _look_again(self, handle: TaskHandle[Any]) -> None:
        """See what came of `_take_back`: it is in its old place, or runs. Lock held."""
        if handle.recalling != get_ident():
            return
        handle.recalling = 0
        self.changed.notify_all()
        if handle.over or handle.begun:
            return
        if handle.run is not None:
            # It runs, or a worker that does not answer has it: it counts as started from here on.
            handle.run.wanted = False
            self._begin(handle)
        elif handle.due is not None:
            self.give_back(handle)

    @whole
    def taken_back(self, run: Attempt) -> None:
        """The pool has cancelled an attempt: at our request, or because it is being closed."""
        handle = run.handle
        verdicts: list[Verdict] = []
        with self.lock, self.whole:
            if handle.run is not run:
                return
            handle.run = None
            self.handed -= 1
            if handle.recalling:
                return  # whoever recalls it says what comes next
            now = self.clock.monotonic()
            if run.wanted and not handle.begun:
                self.give_back(handle)  # the one who wanted it was interrupted
            else:
                # The executor is closed so; or it was taken for started, and never will be.
                handle.why = handle.why or "taken back by the pool"
                handle.prevented = True
                self.finish_with(handle, "cancelled", now, None, cancelled=True)
                verdicts = self.verdicts(now)
            if self.blocked:
                self.bell.ring()
            self._look_after()
        for verdict in verdicts:
            verdict.tell()

    @whole
    def cancel_version(
        self, task_id: Hashable, only: TaskHandle[Any] | None = None, why: str = ""
    ) -> CancelResult:
        """Keep a version from starting, or ask it to stop: `only`, or the newest that is not over."""
        self.enter()
        run: Attempt | ThreadRun | None = None
        recalled: TaskHandle[Any] | None = None
        while True:
            if recalled is not None:
                self._take_back(recalled)
            with self.lock, self.whole:
                if recalled is not None:
                    self._look_again(recalled)
                handle = only
                if handle is None:
                    handle = self.current.get(task_id) or next(
                        reversed(self.older.get(task_id, ())), None
                    )
                if handle is None:
                    return self._ended_before(task_id)
                if handle.over:
                    return PREVENTED if handle.prevented else TOO_LATE
                if self._recall(handle):
                    recalled = handle
                    continue
                handle.why = why or handle.why
                handle.cancel_requested = handle.begun  # first: it tells whoever mends
                result = handle.heap.cancel(task_id, handle.version)
                if result is REQUESTED:
                    run = handle.run
                    if run is not None:
                        run._unwanted = True
                now = self.clock.monotonic()
                verdicts = self.verdicts(now)
                if handle.run_at <= self.wakes_at:
                    self.bell.ring()
            break
        if run is not None:
            run.ask()
        for verdict in verdicts:
            verdict.tell()
        return result

    def _ended_before(self, task_id: Hashable) -> CancelResult:
        known = self.workers.status(task_id) or self.inside.status(task_id)
        return UNKNOWN if known is None else TOO_LATE

    @whole
    def reschedule(self, task_id: Hashable, when: Instant | None, priority: int | None) -> bool:
        """Move a version that has not started to another time or priority; False if there is none."""
        recalled: TaskHandle[Any] | None = None
        while True:
            if recalled is not None:
                self._take_back(recalled)
            with self.lock, self.whole:
                if recalled is not None:
                    self._look_again(recalled)
                self.refuse()
                handle = self.current.get(task_id)
                if handle is None or handle.begun:
                    return False
                if self._recall(handle):
                    recalled = handle
                    continue
                heap = handle.heap
                moved = heap.reschedule(
                    task_id,
                    run_at=None if when is None else when.run_at,
                    at=None if when is None else when.at,
                    priority=priority,
                )
                if when is not None:
                    handle.run_at, handle.at = when.run_at, when.at
                self.mixed = True
                pump = heap is self.workers and self.hand_out(self.clock.monotonic(), look=True)
                self.bell.ring()
                self.tell_waiters()
            break
        if pump:
            self.pump()
        return moved

    @whole
    def look(self, task_id: Hashable) -> TimerStatus | None:
        """Tell what is known of an id."""
        with self.lock, self.whole:
            return self.status(task_id)

    def close_if_idle(self) -> None:
        """In pull mode nobody else closes it."""
        closing.close_if_idle(self)

    # --- out -----------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Have the pool dispatch what was handed to it. No lock is held."""
        self.dispatch()
        # After it: the pool's own thread, which may wake by this, would compete with it for the GIL.
        self.outsider()

    def dispatch(self) -> None:
        """As `pump`; the caller sees to it that the pool's own thread hears of it soon (`outsider`)."""
        pool = self.pool
        assert pool is not None
        if self.way:
            makeway.make(self)
        pool.dispatcher.pump()
        if pool.supervisor.draining or pool.refusal is not None:
            self._fail_what_lies(pool)

    def expect(self, due: float, count: int = 1) -> bool:
        """Have `count` workers awake at a time that is a moment away; False if all are busy. No lock is held."""
        pool = self.pool
        if pool is None or not len(self.workers) or pool.refusal is not None:
            return True
        return pool.dispatcher.expect(int((due + _AWAKE_S) * 1e9), count)

    def _fail_what_lies(self, pool: Pool) -> None:
        """The executor was shut down: what its queue still has may never be looked at again."""
        with self.lock:
            handles = [one for one in self.current.values() if isinstance(one.run, Attempt)]
        for handle in handles:
            run = handle.run
            if isinstance(run, Attempt) and run._task.handle < 0:
                pool.revoker.cancel(run._task)  # answered by `taken_back`
                if pool.supervisor.done.is_set():
                    self.ended(run, None, pool.refused())

    def miss(self, due: Due) -> list[Verdict]:
        """Take back what is dispatched and past its deadline; if it has started, it goes on."""
        handle: Any = due.fn
        recalled = False
        while True:
            if recalled:
                self._take_back(handle)
            with self.lock, self.whole:
                if recalled:
                    self._look_again(handle)
                if handle.over or handle.attempt != due.attempt:
                    return []
                if self._recall(handle):
                    recalled = True
                    continue
                now = self.clock.monotonic()
                handle.heap.peek(now)  # it drops what is pending past its deadline
                return self.verdicts(now)

    # --- progress --------------------------------------------------------------------------------------

    def begin(self, run: ThreadRun) -> bool:
        """A thread is about to run an attempt; False: it was taken back."""
        with self.lock, self.whole:
            if run.taken or run.handle.run is not run:
                return False
            self._begin(run.handle)
        return True

    def arrive(self, run: Attempt, value: Any, raw: Raw | None) -> None:
        """The record of an attempt that came to its end is there. The leader; never takes the lock."""
        self.arrived.append((run, value, raw))
        if not self.called:
            self.called = True
            pool = self.pool
            assert pool is not None
            # As one of the pool's finished futures, so that its own thread calls `_settle`.
            pool.leader.finished.append((self, None, None, False))  # type: ignore[arg-type]

    def _settle(self, _value: Any, _raw: Any, *, failed: bool = False) -> None:
        """Account for what has arrived, many at a time. The pool's own thread; no lock is held."""
        self.called = False  # first: what arrives from now on calls again
        arrived = self.arrived
        while arrived:
            pump = False
            with self.lock, self.whole:
                now = self.clock.monotonic()
                for _ in range(min(len(arrived), PIECE)):
                    run, value, raw = arrived.popleft()
                    handle = run.handle
                    if handle.run is not run:
                        continue  # the same record, seen again
                    self.handed -= 1
                    try:
                        self._completed(handle, run, value, raw, now)
                    except Exception as problem:
                        self._lost(handle, problem)
                if self.blocked:
                    pump = self.hand_out(now)
                verdicts = self.verdicts(now) if self._drops or self._untold else ()
                self._look_after()
            if pump:
                self.pump()
            for verdict in verdicts:
                verdict.tell()

    def ended(self, run: Attempt | ThreadRun, value: Any, error: BaseException | None) -> None:
        """An attempt has ended. The pool's own thread, or the one of the job; no lock is held."""
        handle = run.handle
        verdicts: list[Verdict] = []
        pump = False
        with self.lock, self.whole:
            if handle.run is not run:
                return
            now = self.clock.monotonic()
            if isinstance(run, Attempt):
                self.handed -= 1
            else:
                self.in_threads -= 1
            try:
                if not handle.begun and (error is None or run.started_ns):
                    self._begin(handle)
                self.conclude(handle, run, value, error, now)
            except Exception as problem:
                self._lost(handle, problem)
            if self.blocked:
                pump = self.hand_out(now)
            elif isinstance(run, ThreadRun) and self.inside_waits():
                self.hand_to_threads(now)
            if self._drops or self._untold:
                verdicts = self.verdicts(now)
        if pump:
            self.pump()
        for verdict in verdicts:
            verdict.tell()


desks: weakref.WeakSet[Desk] = weakref.WeakSet()


def _after_fork() -> None:
    for desk in list(desks):
        desk.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
