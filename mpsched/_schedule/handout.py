"""How what is due gets to the pool and to threads, in order. See README.md, "Desk"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from mpsched._schedule.attempt import Attempt, ThreadJobs, ThreadRun
from mpsched._schedule.book import Book

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._base.clock import Clock
    from mpsched._pool.core import Pool
    from mpsched._schedule.history import Run

CHUNK: Final = 256
"""Versions handed to a given executor before the lock is let go for a moment."""


class HandOut(Book):
    """The book, and where its versions go. Methods expect the lock.

    Attributes:
        pool: where jobs for workers go; None in pull mode. own_order: its queue has no order.
        handed, in_threads: attempts that are with the pool, and with threads.
        blocked: something for workers is due, and waits for room.
        handing: the attempt that is just being put into the pool's queue.
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
        return 0 if self.blocked and room < most >> 2 else room

    def hand_out(self, now: float) -> bool:
        """Hand what is due to the pool and to threads, in order. Lock held.

        Returns:
            Whether the pool's dispatcher is to be pumped, once the lock is free.
        """
        pool = self.pool
        if pool is None:
            return False
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
            # In this order: an interrupt leaves it with the heap, or as what is being handed over.
            self.handing = task.future = handle.run = Attempt(pool, task, handle)
            self.handed += 1
            limit = policy.options.timeout
            if limit is not None:
                pool.supervisor.limits.watch(task, limit)
            if self.own_order:
                plain.append(task)
            else:
                ready.append(task, due.priority)
            if limit is not None:
                pool.ring()
        self.handing = None
        return True

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
