"""Entries in order of time, taken out lazily.

See README.md, "Stale entries". What is not PENDING any more stays where it lies, as a shell, until it comes
to the top or until there are too many such.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mpsched._timers.entry import RUN_AT, STATE, Entry, extra_of
from mpsched._timers.states import PENDING

if TYPE_CHECKING:
    from mpsched._timers.order import ReadyQueue

# Stale entries that are left alone however many of the entries they are. Smaller: small heaps are
# rebuilt often. Larger: that many shells of 150 bytes lie in every heap.
STALE_LEFT: Final = 64


@final
class LazyQueue:
    """A heap by time, and behind it, if what is due has another order, a queue for that.

    Attributes:
        heap: what waits for its time; without `ready` also what is due. Always the same list: the
            owner has it at hand, and pushes onto it.
        ready: what is due, in its own order, or None.
        stale: items, in both, that are not PENDING. The owner counts up, and calls `sweep`.
        rebuilds: how often they were swept out.
    """

    __slots__ = ("_seen", "heap", "ready", "rebuilds", "stale")

    def __init__(self, ready: ReadyQueue | None) -> None:
        self.heap: Final[list[Entry]] = []
        self.ready: Final = ready
        self.stale = 0
        self.rebuilds = 0
        self._seen = float("-inf")  # the latest `now`

    def __len__(self) -> int:
        """Count the items, stale ones too."""
        return len(self.heap) + (0 if self.ready is None else len(self.ready))

    def take(self, now: float) -> Entry | None:
        """Take the first entry that is due."""
        if self.ready is not None:
            self._admit(self.ready, now)
            entry = self.ready.pop()
            self._skipped(self.ready)
        else:
            entry = self._first()
            if entry is None or entry[RUN_AT] > now:
                return None
            heappop(self.heap)
        self.sweep()
        return entry

    def wait(self, now: float) -> float | None:
        """Return the seconds until something is due, at least 0; None if there is nothing."""
        if self.ready is not None:
            self._admit(self.ready, now)
            there = self.ready.first() is not None
            self._skipped(self.ready)
            if there:
                return 0.0
        first = self._first()
        return None if first is None else max(0.0, first[RUN_AT] - now)

    def _first(self) -> Entry | None:
        heap = self.heap
        while heap:
            if heap[0][STATE] == PENDING:
                return heap[0]
            heappop(heap)
            self.stale -= 1
        return None

    def _admit(self, ready: ReadyQueue, now: float) -> None:
        # Since when is it due? Since its time; but what was scheduled for a time that had passed came
        # after the last look, or it would have been admitted then.
        while (first := self._first()) is not None and first[RUN_AT] <= now:
            heappop(self.heap)
            since = max(first[RUN_AT], self._seen)
            if ready.ages:
                # One whose claim was taken back waits since it first did.
                extra = extra_of(first)
                if extra.since is None:
                    extra.since = since
                since = extra.since
            ready.admit(first, since)
        self._seen = max(self._seen, now)

    def _skipped(self, ready: ReadyQueue) -> None:
        self.stale -= ready.skipped
        ready.skipped = 0

    def sweep(self) -> None:
        """Throw the stale entries out if they are too many (TIMER-5)."""
        if self.stale <= STALE_LEFT or self.stale * 2 <= len(self):
            return
        heap = self.heap
        heap[:] = [entry for entry in heap if not entry[3]]  # STATE is PENDING; half of the cost
        heapify(heap)
        if self.ready is not None:
            self.ready.purge()
        self.stale = 0
        self.rebuilds += 1

    def put(self, entry: Entry) -> None:
        """Add an entry."""
        heappush(self.heap, entry)
