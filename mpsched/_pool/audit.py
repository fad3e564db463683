"""Finding roots that lie nowhere, which only damage can bring about. See README.md, "Audit"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, final

from mpsched._shm.words import Damaged
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task

_EVERY_S: Final = 1.0

_Root = tuple[int, int, int]  # task id, attempt, worker


@final
class Audit:
    """Compares the words of dispatched roots with the inboxes, now and then. Supervisor."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._due = 0.0
        self._suspects: set[_Root] = set()

    def look(self) -> None:
        """Look, if that was not done for a second. The dispatcher's section is held, no lock is.

        Raises:
            Damaged: A root that waits for a worker was in no inbox, at two looks in a row.
        """
        now = time.monotonic()
        pool = self._pool
        if now < self._due or pool.dispatcher.moving():
            return
        self._due = now + _EVERY_S
        waiting: dict[int, list[Task]] = {}
        for task in list(pool.dispatcher.inflight.values()):
            word = pool.table.state[task.handle] if task.handle >= 0 else 0
            if word & 255 == st.QUEUED:
                waiting.setdefault(word >> 8, []).append(task)
        suspects: set[_Root] = set()
        for worker, tasks in waiting.items():
            suspects |= self._missing(worker, tasks)
        lost, self._suspects = suspects & self._suspects, suspects
        if lost:
            number, attempt, worker = min(lost)
            raise Damaged(
                f"task {number} (attempt {attempt}) waits for worker {worker}, and lies in no inbox: "
                "something has written into the shared memory of this pool"
            )

    def _missing(self, worker: int, tasks: list[Task]) -> set[_Root]:
        """Return those of the tasks, which wait for `worker`, that its inbox does not hold."""
        pool = self._pool
        state, queued = pool.table.state, st.word(st.QUEUED, worker)
        there: set[int] = set()
        if worker < len(pool.dispatcher.inboxes):
            inbox, locks = pool.dispatcher.inboxes[worker], pool.dispatcher.locks
            try:
                if not locks.try_acquire(worker):
                    return set()  # somebody moves them; the next look tells
                inbox.repair()
                there = set(inbox.handles())
                # While the lock is held, who is QUEUED lies in the inbox (INBOX-3).
                tasks = [task for task in tasks if state[task.handle] == queued]
            finally:
                locks.release(worker)
        return {(task.id, task.attempt, worker) for task in tasks if task.handle not in there}
