"""The state of a scheduler in numbers."""

from __future__ import annotations

from typing import NamedTuple

from mpsched._schedule.history import BOUNDS_S


class SchedulerMetrics(NamedTuple):
    """A picture of one moment, and counts since the scheduler was made.

    Attributes:
        pending: versions that wait for their time, or for their turn.
        ready: those of them that are due.
        dispatched: handed to the pool or to a thread, not known to have started.
        running: known to run.
        oldest_ready: seconds for which the first of the ready ones is due; 0.0 if none is.
        entries: items in the heaps, stale ones (cancelled, replaced) too.
        stale_ratio: share of them that is stale.
        rebuilds: how often stale ones were swept out.
        peak_active: workers that ran attempts at once, at most, in the history that is kept.
        clock_jumps: how often the wall clock was seen to jump.
        outcomes: records by outcome.
        lateness: attempts by how late they started; as many as `lateness_bounds`, and one more.
        lateness_bounds: upper bound of each class, in seconds.
    """

    pending: int
    ready: int
    dispatched: int
    running: int
    oldest_ready: float
    entries: int
    stale_ratio: float
    rebuilds: int
    peak_active: int
    clock_jumps: int
    outcomes: dict[str, int]
    lateness: tuple[int, ...]
    lateness_bounds: tuple[float, ...] = BOUNDS_S

    def lateness_below(self, share: float) -> float:
        """Return a lateness in seconds that at least `share` (0 to 1) of the attempts did not exceed.

        Right to a factor of two: the bound of a class. 0.0 if nothing has started, infinity for the last
        class.
        """
        wanted = share * sum(self.lateness)
        seen = 0
        for count, bound in zip(self.lateness, (*self.lateness_bounds, float("inf")), strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0
