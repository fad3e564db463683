"""Which versions may not start any more after which moment. See README.md, "Deadlines"."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mpsched._timers.entry import STATE, VERSION, Entry
from mpsched._timers.states import CLAIMED

if TYPE_CHECKING:
    from collections.abc import Hashable

# Items that are left alone however many of them have no version any more.
_LEFT: Final = 64


@final
class Deadlines:
    """A heap of (deadline, version, id); a version that has started or ended is skipped.

    It looks versions up by their id, so that it keeps nobody's function, and does not notice when an
    entry moves to another list.
    """

    __slots__ = ("_current", "_heap")

    def __init__(self, current: dict[Hashable, Entry]) -> None:
        """Make one without deadlines.

        Args:
            current: the newest version of each id that is not final.
        """
        self._current = current
        self._heap: list[tuple[float, int, Hashable]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, version: int, task_id: Hashable) -> None:
        """Add a deadline; now and then sweep out those that concern nobody (TIMER-6)."""
        heap = self._heap
        if len(heap) > _LEFT and len(heap) > 2 * len(self._current):
            heap = self._heap = [item for item in heap if self._alive(item) is not None]
            heapify(heap)
        heappush(heap, (deadline, version, task_id))

    def _alive(self, item: tuple[float, int, Hashable]) -> Entry | None:
        entry = self._current.get(item[2])
        return entry if entry and entry[VERSION] == item[1] and entry[STATE] <= CLAIMED else None

    def first(self) -> float | None:
        """Return the first deadline of a version that is pending or claimed."""
        heap = self._heap
        while heap:
            if self._alive(heap[0]) is not None:
                return heap[0][0]
            heappop(heap)
        return None

    def passed(self, now: float) -> Entry | None:
        """Take the first that is before `now`, of a version that is pending or claimed."""
        heap = self._heap
        while heap and heap[0][0] < now:
            entry = self._alive(heappop(heap))
            if entry is not None:
                return entry
        return None
