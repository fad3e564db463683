"""What is accepted and waits in the parent, in order.

See README.md, "Ready queue". Highest priority first, then the order of submission. With `aging` the
priority of what waits grows by `aging` a second, which is the constant key
`priority - aging * ready_at`, so nothing is ever re-sorted.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from mpsched._pool.mapping import MapRun
    from mpsched._pool.task import Task


class Source(Protocol):
    """What can lie in the queue: a task, or a map that makes its pieces when they are wanted."""

    cancelled: bool


@final
class ReadyQueue:
    """One FIFO per priority; or, with `aging` above 0, one heap.

    `append` and `put_back` are for any thread; everything else that changes it is the dispatcher's,
    under its section: only so is what `peek` saw still the first at `pop`.

    Attributes:
        simple: whether `plain` is all there is: no aging, and no priority but the default so far.
        plain: what has the default priority, in order.
    """

    __slots__ = ("_aging", "_count", "_fifos", "_heap", "_order", "_returned", "plain", "simple")

    def __init__(self, aging: float) -> None:
        self._aging = aging
        self.simple = not aging
        self._count = itertools.count()
        # The default priority has a queue that is there from the start: the common case is one append.
        self.plain: deque[Task | MapRun] = deque()
        self._fifos: dict[int, deque[Task | MapRun]] = {0: self.plain}
        self._order: list[int] = [0]  # priorities, highest first
        self._heap: list[tuple[float, int, Task | MapRun]] = []
        self._returned: deque[tuple[Task | MapRun, int]] = deque()

    def append(self, item: Task | MapRun, priority: int = 0) -> None:
        """Add an item behind all of its priority."""
        if self._aging:
            # A heap push is one C call, atomic under the GIL; the counter breaks ties.
            item.key = -(priority - self._aging * time.monotonic())
            heapq.heappush(self._heap, (item.key, next(self._count), item))
            return
        if not priority:
            self.plain.append(item)
            return
        self._fifo(priority).append(item)

    def put_back(self, item: Task | MapRun, priority: int = 0) -> None:
        """Have an item put before all of its priority at the next look. Any thread."""
        self._returned.append((item, priority))

    def take_back(self) -> None:
        """Put what was given to `put_back` in its place. Twice, if an exception strikes."""
        while self._returned:
            self.append_left(*self._returned[0])
            self._returned.popleft()

    def append_left(self, item: Task | MapRun, priority: int = 0) -> None:
        """Put an item before all of its priority (it was here before)."""
        if self._aging:
            if item.key is None:
                item.key = -(priority - self._aging * time.monotonic())
            # Its age goes on: it waits since it was first here.
            heapq.heappush(self._heap, (item.key, -next(self._count), item))
            return
        self._fifo(priority).appendleft(item)

    def _fifo(self, priority: int) -> deque[Task | MapRun]:
        fifo = self._fifos.get(priority)
        if fifo is None:
            self.simple = False
            fifo = self._fifos.setdefault(priority, deque())
        return fifo

    def _ordered(self) -> list[int]:
        # Made anew here, and not where a priority is new: two threads may add one at a time.
        if len(self._order) != len(self._fifos):
            self._order = sorted(self._fifos, reverse=True)
        return self._order

    def peek(self) -> Task | MapRun | None:
        """Return the first item without taking it; None if there is none."""
        self.take_back()
        if self._aging:
            return self._heap[0][2] if self._heap else None
        for priority in self._ordered():
            fifo = self._fifos[priority]
            if fifo:
                return fifo[0]
        return None

    def pop(self, item: Task | MapRun) -> None:
        """Take `item`, which `peek` returned, unless it is not first any more."""
        if self._aging:
            # Others push meanwhile, so one call must both look and take; it is rarely the wrong one.
            first = heapq.heappop(self._heap)
            if first[2] is not item:
                heapq.heappush(self._heap, first)
                self._heap.remove(next(one for one in list(self._heap) if one[2] is item))
                heapq.heapify(self._heap)
            return
        for priority in self._ordered():
            fifo = self._fifos[priority]
            if fifo and fifo[0] is item:
                fifo.popleft()
                return
        # Something was put before it since.
        for fifo in self._fifos.values():
            try:
                fifo.remove(item)
            except ValueError:
                continue
            return

    def discard(self, item: Task | MapRun) -> None:
        """Take `item` out, wherever it lies; no matter if it is not here."""
        self.take_back()
        if self._aging:
            found = next((one for one in list(self._heap) if one[2] is item), None)
            if found is not None:
                self._heap.remove(found)
                heapq.heapify(self._heap)
            return
        for fifo in list(self._fifos.values()):
            with contextlib.suppress(ValueError):
                fifo.remove(item)

    def __len__(self) -> int:
        returned = len(self._returned)
        if self._aging:
            return len(self._heap) + returned
        if self.simple:
            return len(self.plain) + returned
        return sum(len(fifo) for fifo in list(self._fifos.values())) + returned

    def __bool__(self) -> bool:
        if self.plain or self._returned:
            return True
        return not self.simple and len(self) > 0

    def items(self) -> list[Task | MapRun]:
        """Return what waits, in no particular order, without taking it."""
        returned = [item for item, _ in list(self._returned)]
        if self._aging:
            return returned + [entry[2] for entry in list(self._heap)]
        return returned + [item for fifo in list(self._fifos.values()) for item in list(fifo)]
