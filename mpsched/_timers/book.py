"""The registers of a timer heap, and the steps that its operations share.

See README.md, "Registers". `heap.py` has the operations.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from mpsched._timers.deadlines import Deadlines
from mpsched._timers.due import CancelResult, Due, HeapMetrics, TimerStatus, Wait
from mpsched._timers.ends import Ends
from mpsched._timers.entry import Entry, Extra, copy_of, drop, due_of, extra_of, item_of, status_of
from mpsched._timers.instants import finite, not_nan
from mpsched._timers.lazyqueue import STALE_LEFT, LazyQueue
from mpsched._timers.states import (
    CANCELLED,
    CLAIMED,
    FAILED,
    MOVED,
    PENDING,
    RUNNING,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mpsched._timers.order import Rank, ReadyQueue


class TimerBook:
    """Which versions there are, where each lies, and how each leaves."""

    __slots__ = (
        "_claims",
        "_current",
        "_deadlines",
        "_ends",
        "_front",
        "_groups",
        "_heap",
        "_later",
        "_limit",
        "_number",
        "_on_drop",
        "_overdue",
        "_paused",
        "_plain",
        "_queue",
        "_replaced",
        "_run",
        "_walls",
    )

    _groups: frozenset[str] | None
    _limit: int | None
    _number: Callable[[], int]
    _on_drop: Callable[[Due, str], None] | None
    _plain: bool  # no ready queue, and no deadline so far: what is due is on top of the heap

    def __init__(self, ready: ReadyQueue | None, remember: int) -> None:
        self._queue = LazyQueue(ready)
        self._heap = self._queue.heap
        self._front = self._queue.front
        self._run = self._queue.run
        self._later = self._queue.later
        # The newest version of each id as long as it is not final.
        self._current: dict[Hashable, Entry] = {}
        self._ends = Ends(remember)
        self._claims = 0  # how many are CLAIMED
        # By id: RUNNING versions that are not the newest any more, oldest first.
        self._replaced: dict[Hashable, list[Entry]] = {}
        self._paused = 0
        self._deadlines = Deadlines(self._current)
        self._overdue: dict[int, Entry] = {}  # CLAIMED past their deadline, not reported yet
        self._walls: dict[int, Hashable] = {}  # PENDING versions that follow the wall clock

    # --- looking -----------------------------------------------------------------------------------

    def status(self, task_id: Hashable) -> TimerStatus | None:
        """Tell what is known of an id; None if it was never seen, or is forgotten."""
        entry = self._known(task_id)
        if entry is None:
            return None
        return status_of(entry, [one.version for one in self._replaced.get(task_id, ())])

    def state_of(self, due: Due) -> State | None:
        """Tell where the version of `due` stands; None if it is over and not the newest, or forgotten."""
        entry = self._entry_of(due)
        if entry is None:
            entry = self._known(due.task_id)
        if entry is None or entry.version != due.version:
            return None
        return State(entry.state)

    def first_rank(self, now: float, until: float | None = None) -> Rank | None:
        """Return where the first that is due stands in the order; None if none is, or groups take turns.

        With `until`, the first that will be due by then; not where priority or turns come first.
        """
        self._miss(now)
        return self._queue.first_rank(now if until is None else until)

    def rank_of(self, due: Due) -> Rank:
        """Return where a claimed version stands in the order: lower is earlier. Not with groups."""
        entry = self._entry_of(due)
        assert entry is not None
        return self._queue.rank_of(entry)

    def coming(self, now: float) -> Wait | None:
        """Tell how long until the next version is due that is not yet, whatever else is due or missed."""
        seconds = self._queue.coming(now)
        return None if seconds is None else Wait(seconds)

    def peek(self, now: float) -> Wait | None:
        """Tell how long until something is due (0.0: something is), or None if nothing waits for a time."""
        not_nan(now)
        self._miss(now)
        return self._wait(now)

    def expire(self, now: float) -> list[Due]:
        """End what is pending past its deadline: it failed, as missed (`on_drop` is told).

        Returns:
            What is claimed past its deadline, each once: the caller takes it back, and finishes it as
            "missed" if it has not started.
        """
        not_nan(now)
        self._miss(now)
        overdue, self._overdue = self._overdue, {}
        return [due_of(entry) for entry in overdue.values()]

    @property
    def walls(self) -> int:
        """How many pending versions follow the wall clock."""
        return len(self._walls)

    def __len__(self) -> int:
        """Count what is pending, paused versions too; not what is claimed or runs."""
        return len(self._queue) - self._queue.stale + self._paused

    def metrics(self) -> HeapMetrics:
        """Count what is in the heap. O(1), but for what was replaced and runs, and what is remembered."""
        entries, stale = len(self._queue), self._queue.stale
        pending, claimed = len(self), self._claims
        replaced = sum(len(ones) for ones in self._replaced.values())
        return HeapMetrics(
            live=pending,
            entries=entries,
            stale=stale,
            stale_ratio=stale / entries if entries else 0.0,
            rebuilds=self._queue.rebuilds,
            claimed=claimed,
            running=len(self._current) - pending - claimed + replaced,
            paused=self._paused,
            remembered=len(self._ends),
        )

    def check_invariants(self) -> None:
        """Look at every entry.

        Raises:
            AssertionError: One of TIMER-1 to TIMER-7 does not hold; with the values.

        Complexity:
            O(n).
        """
        queue = self._queue
        front = [item[3] for item in queue.front]
        items = [
            *queue.heap,
            *front,
            *queue.run,
            *queue.later,
            *([] if queue.ready is None else queue.ready.entries()),
        ]
        for at in range(1, len(queue.heap)):
            above, below = queue.heap[(at - 1) >> 1], queue.heap[at]
            assert above <= below, f"TIMER-1: {above!r} lies above {below!r}"
        for at in range(1, len(front)):
            above, below = front[(at - 1) >> 1], front[at]
            assert item_of(above) <= item_of(below), f"TIMER-1: {above!r} lies above {below!r}"
        for above, below in itertools.pairwise(reversed(queue.run)):
            assert item_of(above) <= item_of(below), f"TIMER-1: {above!r} lies before {below!r}"
        for near in (*queue.heap, *front, *queue.run):
            assert near <= queue.edge, f"TIMER-8: {near!r} is near, and after {queue.edge}"
        for later in queue.later:
            assert later > queue.edge, f"TIMER-8: {later!r} is later, and not after {queue.edge}"
        assert len(queue.heap) <= queue.full, (
            f"TIMER-8: {len(queue.heap)} of {queue.full} in the heap"
        )
        alive = [entry for entry in items if entry.state == PENDING]
        assert queue.stale == len(items) - len(alive), (
            f"TIMER-5: {queue.stale} counted as stale, {len(alive)} of {len(items)} are alive"
        )
        assert queue.stale <= max(STALE_LEFT, len(items) // 2), (
            f"TIMER-5: {queue.stale} of {len(items)} are stale"
        )
        for entry in items:
            assert entry.state != PENDING or self._current[entry.task_id] is entry, (
                f"TIMER-2: {entry!r} is not the newest of its id"
            )
            held = (entry.fn, entry.args, entry.kwargs)
            assert entry.state == PENDING or held == (None, None, None), f"TIMER-4: {entry!r}"
        waits = [one for one in self._current.values() if one.state == PENDING]
        paused = [one for one in waits if one.extra is not None and one.extra.paused]
        assert len(paused) == self._paused, f"{len(paused)} paused, counted {self._paused}"
        assert len(waits) == len(alive) + len(paused) == len(self), (
            f"TIMER-3: {len(waits)} pending, {len(alive)} in the queue, {len(paused)} paused"
        )
        claims = sum(one.state == CLAIMED for one in self._current.values())
        assert claims == self._claims, f"TIMER-3: {claims} claimed, counted {self._claims}"
        for task_id, entry in self._current.items():
            assert entry.task_id == task_id, f"TIMER-2: {entry!r} is registered as {task_id!r}"
            assert entry.state <= RUNNING, f"TIMER-2: {entry!r} is final, and current"
        for task_id, ones in self._replaced.items():
            assert ones, f"TIMER-2: nothing of {task_id!r} was replaced"
            for entry in ones:
                assert entry.task_id == task_id, f"TIMER-2: {entry!r} is registered as {task_id!r}"
                assert entry.state == RUNNING, f"TIMER-2: {entry!r} was replaced"
                assert self._current.get(task_id) is not entry, f"TIMER-2: {entry!r} is the newest"
        followers = {one.version for one in waits if one.extra and one.extra.at is not None}
        assert followers == self._walls.keys(), f"TIMER-7: {followers} against {self._walls}"

    def repair(self) -> None:
        """Put everything in order after an exception, KeyboardInterrupt say, came out of a call.

        It happened, or it did not: the entries' states tell. `on_drop` may not have been told of a
        version that the call ended. May be called again if it is interrupted itself.

        Complexity:
            O(n log n).
        """
        from mpsched._timers.repair import repair

        repair(self)

    # --- steps -------------------------------------------------------------------------------------

    def _extra_for(self, deadline: float | None, group: str | None, at: float | None) -> Extra:
        if deadline is not None:
            deadline = finite("deadline", deadline)
        if at is not None:
            at = finite("at", at)
        if group is not None and (self._groups is None or group not in self._groups):
            known = ", ".join(sorted(self._groups)) if self._groups else "none"
            raise ValueError(f"no group {group!r}: give its weight in groups= (known: {known})")
        return Extra(deadline, group, at)

    def _refuse_more(self, task_id: Hashable, limit: int) -> None:
        if len(self) >= limit:
            # Its base class loads `queue`, and its neighbours `concurrent.futures`.
            from mpsched.errors import PendingLimitReached

            raise PendingLimitReached(
                f"{task_id!r} would be one more than the {limit} tasks that may be pending "
                "(max_pending): cancel some, or wait until some are run",
                limit=limit,
            )

    def _enlist(self, entry: Entry, extra: Extra) -> None:
        """Have an entry's deadline and wall-clock time looked after. Twice does no harm."""
        if extra.deadline is not None:
            self._plain = False
            self._deadlines.add(entry)
        if extra.at is not None:
            self._walls[entry.version] = entry.task_id

    def _follow(self, entry: Entry, at: float | None) -> None:
        """Have a pending entry follow the wall clock, or not (None)."""
        if at is not None:
            extra_of(entry).at = at
            self._walls[entry.version] = entry.task_id
        elif self._walls.pop(entry.version, None) is not None:
            extra_of(entry).at = None

    def _known(self, task_id: Hashable) -> Entry | None:
        """Return the newest version of an id, or its last end."""
        entry = self._current.get(task_id)
        return entry if entry is not None else self._ends.get(task_id)

    def _entry_of(self, due: Due) -> Entry | None:
        """Return the entry of what was handed out; None if it is over, or waits again."""
        if type(due) is not Due:
            raise TypeError(f"this takes what next or claim has handed out (a Due), not {due!r}")
        entry = self._current.get(due.task_id)
        if entry is not None and entry.version == due.version:
            return entry if entry.state else None  # not PENDING
        for one in self._replaced.get(due.task_id, ()):
            if one.version == due.version:
                return one
        return None

    def _pending(self, task_id: Hashable) -> Entry | None:
        entry = self._current.get(task_id)
        return entry if entry is not None and entry.state == PENDING else None

    def _at_time(self, entry: Entry, run_at: float) -> Entry:
        """Return another entry for the newest version of an id, which stands for it now."""
        moved = self._current[entry.task_id] = copy_of(entry, run_at)
        return moved

    def _set_time(self, entry: Entry, run_at: float) -> Entry:
        """As `_at_time`, for one that lies in no heap; it has not been due since any time."""
        if entry.extra is not None:
            entry.extra.since = None
        return self._at_time(entry, run_at)

    def _taken_out(self, entry: Entry) -> Entry:
        """Leave a shell of a pending entry in its heap; return the entry, as an object of its own."""
        if entry.extra is not None and entry.extra.paused:
            return entry
        moved = self._at_time(entry, entry)
        entry.state = MOVED
        entry.extra = None
        drop(entry)  # the copy has it all: nothing is freed here
        self._queue.stale += 1
        return moved

    def _put_in(self, entry: Entry) -> None:
        """Put what `_taken_out` returned back, unless it is paused."""
        if entry.extra is None or not entry.extra.paused:
            self._queue.put(entry)
        self._queue.sweep()

    def _first_due(self, now: float) -> Entry | None:
        self._miss(now)
        return self._queue.take(now)

    def _claimed(self, entry: Entry) -> Due:
        entry.state = CLAIMED
        self._claims += 1
        if self._walls:
            self._walls.pop(entry.version, None)
        return due_of(entry)

    def _wait(self, now: float) -> Wait | None:
        seconds = self._queue.wait(now)
        if self._deadlines:
            deadline = self._deadlines.first()
            if deadline is not None:
                left = max(0.0, deadline - now)
                seconds = left if seconds is None else min(seconds, left)
        return None if seconds is None else Wait(seconds)

    def _miss(self, now: float) -> None:
        while self._deadlines and (entry := self._deadlines.passed(now)) is not None:
            if entry.state == CLAIMED:
                self._overdue[entry.version] = entry
            else:
                extra_of(entry).missed = True
                self._never(entry, FAILED, "missed")

    def _never(self, entry: Entry, end: int, why: str) -> None:
        """End a version that is pending or claimed, and never starts now."""
        version, task_id, extra = entry.version, entry.task_id, entry.extra
        if entry.state == CLAIMED:
            self._claims -= 1
            self._overdue.pop(version, None)
        elif extra is not None and extra.paused:
            self._paused -= 1
        else:
            self._queue.stale += 1
        entry.state = end
        if self._walls:
            self._walls.pop(version, None)
        if self._current.get(task_id) is entry:
            del self._current[task_id]
            self._ends.put(task_id, entry)
        self._queue.sweep()
        if self._on_drop is not None:
            self._on_drop(due_of(entry), why)
        drop(entry)

    def _not_running(self, task_id: Hashable, entry: Entry) -> None:
        left = [one for one in self._replaced[task_id] if one is not entry]
        if left:
            self._replaced[task_id] = left
        else:
            del self._replaced[task_id]

    def _cancel(self, task_id: Hashable, version: int | None) -> CancelResult:
        entry = self._current.get(task_id)
        if entry is not None and version in {None, entry.version}:
            if entry.state == RUNNING:
                extra_of(entry).requested = True
                return CancelResult.REQUESTED
            self._never(entry, CANCELLED, "cancelled")
            return CancelResult.PREVENTED
        asked = [one for one in self._replaced.get(task_id, ()) if version in {None, one.version}]
        for one in asked:
            extra_of(one).requested = True
        if asked:
            return CancelResult.REQUESTED
        known = entry if entry is not None else self._ends.get(task_id)
        if known is None or (version is not None and version > known.version):
            return CancelResult.UNKNOWN
        return CancelResult.TOO_LATE
