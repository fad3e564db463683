"""Time limits: the watch over dispatched tasks that may not run for ever.

See README.md, "Limits". The limit counts from the STARTED word, which the worker writes. First the
task's signal is set, `grace` seconds later the worker that runs it is ended; the death then becomes
a TaskTimeout.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from typing import TYPE_CHECKING, final

from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task


@final
class Limits:
    """The supervisor's heap of looks to take, earliest first. Supervisor only, except `watch`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._heap: list[tuple[float, int, Task, int]] = []
        self._count = itertools.count()

    def watch(self, task: Task, after: float) -> None:
        """Look at `task` in `after` seconds. Any thread: one heap operation."""
        entry = (time.monotonic() + after, next(self._count), task, task.attempt)
        heapq.heappush(self._heap, entry)

    def kill_soon(self, task: Task) -> None:
        """End the worker that runs `task` at the next look."""
        heapq.heappush(self._heap, (0.0, next(self._count), task, task.attempt))

    def next(self) -> float | None:
        """Return the `time.monotonic()` of the next look, or None."""
        return self._heap[0][0] if self._heap else None

    def check(self) -> None:
        """Take the looks that are due."""
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _at, _n, task, attempt = heapq.heappop(self._heap)
            again = self._look(task, attempt, now)
            if again is not None:
                heapq.heappush(self._heap, (again, next(self._count), task, attempt))

    def _look(self, task: Task, attempt: int, now: float) -> float | None:
        """Return when to look again; None: it is over."""
        future = task.future
        if future is None or future.done() or task.attempt != attempt:
            return None
        pool, handle = self._pool, task.handle
        if handle < 0:
            # It waits in the parent.
            return now + (task.options.timeout or 0.05)
        state, worker = st.parts(pool.table.state[handle])
        if state == st.REVOKED:
            pool.revoker.start_after_all(task)
            return now + 0.005
        if task.killed == "cancel":
            if state == st.RUNNING:
                pool.supervisor.kill(worker, signal.SIGKILL)
                return None
            return now + 0.005
        limit = task.options.timeout
        if limit is None:
            # A `cancel` that got no answer in time: until it runs, one may come.
            return None if state == st.RUNNING else now + 0.05
        started = pool.table.started[handle] / 1e9
        if state != st.RUNNING or not started:
            return now + limit
        over = started + limit
        if now < over:
            return over
        pool.table.cancel[handle] = 1
        end = over + task.options.grace
        if now < end:
            return end
        task.killed = "timeout"
        pool.supervisor.kill(worker, signal.SIGKILL)
        return None
