"""Tasks that run with no other beside them, because they have ended a worker for memory.

See README.md, "Memory". Supervisor only, but for `waiting`, which anybody may read.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task

LOOK_S: Final = 0.005
"""Seconds between looks while a task waits for its turn, or has it."""


@final
class Alone:
    """Runs some tasks of a pool one by one, while nothing else is dispatched.

    Attributes:
        waiting: tasks whose turn is to come. They are in no other queue.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.waiting: deque[Task] = deque()
        self._running: tuple[Task, int] | None = None  # and which attempt
        self._since = 0.0

    def add(self, task: Task) -> None:
        """Let a task have its turn. What is dispatched already comes to its end before."""
        if not self.busy():
            self._since = time.monotonic()
        self._pool.dispatcher.held = True
        self.waiting.append(task)

    def busy(self) -> bool:
        """Whether a look is due every `LOOK_S`."""
        return self._running is not None or bool(self.waiting)

    def look(self) -> None:
        """Give the next one its turn if the others have ended; let all go on after the last."""
        if not self.busy():
            return
        dispatcher, waiting = self._pool.dispatcher, self.waiting
        now = time.monotonic()
        if self._running is not None:
            task, attempt = self._running
            if dispatcher.inflight.get(task.id) is task and task.attempt == attempt:
                return
            self._running = None
            self._since = now
        while waiting and (waiting[0].cancelled or _final(waiting[0])):
            waiting.popleft()
        if not waiting:
            dispatcher.held = False
            dispatcher.pump()
            return
        # One that never ends must not stop the whole pool for good.
        if dispatcher.inflight and now < self._since + self._pool.settings.alone_s:
            return
        task = waiting[0]
        if dispatcher.send(task):
            self._running = (task, task.attempt)
            waiting.popleft()

    def clear(self) -> None:
        """Forget all: the pool has failed, or ends."""
        self.waiting.clear()
        self._running = None


def _final(task: Task) -> bool:
    return task.future is None or task.future.done()
