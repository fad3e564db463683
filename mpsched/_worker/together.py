"""`join_all`: calls that become children together and are joined together. See README.md, "Fork-join".

As in `hot`, every line of the ordinary way was measured: a child takes two thirds of what it takes by `spawn` and
`join`, with the tuple that its call comes in.
"""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mpsched._tasks import failure
from mpsched._worker import away, hot, long
from mpsched._worker.hot import Handle
from mpsched._worker.scopes import abandon, ask_to_stop, is_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_stack: Final[deque[Any]] = hot.stack  # CPython 3.11 calls methods of imported names the slow way
_push: Final = _stack.append
_push_all: Final = _stack.extend

_kept: Final[dict[int, deque[list[Handle[Any]]]]] = {n: deque(maxlen=32) for n in range(1, 17)}
"""Lists of n handles, which mean nothing and are used again: to make and drop one takes as long as a call.

The stack has had them, from which `join_all` has popped them; as `below` children that have ended; nobody else.
"""

_not_kept: Final[deque[list[Handle[Any]]]] = deque(maxlen=0)


def join_all(*calls: Iterable[Any]) -> tuple[Any, ...]:
    """Run several calls, each `(function, *arguments)`, as children, and return their values in order.

    Raises:
        BaseException: The first failure in the order of the calls, when all have ended.
        TypeError: A call is not such a tuple.
    """
    if hot.careful:
        return _carefully(calls)
    kept = _kept.get(len(calls), _not_kept)
    try:
        handles = kept.pop()
    except IndexError:
        handles = [_blank() for _ in calls]
    good: object = None
    for h, call in zip(handles, calls):  # noqa: B905 - there are as many
        match call:
            case (fn, x):
                h._x = x
            case (fn, x, *rest):
                h._x, h._rest = x, tuple(rest)
            case _:
                return _carefully(calls)
        if fn is not good:
            if not callable(fn):
                return _carefully(calls)
            good = fn
        h._fn = fn
    below = away.newest()
    # The first one last: it is the newest then, and is called next, as in the sequential program.
    _push_all(reversed(handles))
    if hot.want[0]:
        hot.answer()
    values: list[Any] = []
    error = None
    for h in handles:
        try:
            top = _stack.pop()
            if top is not h:
                # The one before has left children open, or somebody has taken this one.
                _push(top)
                break
        except IndexError:  # the helper has the floor in its hand
            break
        fn = h._fn
        try:
            value = fn(h._x, *h._rest) if h._rest else fn(h._x)
        except BaseException as problem:
            error = problem
            break
        h._fn = h._x = None
        h._rest = ()
        values.append(value)
    else:
        try:
            clean = _stack[-1] is below
        except IndexError:  # as above; `leftover` looks with the lock
            clean = False
        if clean:
            kept.append(handles)
            return tuple(values)
    return _go_on(handles, values, error, below)


def _blank() -> Handle[Any]:
    h: Handle[Any] = Handle()
    h._fn, h._x, h._rest = None, None, ()
    return h


def _go_on(
    handles: list[Handle[Any]], values: list[Any], error: BaseException | None, below: object
) -> tuple[Any, ...]:
    """Go on after the first children, where something was in the way.

    Args:
        handles: Those of all children, in the order of the calls.
        values: What the first ones have returned. All but the last of them have left nothing open.
        error: What the next one has raised.
        below: The stack's newest entry before the children were pushed.
    """
    failures: dict[int, BaseException] = {}
    ended = len(values) + (error is not None)
    if ended:
        # What was the newest entry while the last of them ran.
        under = handles[ended] if ended < len(handles) else below
        if error is not None:
            failures[ended - 1] = away.ended_by(error, under)
        elif left := away.leftover(under):
            failures[ended - 1] = away.first_of(left)
    values += [None] * (len(handles) - len(values))
    _join(handles, range(ended, len(handles)), values, failures)
    return tuple(values)


def _carefully(calls: Sequence[Any]) -> tuple[Any, ...]:
    """Do what `join_all` does by a spawn and a join of each; outside a task, too."""
    plans: list[tuple[Any, ...]] = []
    for number, call in enumerate(calls):
        match call:
            case (fn, *arguments) if callable(fn):
                plans.append((fn, *arguments))
            case _:
                raise TypeError(
                    "join_all takes calls as tuples (function, *arguments), but argument "
                    f"{number} is {call!r}"
                )
    numbers = range(len(plans))
    if not hot.may_fork():
        handles = [hot.spawn(*plan) for plan in plans]
    elif long.streaming:  # a child's stream has the number of its spawn
        handles = [hot.spawn(*plan) for plan in plans]
        numbers = numbers[::-1]  # the newest first, so that the stack's end is looked at only
    else:
        handles = [hot.spawn(*plan) for plan in reversed(plans)]
        handles.reverse()
    values: list[Any] = [None] * len(handles)
    _join(handles, numbers, values, {})
    return tuple(values)


def _join(
    handles: Sequence[Handle[Any]],
    numbers: Sequence[int],
    values: list[Any],
    failures: dict[int, BaseException],
) -> None:
    """Join the handles with these numbers, and put their values into their places.

    Args:
        handles: All of them.
        numbers: Which, in which order.
        values: The places.
        failures: Those of others, by their numbers.

    Raises:
        BaseException: The first failure, if there is any.
    """
    for at, number in enumerate(numbers):
        if any(isinstance(problem, RecursionError) for problem in failures.values()):
            # Each of the others would run into the end of the stack, too, and what it calls again and again.
            others = [handles[other] for other in numbers[at:]]
            failures |= dict(enumerate(abandon(others), len(handles)))
            break
        try:
            values[number] = handles[number].join()
        except BaseException as problem:
            if is_interrupt(problem, handles[number]):
                ask_to_stop(handles)
                raise
            failures[number] = problem
    if failures:
        first, *siblings = [failures[number] for number in sorted(failures)]
        raise failure.with_siblings(first, siblings)
