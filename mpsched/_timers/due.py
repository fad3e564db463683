"""What the heap hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mpsched._base.cancelresult import CancelResult

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

__all__ = ["CancelResult", "Due", "HeapMetrics", "TimerStatus", "Wait"]


class Due(NamedTuple):
    """One attempt of a version, taken out of the heap to be run.

    Attributes:
        task_id: the caller's id.
        version: which of the versions of that id; rises over all ids.
        run_at: when it was due, in seconds on the heap's monotonic clock.
        priority: higher runs first.
        sequence: its place among those equal in time and priority; earlier submissions have lower ones.
        fn: what was given as `fn`.
        args: what was given as `args`.
        kwargs: what was given as `kwargs`.
        attempt: 1, and one more after each retry.
    """

    task_id: Hashable
    version: int
    run_at: float
    priority: int
    sequence: int
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    attempt: int = 1


class Wait(NamedTuple):
    """Nothing is due yet.

    Attributes:
        seconds: until something is, or a deadline passes; at least 0. A hint: what is scheduled
            meanwhile may be due earlier.
    """

    seconds: float


class TimerStatus(NamedTuple):
    """What is known about an id: of its newest version, and of older ones that still run.

    Attributes:
        task_id: the id.
        version: its newest version.
        state: "pending", "running", "completed", "failed" or "cancelled".
        claimed: whether it is dispatched but has not started (its state is "pending").
        run_at: when it is or was due, in seconds on the heap's monotonic clock.
        priority: higher runs first.
        attempt: 1, and one more after each retry.
        paused: whether it waits for `resume` and not for a time.
        cancel_requested: whether it was asked to stop while it ran.
        outcome: how it ended: "completed", "failed", "cancelled", "missed"; None while it has not.
        running: versions of this id that run now, oldest first; more than one if it was replaced
            while it ran.
        deadline: the last moment at which it may start, or None.
        group: its group, or None.
        at: the wall-clock time that it follows, in seconds since 1970, or None.
    """

    task_id: Hashable
    version: int
    state: str
    claimed: bool
    run_at: float
    priority: int
    attempt: int
    paused: bool
    cancel_requested: bool
    outcome: str | None
    running: tuple[int, ...]
    deadline: float | None
    group: str | None
    at: float | None


class HeapMetrics(NamedTuple):
    """How large a heap is at the moment.

    Attributes:
        live: versions that are pending, paused ones among them; `len(heap)`.
        entries: items in the heaps, stale ones among them.
        stale: items of versions that were cancelled, replaced or moved.
        stale_ratio: `stale / entries`; 0.0 if there are none.
        rebuilds: how often the stale ones were swept out, since the heap was made.
        claimed: versions that are dispatched and have not started.
        running: versions that run.
        paused: pending versions that wait for `resume`.
        remembered: ids whose end is still known.
    """

    live: int
    entries: int
    stale: int
    stale_ratio: float
    rebuilds: int
    claimed: int
    running: int
    paused: int
    remembered: int
