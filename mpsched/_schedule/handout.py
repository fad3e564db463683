"""How what is due gets to the pool and to threads, in order. See README.md, "Desk"."""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mpsched._schedule import makeway
from mpsched._schedule.attempt import Attempt, ThreadJobs, ThreadRun
from mpsched._schedule.book import Book

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._base.clock import Clock
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task
    from mpsched._schedule.history import Run
    from mpsched._timers.due import Due

CHUNK: Final = 256
"""Versions handed to a given executor before the lock is let go for a moment."""

PIECE: Final = 192
"""Versions handed to the scheduler's own pool in one go while more wait for room: three objects are made of
each, and of more than 700 at once the garbage collector makes a collection each time, a seventh of all the work."""


def not_before(seconds: float) -> int:
    """Return nanoseconds that a float clock does not show as less than `seconds`, however long the machine runs."""
    return int(math.nextafter(seconds, math.inf) * 1e9) + 2


class HandOut(Book):
    """The book, and where its versions go. Methods expect the lock.

    Attributes:
        pool: where jobs for workers go; None in pull mode. own_order: its queue has no order.
        handed, in_threads: attempts that are with the pool, and with threads.
        blocked: something for workers is due, and waits for room.
        handing: the attempt that is just being put into the pool's queue.
        prepared: tasks of versions that were claimed a moment before their time, with that and the priority.
        early: attempts that were handed to a worker before their time, with that; some may be over.
        latest: the latest time of what was handed out or is prepared. usual: the first priority that was scheduled.
        way, making, first: what is to give way, which thread sees to that, and to whom; see `makeway.py`.
    """

    def __init__(
        self,
        clock: Clock,
        heaps: dict[str, Any],
        history: int,
        report: Callable[[Run, BaseException, str], None],
        pool: Pool | None,
        own_order: bool,
        threads: int,
    ) -> None:
        super().__init__(clock, heaps, history, report)
        self.pool = pool
        self.own_order = own_order
        self.threads = ThreadJobs(threads)
        self.pid = os.getpid()
        self.handed = 0
        self.in_threads = 0
        self.blocked = False
        self.handing: Attempt | None = None
        self.prepared: deque[tuple[float, Task, int]] = deque()
        # Where priority or turns come first, what comes first is known at that time only.
        self.in_order = heaps["ready_order"] == "run_at" and heaps["groups"] is None
        self.early: deque[tuple[float, weakref.ref[Attempt]]] = deque()
        self.latest = float("-inf")
        self.usual: int | None = None
        self.way: list[Attempt] = []
        self.making = 0
        self.first: Attempt | None = None

    def _note_order(self, run_at: float, priority: int) -> None:
        """Note whether what is scheduled may come before what is with the pool. Lock held."""
        if self.usual is None:
            self.usual = priority
        if run_at <= self.latest or (priority != self.usual and not self.in_order):
            self.mixed = True
            if self.early:
                self.bell.ring()  # it may come before what lies with workers until its time

    def room(self) -> int:
        """How many more attempts the pool takes: the workers and their windows. Lock held.

        While something waits for room, room is given by quarters: one at a time costs many times more.
        """
        pool = self.pool
        assert pool is not None
        if not self.own_order:
            return CHUNK
        most = pool.width * (1 + pool.dispatcher.window())
        room = most - self.handed
        if not self.blocked:
            return room
        return 0 if room < most >> 2 else min(room, PIECE)

    def hand_out(self, now: float, *, look: bool = False) -> bool:
        """Hand what is due to the pool, in order. Lock held.

        Args:
            now: what the clock shows.
            look: whether what waits there may have to make way: something was scheduled, or is due now.

        Returns:
            Whether the pool's dispatcher is to be pumped, once the lock is free.
        """
        pool = self.pool
        if pool is None:
            return False
        released = bool(self.prepared) and self.release(now)
        if pool.refusal is not None:
            self._refuse_due(pool, now)
            return released
        room = self.room()
        if (self.mixed or self.first is not None) and self.own_order:
            if self.making or self.way or (look and makeway.is_wanted(self, now)):
                self.blocked = True
                return True
            if self.first is not None and not self.first.waits():
                self.first = None
            if self.first is not None:
                room = 0
        if room <= 0:
            self.blocked = True
            return released
        return bool(self._hand_out(pool, now, room)) or released

    def _hand_out(self, pool: Pool, now: float, room: int) -> list[Due]:
        """Claim up to `room` of what is due, and put it into the pool's queue. Lock held."""
        dues = self.workers.claim_many(now, room)
        waited, self.blocked = self.blocked, len(dues) >= room
        if waited and not self.blocked:
            self.bell.ring()  # the dispatcher sleeps without regard to what is due
        if not dues:
            return dues
        self.latest = max(self.latest, dues[-1].run_at if self.in_order else now)
        ready, plain = pool.ready, pool.ready.plain
        for due in dues:
            task = self._task(pool, due)
            if self.own_order:
                plain.append(task)
            else:
                ready.append(task, due.priority)
        self.handing = None
        return dues

    def give_way(self, back: bool) -> None:
        """Hand out what others gave way to: alone, if any of them came back. Lock held."""
        pool = self.pool
        assert pool is not None
        now = self.clock.monotonic()
        if back and pool.refusal is None and (dues := self._hand_out(pool, now, 1)):
            handle: Any = dues[0].fn
            self.first, self.blocked = handle.run, True
            return
        self.hand_out(now)

    def _task(self, pool: Pool, due: Due) -> Task:
        """Make the pool's task of what was claimed."""
        handle: Any = due.fn
        options = handle.policy.options
        if due.priority and not self.own_order:
            # By this the pool puts a task back into its queue that it had no entry for.
            options = options._replace(priority=due.priority)
        task: Task = handle.job.task(pool, due.version, due.attempt, options)
        handle.due = due
        # In this order: an interrupt leaves it with the heap, or as what is being handed over.
        self.handing = task.future = handle.run = Attempt(pool, task, handle)
        self.handed += 1
        if options.timeout is not None:
            pool.supervisor.limits.watch(task, options.timeout)
            pool.ring()
        return task

    def prepare(self, until: float) -> None:
        """Claim what is due until a time that is a moment away, and make its tasks. Lock held.

        `release` hands each over at its time, which then takes a third of what all of it takes. Meanwhile
        they are claimed: taken back as ever, since the pool drops what is cancelled.
        """
        pool = self.pool
        if pool is None or not self.in_order or self.prepared or self.blocked or pool.refusal:
            return
        room = self.room()
        if room <= 0:
            return
        dues = self.workers.claim_many(until, room)
        for due in dues:
            self.prepared.append((due.run_at, self._task(pool, due), due.priority))
        self.handing = None
        self.blocked = len(dues) >= room
        if dues:
            # Whoever schedules something that comes before the last of them rings.
            self.wakes_at = max(self.wakes_at, dues[-1].run_at)
            self.latest = max(self.latest, dues[-1].run_at)

    def release(self, now: float) -> bool:
        """Hand over what was prepared and is due by now; whether anything was. Lock held."""
        prepared = self.prepared
        pool = self.pool
        assert pool is not None
        released = False
        while prepared and prepared[0][0] <= now:
            _due, task, priority = prepared[0]
            if self.own_order:
                pool.ready.plain.append(task)
            else:
                pool.ready.append(task, priority)
            prepared.popleft()  # last: what is interrupted in between is queued twice, which the pool sees
            released = True
        return released

    def hand_early(self) -> bool:
        """Give what was prepared to idle workers, before its time; whether all of it is. Lock held.

        In order: what comes behind one that found no worker waits here, as that does.
        """
        prepared, pool = self.prepared, self.pool
        assert pool is not None
        if not self.own_order or pool.refusal is not None or pool.supervisor.draining:
            return False
        if pool.dispatcher.idle_one() < 0:
            return not prepared
        now = self.clock.monotonic()
        self._forget_early(now)
        while prepared:
            run_at, task, _ = prepared[0]
            run = task.future
            if isinstance(run, Attempt):  # else it was taken back
                if not run.waits() or self._comes_before(run, now):
                    return False
                if not pool.dispatcher.hand_early(task, not_before(run_at)):
                    return False
                self.early.append((run_at, weakref.ref(run)))
            prepared.popleft()
        return True

    def _comes_before(self, run: Attempt, now: float) -> bool:
        """Whether anything was scheduled since that comes before what is prepared."""
        due = run.handle.due
        assert due is not None
        first = self.workers.first_rank(now, due.run_at)
        return first is not None and first < self.workers.rank_of(due)

    def _forget_early(self, now: float) -> None:
        early = self.early
        while early and early[0][0] <= now:
            early.popleft()

    def still_early(self, now: float) -> list[Attempt]:
        """Return what lies with workers and is not due, in order. Lock held."""
        self._forget_early(now)
        runs = [run for _, there in self.early if (run := there()) is not None]
        return [run for run in runs if run.waits()]

    def hand_to_threads(self, now: float) -> None:
        """Hand what is due to threads, in order, as many as there may be. Lock held.

        Not in a thread of the caller's: an interrupt could strike while a thread is being started.
        """
        room = self.threads.most - self.in_threads
        for due in self.inside.claim_many(now, room) if room > 0 else ():
            handle: Any = due.fn
            handle.due = due
            handle.run = run = ThreadRun(handle, self.pid)
            self.in_threads += 1
            try:
                self.threads.submit(run)
            except RuntimeError as problem:  # no thread can be started
                self.in_threads -= 1
                self.finish_with(handle, "failed", now, None, error=problem)

    def inside_waits(self) -> bool:
        """Whether anything is scheduled for a thread."""
        return len(self.inside) > 0

    def _refuse_due(self, pool: Pool, now: float) -> None:
        """The executor takes nothing any more: what is due fails with its reason."""
        for due in self.workers.claim_many(now, 1 << 30):
            handle: Any = due.fn
            handle.due = due
            self.finish_with(handle, "failed", now, None, error=pool.refused())
        self._look_after()
