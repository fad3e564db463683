"""The desk: which version of which id is where, under one lock. See README.md, "Desk"."""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, final

from mpsched._base.cancelresult import CancelResult
from mpsched._pool import guards
from mpsched._schedule.attempt import Attempt, ThreadJobs, ThreadRun
from mpsched._schedule.book import Book
from mpsched._schedule.handle import TaskHandle

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable

    from mpsched._base.clock import Clock
    from mpsched._pool.core import Pool
    from mpsched._schedule.history import Run
    from mpsched._schedule.job import Job, Policy
    from mpsched._schedule.verdict import Verdict
    from mpsched._timers.due import Due
    from mpsched._timers.instants import Instant

    Raw = Callable[[], tuple[Any, BaseException | None]]

_CHUNK: Final = 256
"""Versions handed to a given executor before the lock is let go for a moment."""
_THREAD_CHUNK: Final = 64

UNKNOWN: Final = CancelResult.UNKNOWN
PREVENTED: Final = CancelResult.PREVENTED
REQUESTED: Final = CancelResult.REQUESTED
TOO_LATE: Final = CancelResult.TOO_LATE


@final
class Desk(Book):
    """What is scheduled, and how it gets to the workers and to threads. Any thread.

    It stands for the pool where a handle, which is a future of the pool's kind, asks its pool.

    Attributes:
        pool: where jobs for workers go; None in pull mode.
        owned: the pool, if it ends with the scheduler; own_order: and if its queue has no order.
        keeps: the executor: its pool ends when nobody has it any more.
        thread: the dispatcher's.
        handed, in_threads: attempts that are with the pool, and with threads.
        blocked: something for workers is due, and waits for room.
        arrived: attempts whose records are there, to be accounted for by the pool's own thread, which is
            `called`.
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
        super().__init__(clock, heaps, history, report)
        self.pool = pool
        self.own_order = own
        self.owned = pool if own else None
        self.keeps: object = None
        self.thread: threading.Thread | None = None
        self.threads = ThreadJobs(threads)
        self.handed = 0
        self.in_threads = 0
        self.blocked = False
        self.arrived: deque[tuple[Attempt, Any, Raw | None]] = deque()
        self.called = False
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
        with self.lock:
            self.refuse()
            old = self.current.get(task_id)
            while old is not None:
                if if_exists == "keep":
                    return old
                if if_exists == "error":
                    raise ValueError(f"{old.describe()} is not over, and if_exists='error'")
                if old.begun or old.run is None or self._recall(old):
                    break
                old = self.current.get(task_id)
            try:
                self.refuse()  # once more: the lock may have been let go
                running = list(self.older.get(task_id, ()))
                if old is not None and old.begun:
                    running.append(old)
                if running and if_running == "error":
                    raise ValueError(f"{running[-1].describe()} is running, and if_running='error'")
                handle.version = heap.schedule(
                    task_id,
                    when.run_at,
                    priority,
                    handle,  # type: ignore[arg-type]  # the heap never calls it
                    deadline=deadline,
                    group=group,
                    at=when.at,
                )
            except BaseException:
                if old is not None and old.run is None and old.due is not None and not old.over:
                    self._give_back(old)
                raise
            handle.run_at, handle.at = when.run_at, when.at
            if deadline is not None:
                handle.deadline = deadline
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
            if running and if_running == "wait":
                handle.waits = heap.pause(task_id)
            elif running and if_running == "cancel":
                for one in running:
                    one.cancel_requested = True
                    one.heap.cancel(task_id, one.version)
                    if one.run is not None:
                        ask.append(one.run)
            now = self.clock.monotonic()
            look_at = when.run_at
            if when.run_at <= now:
                pump = self.hand_out(now)
                look_at = float("inf")
            if deadline is not None:
                look_at = min(look_at, deadline)
            if look_at < self.wakes_at:
                self.wakes_at = look_at
                self.bell.ring()
            if self.pool is None:
                self.tell_waiters()
            if self._drops or self._untold:
                verdicts = self.verdicts(now)
        if pump:
            self.pump()
        for run in ask:
            run.ask()
        for verdict in verdicts:
            verdict.tell()
        return handle

    # --- taking back ---------------------------------------------------------------------------------

    def _recall(self, handle: TaskHandle[Any]) -> bool:
        """Take what is dispatched back from the pool. The lock is held, and let go meanwhile.

        Returns:
            True: it is claimed and nobody has it. False: look again; it runs, or is over, or somebody
            else has recalled it.
        """
        run = handle.run
        if handle.recalling or run is None:
            self.changed.wait(1.0)
            return False
        if isinstance(run, ThreadRun):
            run.take_back()
            handle.run = None
            self.in_threads -= 1
            return True
        handle.recalling = True
        self.lock.release()
        answered = False
        try:
            run.take_back()
            answered = True
        finally:
            self.lock.acquire()
            handle.recalling = False
            self.changed.notify_all()
            if not answered and handle.run is None and not (handle.over or handle.begun):
                self._give_back(handle)  # interrupted, and nobody will say what comes next
        if handle.run is None and not handle.over and not handle.begun:
            return True
        if handle.run is run and not handle.begun:
            # It runs, or a worker that does not answer has it: it counts as started from here on.
            run.wanted = False
            self._begin(handle)
        return False

    def taken_back(self, run: Attempt) -> None:
        """The pool has cancelled an attempt: at our request, or because it is being closed."""
        handle = run.handle
        verdicts: list[Verdict] = []
        with self.lock:
            if handle.run is not run:
                return
            handle.run = None
            self.handed -= 1
            if handle.recalling:
                return  # whoever recalls it says what comes next
            now = self.clock.monotonic()
            if run.wanted and not handle.begun:
                self._give_back(handle)  # the one who wanted it was interrupted
            else:
                # The executor is closed so; or it was taken for started, and never will be.
                handle.why = handle.why or "taken back by the pool"
                self._finish(handle, "cancelled", now, None)
                handle.prevented = True
                verdicts = [self._verdict(handle, cancelled=True)]
            if self.blocked:
                self.bell.ring()
            self._look_after()
        for verdict in verdicts:
            verdict.tell()

    def cancel_version(
        self, task_id: Hashable, only: TaskHandle[Any] | None = None, why: str = ""
    ) -> CancelResult:
        """Keep a version from starting, or ask it to stop: `only`, or the newest that is not over."""
        self.enter()
        run: Attempt | ThreadRun | None = None
        with self.lock:
            while True:
                handle = only
                if handle is None:
                    handle = self.current.get(task_id) or next(
                        reversed(self.older.get(task_id, ())), None
                    )
                if handle is None:
                    return self._ended_before(task_id)
                if handle.over:
                    return PREVENTED if handle.prevented else TOO_LATE
                if handle.begun or handle.run is None or self._recall(handle):
                    break
            handle.why = why or handle.why
            result = handle.heap.cancel(task_id, handle.version)
            if result is REQUESTED:
                handle.cancel_requested = True
                run = handle.run
                if run is not None:
                    run._unwanted = True
            now = self.clock.monotonic()
            verdicts = self.verdicts(now)
            if handle.run_at <= self.wakes_at:
                self.bell.ring()
        if run is not None:
            run.ask()
        for verdict in verdicts:
            verdict.tell()
        return result

    def _ended_before(self, task_id: Hashable) -> CancelResult:
        known = self.workers.status(task_id) or self.inside.status(task_id)
        return UNKNOWN if known is None else TOO_LATE

    def reschedule(self, task_id: Hashable, when: Instant | None, priority: int | None) -> bool:
        """Move a version that has not started to another time or priority; False if there is none."""
        pump = False
        with self.lock:
            self.refuse()
            while True:
                handle = self.current.get(task_id)
                if handle is None or handle.begun:
                    return False
                if handle.run is None or self._recall(handle):
                    break
            if handle.due is not None:
                self._give_back(handle)
            heap = handle.heap
            moved = heap.reschedule(
                task_id,
                run_at=None if when is None else when.run_at,
                at=None if when is None else when.at,
                priority=priority,
            )
            if when is not None:
                handle.run_at, handle.at = when.run_at, when.at
            now = self.clock.monotonic()
            pump = self.hand_out(now)
            self.bell.ring()
            self.tell_waiters()
        if pump:
            self.pump()
        return moved

    # --- out -----------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more attempts the pool takes: the workers and their windows. Lock held.

        While something waits for room, room is given by quarters: one at a time costs many times more.
        """
        pool = self.pool
        assert pool is not None
        if not self.own_order:
            return _CHUNK
        most = pool.width * (1 + pool.dispatcher.window())
        room = most - self.handed
        return 0 if self.blocked and room < most >> 2 else room

    def hand_out(self, now: float) -> bool:
        """Hand what is due to the pool and to threads, in order. Lock held.

        Returns:
            Whether the pool's dispatcher is to be pumped, once the lock is free.
        """
        pool = self.pool
        if pool is None:
            return False
        if self.inside_waits():
            self._hand_to_threads(now)
        if pool.refusal is not None:
            self._refuse_due(pool, now)
            return False
        room = self.room()
        if room <= 0:
            self.blocked = True
            return False
        dues = self.workers.claim_many(now, room)
        waited, self.blocked = self.blocked, len(dues) >= room
        if waited and not self.blocked:
            self.bell.ring()  # the dispatcher sleeps without regard to what is due
        if not dues:
            return False
        ready, plain = pool.ready, pool.ready.plain
        for due in dues:
            handle: Any = due.fn
            policy = handle.policy
            task = handle.job.task(pool, due.version, due.attempt, policy.options)
            handle.due = due
            handle.run = task.future = Attempt(pool, task, handle)
            self.handed += 1
            if self.own_order:
                plain.append(task)
            else:
                ready.append(task, due.priority)
            if policy.options.timeout is not None:
                pool.supervisor.limits.watch(task, policy.options.timeout)
                pool.ring()
        return True

    def _hand_to_threads(self, now: float) -> None:
        while dues := self.inside.claim_many(now, _THREAD_CHUNK):
            for due in dues:
                handle: Any = due.fn
                handle.due = due
                handle.run = run = ThreadRun(handle, self.pid)
                self.in_threads += 1
                try:
                    self.threads.submit(run)
                except RuntimeError as problem:  # no thread can be started
                    self.in_threads -= 1
                    self._finish(handle, "failed", now, None)
                    self._untold.append(self._verdict(handle, None, problem))

    def inside_waits(self) -> bool:
        """Whether anything is scheduled for a thread."""
        return len(self.inside) > 0

    def _refuse_due(self, pool: Pool, now: float) -> None:
        """The executor takes nothing any more: what is due fails with its reason."""
        for due in self.workers.claim_many(now, 1 << 30):
            handle: Any = due.fn
            handle.due = due
            self._finish(handle, "failed", now, None)
            self._untold.append(self._verdict(handle, None, pool.refused()))
        self._look_after()

    def pump(self) -> None:
        """Have the pool dispatch what was handed to it. No lock is held."""
        pool = self.pool
        assert pool is not None
        pool.leader.outsider()
        pool.dispatcher.pump()
        if pool.supervisor.draining or pool.refusal is not None:
            self._fail_what_lies(pool)

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
        with self.lock:
            while handle.due is not None and handle.due.attempt == due.attempt and not handle.over:
                if handle.begun:
                    return []
                if handle.run is None or self._recall(handle):
                    now = self.clock.monotonic()
                    self._finish(handle, "missed", now, None)
                    self._untold.append(self._missed(handle, now))
                    return self.verdicts(now)
        return []

    # --- progress --------------------------------------------------------------------------------------

    def begin(self, run: ThreadRun) -> bool:
        """A thread is about to run an attempt; False: it was taken back."""
        with self.lock:
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
            with self.lock:
                now = self.clock.monotonic()
                for _ in range(min(len(arrived), _CHUNK)):
                    run, value, raw = arrived.popleft()
                    handle = run.handle
                    if handle.run is not run:
                        continue  # the same record, seen again
                    self.handed -= 1
                    try:
                        if not handle.begun:
                            self._begin(handle)
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
        with self.lock:
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
            if self._drops or self._untold:
                verdicts = self.verdicts(now)
        if pump:
            self.pump()
        for verdict in verdicts:
            verdict.tell()

    # --- what the heap drops ---------------------------------------------------------------------------


desks: weakref.WeakSet[Desk] = weakref.WeakSet()


def _after_fork() -> None:
    for desk in list(desks):
        desk.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
