"""In which order what is due is handed out, where that is not the order of time.

See README.md, "Orders". The timer heap sorts by (run_at, -priority, version). Where priority comes first, or
groups share what there is, what has become due is moved from it into one of these queues.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from mpsched._timers.entry import Entry, Item, item_of
from mpsched._timers.states import PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Rank: TypeAlias = tuple[float, float, int]
"""Where a version stands in an order; lower is earlier."""


class ReadyQueue(Protocol):
    """What is due, in order.

    Attributes:
        ages: whether it matters since when an entry is due.
        ranks: whether what is due has an order that does not depend on what was taken before.
        skipped: stale entries that `pop` and `first` have thrown away; the caller sets it back to 0.
    """

    ages: bool
    ranks: bool
    skipped: int

    def admit(self, entry: Entry, since: float) -> None:
        """Add an entry that is due `since` then (seconds on the heap's clock)."""

    def rank_of(self, entry: Entry) -> Rank:
        """Return where an entry stands that was admitted, if there are ranks."""

    def first(self) -> Entry | None:
        """Return the first live entry without taking it."""

    def pop(self) -> Entry | None:
        """Take the first live entry."""

    def purge(self) -> None:
        """Throw all stale entries away, in one pass."""

    def entries(self) -> list[Entry]:
        """Return what is in it, stale ones too, in no order."""

    def __len__(self) -> int: ...


class _ByKey:
    """A heap of (three that decide, entry); versions differ, so entries are not compared."""

    __slots__ = ("_heap", "ages", "ranks", "skipped")

    def __init__(self) -> None:
        self.ages = False
        self.ranks = True
        self._heap: list[Item] = []
        self.skipped = 0

    def first(self) -> Entry | None:
        heap = self._heap
        while heap:
            entry = heap[0][3]
            if entry.state == PENDING:
                return entry
            heappop(heap)
            self.skipped += 1
        return None

    def pop(self) -> Entry | None:
        return None if self.first() is None else heappop(self._heap)[3]

    def purge(self) -> None:
        self._heap = [item for item in self._heap if item[3].state == PENDING]
        heapify(self._heap)
        self.skipped = 0

    def entries(self) -> list[Entry]:
        return [item[3] for item in self._heap]

    def __len__(self) -> int:
        return len(self._heap)


@final
class ByTime(_ByKey):
    """The heap's own order, for what is due: the queue of a group."""

    __slots__ = ()

    def admit(self, entry: Entry, since: float) -> None:
        heappush(self._heap, item_of(entry))

    def rank_of(self, entry: Entry) -> Rank:
        return float(entry), -entry.priority, entry.version


@final
class ByPriority(_ByKey):
    """Highest priority first; with aging, a priority that grows while its owner waits.

    The grown priority at time t is `priority + aging * (t - since)`. Its order does not depend on t, so
    `-priority + aging * since` is a key that never changes, and nothing is sorted again.
    """

    __slots__ = ("_aging",)

    def __init__(self, aging: float = 0.0) -> None:
        super().__init__()
        self._aging = aging
        self.ages = aging > 0

    def admit(self, entry: Entry, since: float) -> None:
        heappush(self._heap, (self._key(entry, since), entry, entry.version, entry))

    def rank_of(self, entry: Entry) -> Rank:
        extra = entry.extra
        since = None if extra is None else extra.since
        return self._key(entry, 0.0 if since is None else since), float(entry), entry.version

    def _key(self, entry: Entry, since: float) -> float:
        key: float = -entry.priority
        if self._aging:
            try:
                key += self._aging * since
            except OverflowError:  # an int that no float can hold: no wait makes up for that
                key = math.inf if key > 0 else -math.inf
        return key


@final
class _Group:
    __slots__ = ("passed", "queue", "step")

    def __init__(self, weight: float, queue: ReadyQueue) -> None:
        self.step: Final = 1.0 / weight
        self.passed = 0.0  # how far it has come, in starts divided by weight
        self.queue: Final = queue


@final
class ByGroup:
    """Groups in turn, each as often as its weight says; within a group, the order of its queue.

    A group has come `starts / weight` far. The one that is least far is next. A group that had nothing
    due joins where the others are: it saves up nothing while it is idle.
    """

    __slots__ = ("_groups", "_turn", "ages", "ranks", "skipped")

    def __init__(
        self, weights: Mapping[str | None, float], queue: Callable[[], ReadyQueue]
    ) -> None:
        self._groups = {name: _Group(weight, queue()) for name, weight in weights.items()}
        self.ages = any(group.queue.ages for group in self._groups.values())
        self.ranks = False
        self._turn = 0.0  # where the group that started last stood before that start
        self.skipped = 0

    def admit(self, entry: Entry, since: float) -> None:
        extra = entry.extra
        group = self._groups[None if extra is None else extra.group]
        if self._first_of(group) is None and group.passed < self._turn:
            group.passed = self._turn
        group.queue.admit(entry, since)

    def rank_of(self, entry: Entry) -> Rank:
        raise NotImplementedError("what comes first depends on whose turn it is")

    def _first_of(self, group: _Group) -> Entry | None:
        entry = group.queue.first()
        self.skipped += group.queue.skipped
        group.queue.skipped = 0
        return entry

    def _next(self) -> _Group | None:
        # Few groups: a look at each is cheaper than a heap that must follow what becomes empty.
        found: _Group | None = None
        for group in self._groups.values():
            if (found is None or group.passed < found.passed) and (
                self._first_of(group) is not None
            ):
                found = group
        return found

    def first(self) -> Entry | None:
        group = self._next()
        return None if group is None else self._first_of(group)

    def pop(self) -> Entry | None:
        group = self._next()
        if group is None:
            return None
        self._turn = group.passed
        group.passed += group.step
        return group.queue.pop()

    def purge(self) -> None:
        for group in self._groups.values():
            group.queue.purge()
        self.skipped = 0

    def entries(self) -> list[Entry]:
        return [entry for group in self._groups.values() for entry in group.queue.entries()]

    def __len__(self) -> int:
        return sum(len(group.queue) for group in self._groups.values())


def make(ready_order: str, aging: float, groups: Mapping[str, float] | None) -> ReadyQueue | None:
    """Return the queue for what is due, or None: the heap's own order will do.

    Args:
        ready_order: "run_at" or "priority".
        aging: points of priority that a due task gains per second.
        groups: weights by name; what names no group is in one of weight 1.

    Raises:
        TypeError: A weight or `aging` is no number, or a group's name no text.
        ValueError: An unknown order, a negative aging, one without priority first, or a weight that
            is not positive.
    """
    if ready_order not in {"run_at", "priority"}:
        raise ValueError(f'ready_order must be "run_at" or "priority", not {ready_order!r}')
    aging = _number("aging", aging)
    if aging < 0:
        raise ValueError(f"aging must be at least 0 points per second, not {aging!r}")
    by_priority = ready_order == "priority"
    if aging and not by_priority:
        raise ValueError(
            f'aging={aging!r} means nothing with ready_order="run_at", where priority only breaks ties '
            'between equal times: use ready_order="priority", or leave aging out'
        )
    if groups is None:
        return ByPriority(aging) if by_priority else None
    weights: dict[str | None, float] = {None: 1.0}
    for name, weight in groups.items():
        if not isinstance(name, str):
            raise TypeError(f"a group's name must be a str, not {name!r}")
        weights[name] = _number(f"the weight of group {name!r}", weight)
        if weights[name] <= 0:
            raise ValueError(f"the weight of group {name!r} must be above 0, not {weight!r}")
    return ByGroup(weights, lambda: ByPriority(aging) if by_priority else ByTime())


def _number(what: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, not {value!r}")
    return float(value)
