"""Which versions may not start any more after which moment. See README.md, "Deadlines"."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mpsched._timers.entry import Entry, extra_of
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

    def add(self, entry: Entry) -> None:
        """Add an entry's deadline, unless it is here; now and then sweep others out (TIMER-6)."""
        extra = entry.extra
        assert extra is not None
        if extra.watched:
            return
        assert extra.deadline is not None
        heap = self._heap
        if len(heap) > _LEFT and len(heap) > 2 * len(self._current):
            heap = self._heap = [item for item in heap if self._concerned(item) is not None]
            heapify(heap)
        extra.watched = True
        heappush(heap, (extra.deadline, entry.version, entry.task_id))

    def renew(self) -> None:
        """Forget all; whoever calls it adds them again."""
        self._heap = []

    def _concerned(self, item: tuple[float, int, Hashable]) -> Entry | None:
        """Return the entry of an item that may still be missed; of others note that it is gone."""
        entry = self._current.get(item[2])
        if entry is None or entry.version != item[1]:
            return None
        if entry.state <= CLAIMED:
            return entry
        extra_of(entry).watched = False  # it runs; a retry adds it again
        return None

    def first(self) -> float | None:
        """Return the first deadline of a version that is pending or claimed."""
        heap = self._heap
        while heap:
            if self._concerned(heap[0]) is not None:
                return heap[0][0]
            heappop(heap)
        return None

    def passed(self, now: float) -> Entry | None:
        """Take the first that is before `now`, of a version that is pending or claimed."""
        heap = self._heap
        while heap and heap[0][0] < now:
            entry = self._concerned(heappop(heap))
            if entry is not None:
                extra_of(entry).watched = False
                return entry
        return None
