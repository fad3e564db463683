"""Entries in order of time, taken out lazily.

See README.md, "Near and later", "Ties" and "Stale entries". What is not PENDING any more stays where it lies, as a
shell, until it comes to the top or until there are too many such.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Final, final

from mpsched._timers.entry import Entry, Item, extra_of, item_of
from mpsched._timers.states import PENDING

if TYPE_CHECKING:
    from mpsched._timers.order import Rank, ReadyQueue

# Stale entries that are left alone however many of the entries they are. Smaller: small heaps are
# rebuilt often. Larger: that many shells of 130 bytes lie in every heap.
STALE_LEFT: Final = 64

_FEW: Final = 64
"""`front` has up to a quarter of what `run` has, and of this; beyond that both are sorted together."""

SMALL: Final = 1024
"""So many items are a heap, whatever is later; and if nothing is, half of them."""

PIECE: Final = 16_384
"""So many items are sorted in one go; of more the earlier half."""

# Of the items to be halved, one in so many is looked at to find where their middle is.
_SAMPLED: Final = 16

_version: Final = attrgetter("version")
_priority: Final = attrgetter("priority")


@final
class LazyQueue:
    """What waits, in order of time; behind it, if what is due has another order, a queue for that.

    The lists are always the same objects: the owner has them at hand.

    Attributes:
        heap: what is near and came one by one: a heap by time alone.
        front: what came to the top of `heap` beside others of the same time: a heap in the whole order.
        run: what is near and was sorted in one go: the first one last.
        later: what comes after all of these, in no order.
        edge: nothing near is after it, and all that is `later` is.
        full: how many there may be in `heap` before `spill` is called.
        ready: what is due, in its own order, or None.
        stale: items, in all of them, that are not PENDING. The owner counts up, and calls `sweep`.
        margin: at least 0: TIMER-5 holds. An owner that does not call `sweep` each time takes 2 off for
            each item that it makes stale, 1 for each that it takes out, and calls it below 0.
        rebuilds: how often they were swept out.
    """

    __slots__ = (
        "_seen",
        "edge",
        "front",
        "full",
        "heap",
        "later",
        "margin",
        "ready",
        "rebuilds",
        "run",
        "stale",
    )

    def __init__(self, ready: ReadyQueue | None) -> None:
        self.heap: Final[list[Entry]] = []
        self.front: Final[list[Item]] = []
        self.run: Final[list[Entry]] = []
        self.later: Final[list[Entry]] = []
        self.edge = math.inf
        self.full = SMALL
        self.ready: Final = ready
        self.stale = 0
        self.margin = 2 * STALE_LEFT
        self.rebuilds = 0
        self._seen = -math.inf  # the latest `now`

    def __len__(self) -> int:
        """Count the items, stale ones too."""
        ready = 0 if self.ready is None else len(self.ready)
        return len(self.heap) + len(self.front) + len(self.run) + len(self.later) + ready

    def take(self, now: float) -> Entry | None:
        """Take the first entry that is due."""
        if self.ready is not None:
            self._admit(self.ready, now)
            entry = self.ready.pop()
            self._skipped(self.ready)
        else:
            entry = self._first()
            if entry is None or entry > now:
                return None
            self._remove_first(entry)
        self.sweep()
        return entry

    def untie(self, entry: Entry) -> Entry:
        """Take the first entry, given one that was on top of `heap`, and is not alone at its time.

        The others are in `heap` or aside; nothing that is aside is before it.
        """
        self._set_aside([entry], entry)
        first = self._first()
        assert first is not None  # `entry` is pending
        self._remove_first(first)
        return first

    def wait(self, now: float) -> float | None:
        """Return the seconds until something is due, at least 0; None if there is nothing."""
        if self.ready is not None:
            self._admit(self.ready, now)
            there = self.ready.first() is not None
            self._skipped(self.ready)
            if there:
                return 0.0
        first = self._first()
        return None if first is None else max(0.0, first - now)

    def first_rank(self, now: float) -> Rank | None:
        """Return the rank of the first that is due; None if none is, or there are no ranks."""
        if self.ready is None:
            first = self._first()
            return None if first is None or first > now else self.rank_of(first)
        if not self.ready.ranks:
            return None
        self._admit(self.ready, now)
        first = self.ready.first()
        self._skipped(self.ready)
        return None if first is None else self.rank_of(first)

    def rank_of(self, entry: Entry) -> Rank:
        """Return where an entry stands in the order of what is due."""
        if self.ready is None:
            return float(entry), -entry.priority, entry.version
        return self.ready.rank_of(entry)

    def coming(self, now: float) -> float | None:
        """Return the seconds until the next is due that is not yet; None if there is none."""
        if self.ready is not None:
            self._admit(self.ready, now)
        first = self._first()
        return None if first is None else max(0.0, first - now)

    def _first(self) -> Entry | None:
        """Return the first entry; what is stale before it is thrown away, its ties are set aside."""
        heap = self.heap
        while True:
            first = self._first_aside()
            if not heap:
                if first is not None or not self.later:
                    return first
                self.open()
                continue
            if first is not None and first < heap[0]:
                return first
            entry = heap[0]
            if entry.state != PENDING:
                heappop(heap)
                self.stale -= 1
            # If any other is equal to the top of a heap, so is one of the two below it.
            elif (first is not None and entry == first) or entry in heap[1:3]:
                self._set_aside([], entry)
            else:
                return entry

    def _first_aside(self) -> Entry | None:
        """Return the first of `front` and `run`."""
        front, run = self.front, self.run
        while run and run[-1].state != PENDING:
            run.pop()
            self.stale -= 1
        while front and front[0][3].state != PENDING:
            heappop(front)
            self.stale -= 1
        if not front:
            return run[-1] if run else None
        if run and item_of(run[-1]) < front[0]:
            return run[-1]
        return front[0][3]

    def _set_aside(self, found: list[Entry], time: float) -> None:
        """Move what is at a time, which is that of the top of `heap`, to `front`, or with all of that to `run`.

        Args:
            found: what was taken out of `heap` already.
            time: theirs.
        """
        heap, front, run = self.heap, self.front, self.run
        while heap and heap[0] == time:
            found.append(heappop(heap))
        if 4 * (len(front) + len(found)) <= len(run) + _FEW:
            for entry in found:
                heappush(front, item_of(entry))
            return
        found += run
        found += [item[3] for item in front]
        _put_in_order(found)
        front.clear()
        run[:] = found

    def open(self) -> None:
        """Make near what is earliest of `later`. Nothing else is near.

        So much of it that its price, which is to look at all that is later, is paid by what leaves it:
        all, or about half, and at least one in 2 * _SAMPLED.
        """
        later = self.later
        found, rest = [entry for entry in later if not entry.state] if self.stale else [*later], []
        self.stale -= len(later) - len(found)
        if len(found) <= SMALL // 2:
            heapify(found)
            self.edge, self.full = math.inf, SMALL
            self.heap[:] = found
        else:
            if len(found) > PIECE:
                sample = sorted(found[::_SAMPLED], key=float)
                middle = float(sample[len(sample) // 2])
                rest = [entry for entry in found if entry > middle]
                found = [entry for entry in found if entry <= middle]
            _put_in_order(found)
            self.edge, self.full = float(found[0]), max(SMALL, len(found) // 4)
            self.run[:] = found
        # Last: what goes now may have finalizers.
        later[:] = rest

    def spill(self) -> None:
        """Leave the earliest in `heap`, at most half of SMALL; all else that is near will be `later`.

        The owner has put more into `heap` than is `full`, so more than there are others, by a quarter.
        """
        near = [*self.heap, *(item[3] for item in self.front), *self.run]
        near.sort(key=float)
        kept = bisect_left(near, near[SMALL // 2])
        self.edge = float(near[kept - 1]) if kept else -math.inf
        self.full = SMALL
        self.front.clear()
        self.run.clear()
        self.later.extend(near[kept:])
        self.heap[:] = near[:kept]

    def _remove_first(self, first: Entry) -> None:
        """Take out what `_first` has returned."""
        if self.run and self.run[-1] is first:
            self.run.pop()
        elif self.front and self.front[0][3] is first:
            heappop(self.front)
        else:
            heappop(self.heap)

    def _admit(self, ready: ReadyQueue, now: float) -> None:
        # Since when is it due? Since its time; but what was scheduled for a time that had passed came
        # after the last look, or it would have been admitted then.
        while (first := self._first()) is not None and first <= now:
            self._remove_first(first)
            since = max(float(first), self._seen)
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
        self.margin = margin = max(len(self) - 2 * self.stale, 2 * (STALE_LEFT - self.stale))
        if margin >= 0:
            return
        live = [entry for entry in self.heap if not entry.state]  # PENDING
        heapify(live)
        front = [item for item in self.front if not item[3].state]
        heapify(front)
        run = [entry for entry in self.run if not entry.state]
        later = [entry for entry in self.later if not entry.state]
        if self.ready is not None:
            self.ready.purge()
        self.stale = self.margin = 0
        self.rebuilds += 1
        # Last: what goes now may have finalizers.
        self.front[:] = front
        self.run[:] = run
        self.later[:] = later
        self.heap[:] = live

    def put(self, entry: Entry) -> None:
        """Add an entry."""
        if entry > self.edge:
            self.later.append(entry)
        else:
            heappush(self.heap, entry)
            if len(self.heap) > self.full:
                self.spill()


def _put_in_order(entries: list[Entry]) -> None:
    """Sort in the whole order (TIMER-1), the first one last."""
    # Sorts compare keys of one type in C; and they are stable: the last word first, if it is asked for.
    entries.sort(key=float, reverse=True)
    if any(map(eq, entries, islice(entries, 1, None))):
        entries.sort(key=_version, reverse=True)
        entries.sort(key=_priority)
        entries.sort(key=float, reverse=True)
