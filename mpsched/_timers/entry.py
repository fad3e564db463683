"""The entry of a version: the item in the heap, which is its time, and the record of its state.

A float of a type of its own: a heap of floats is ordered in C, with one look at each, and a record can be
emptied where it lies: a cancelled entry stays in the heap as a shell. The time of an entry never changes
(TIMER-1): what moves becomes another entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, final

from mpsched._timers.due import Due, TimerStatus
from mpsched._timers.states import MOVED, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping


class _Stated(float):
    """The time and the state, side by side: slots lie in order of their names, those of a base before.

    So what a heap looks at while it goes through its items lies in one cache line of each.
    """

    __slots__ = ("state",)

    state: int


@final
class Entry(_Stated):
    """A version. Its value is `run_at`, in seconds on the caller's monotonic clock.

    As a float it is equal to others, and false at zero: entries are told apart with `is`, and from None.

    Attributes:
        priority: higher is earlier among equals.
        version: also the sequence: it rises with each submission.
        state: states.PENDING ... states.MOVED.
        task_id: the caller's id.
        fn: this, `args` and `kwargs` are None once the version is final, or its item is stale.
        args: see `fn`.
        kwargs: see `fn`.
        extra: Extra, or None as long as there is nothing to say.
    """

    __slots__ = ("args", "extra", "fn", "kwargs", "priority", "task_id", "version")

    priority: int
    version: int
    task_id: Hashable
    fn: Callable[..., Any] | None
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    extra: Extra | None

    def __repr__(self) -> str:
        state = "MOVED" if self.state == MOVED else State(self.state).name
        return f"<version {self.version} of {self.task_id!r}, {state}, at {float(self)!r}>"


@final
class Extra:
    """What few versions have; an object of its own, so that the others pay one word for it.

    Attributes:
        at: wall-clock seconds that `run_at` follows, or None.
        attempt: 1, and one more after each retry.
        deadline: the last moment at which it may start, or None.
        group: a name in the heap's groups, or None.
        missed: whether it failed because its deadline passed.
        paused: whether it waits for `resume`: then it lies in no heap.
        requested: whether it was asked to stop while it ran.
        since: when it became due, where waiting counts; kept when a claim is taken back.
        watched: whether its deadline lies in the heap of deadlines.
    """

    __slots__ = (
        "at",
        "attempt",
        "deadline",
        "group",
        "missed",
        "paused",
        "requested",
        "since",
        "watched",
    )

    def __init__(
        self, deadline: float | None = None, group: str | None = None, at: float | None = None
    ) -> None:
        self.at = at
        self.attempt = 1
        self.deadline = deadline
        self.group = group
        self.missed = False
        self.paused = False
        self.requested = False
        self.since: float | None = None
        self.watched = False


# The whole order (TIMER-1), for where times are equal: (run_at, -priority, version, the entry).
Item: TypeAlias = tuple[float, float, int, Entry]


def item_of(entry: Entry) -> Item:
    """Return an item that is ordered among those of the same time."""
    return entry, -entry.priority, entry.version, entry


def extra_of(entry: Entry) -> Extra:
    """Return the entry's extra, made if there is none."""
    extra = entry.extra
    if extra is None:
        extra = entry.extra = Extra()
    return extra


def copy_of(entry: Entry, run_at: float) -> Entry:
    """Return another entry for the same version, at a time of its own."""
    copy = Entry(run_at)
    copy.priority = entry.priority
    copy.version = entry.version
    copy.state = entry.state
    copy.task_id = entry.task_id
    copy.fn = entry.fn
    copy.args = entry.args
    copy.kwargs = entry.kwargs
    copy.extra = entry.extra
    return copy


def attempt_of(entry: Entry) -> int:
    """Return which attempt the entry stands for."""
    extra = entry.extra
    return 1 if extra is None else extra.attempt


def due_of(entry: Entry) -> Due:
    """Return what is handed out for an entry."""
    assert entry.fn is not None
    assert entry.args is not None
    return Due(
        entry.task_id,
        entry.version,
        float(entry),
        entry.priority,
        entry.version,
        entry.fn,
        entry.args,
        entry.kwargs,
        attempt_of(entry),
    )


def drop(entry: Entry) -> None:
    """Let go of the function and its arguments.

    A finalizer of theirs may run here, and call the heap: callers do this last, when all is in order.
    """
    entry.fn = entry.args = entry.kwargs = None


def status_of(entry: Entry, older: list[int]) -> TimerStatus:
    """Return what users are told of a version.

    Args:
        entry: the newest version of its id.
        older: the versions of its id that run beside it, oldest first.
    """
    state, version = State(entry.state), entry.version
    extra = entry.extra or Extra()
    ended = state not in {State.PENDING, State.CLAIMED, State.RUNNING}
    return TimerStatus(
        task_id=entry.task_id,
        version=version,
        state=state.public,
        claimed=state is State.CLAIMED,
        run_at=float(entry),
        priority=entry.priority,
        attempt=extra.attempt,
        paused=extra.paused,
        cancel_requested=extra.requested,
        outcome=None if not ended else "missed" if extra.missed else state.public,
        running=(*older, version) if state is State.RUNNING else tuple(older),
        deadline=extra.deadline,
        group=extra.group,
        at=extra.at,
    )
