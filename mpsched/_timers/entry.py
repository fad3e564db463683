"""The entry of a version: one list, which is the item in the heap and the record of its state.

A list, because it is compared in C, element by element, like a tuple, and can be emptied where it lies: a
cancelled entry stays in the heap as a shell. The first three elements decide every comparison
between versions (TIMER-1), so no id and no function is ever compared. They do not change while the
list lies in a heap.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, final

from mpsched._timers.due import Due, TimerStatus
from mpsched._timers.states import State

Entry: TypeAlias = list[Any]

# Where things are. `heap.py` spells the numbers of the hottest lines out in comments.
RUN_AT: Final = 0  # float, seconds on the caller's monotonic clock
NEGATED: Final = 1  # -priority
VERSION: Final = 2  # also the sequence: it rises with each submission
STATE: Final = 3  # states.PENDING ... states.MOVED
TASK_ID: Final = 4
FN: Final = 5  # these three are None once the version is final, or its item is stale
ARGS: Final = 6
KWARGS: Final = 7
EXTRA: Final = 8  # Extra, or None as long as there is nothing to say


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


def extra_of(entry: Entry) -> Extra:
    """Return the entry's extra, made if there is none."""
    extra: Extra | None = entry[EXTRA]
    if extra is None:
        extra = entry[EXTRA] = Extra()
    return extra


def set_time(entry: Entry, run_at: float) -> None:
    """Give an entry that lies in no heap another time; it has not been due since any."""
    entry[RUN_AT] = run_at
    if entry[EXTRA] is not None:
        entry[EXTRA].since = None


def attempt_of(entry: Entry) -> int:
    """Return which attempt the entry stands for."""
    extra: Extra | None = entry[EXTRA]
    return 1 if extra is None else extra.attempt


def due_of(entry: Entry) -> Due:
    """Return what is handed out for an entry."""
    run_at, negated, version, _, task_id, fn, args, kwargs, extra = entry
    return Due(
        task_id,
        version,
        run_at,
        -negated,
        version,
        fn,
        args,
        kwargs,
        1 if extra is None else extra.attempt,
    )


def drop(entry: Entry) -> None:
    """Let go of the function and its arguments.

    A finalizer of theirs may run here, and call the heap: callers do this last, when all is in order.
    """
    entry[FN] = entry[ARGS] = entry[KWARGS] = None


def status_of(entry: Entry, older: list[int]) -> TimerStatus:
    """Return what users are told of a version.

    Args:
        entry: the newest version of its id.
        older: the versions of its id that run beside it, oldest first.
    """
    run_at, negated, version, number, task_id, *_ = entry
    state = State(number)
    extra: Extra = entry[EXTRA] or Extra()
    ended = state not in {State.PENDING, State.CLAIMED, State.RUNNING}
    return TimerStatus(
        task_id=task_id,
        version=version,
        state=state.public,
        claimed=state is State.CLAIMED,
        run_at=run_at,
        priority=-negated,
        attempt=extra.attempt,
        paused=extra.paused,
        cancel_requested=extra.requested,
        outcome=None if not ended else "missed" if extra.missed else state.public,
        running=(*older, version) if state is State.RUNNING else tuple(older),
        deadline=extra.deadline,
        group=extra.group,
        at=extra.at,
    )
