"""Loops that split themselves: `for_each`, `map`, `reduce`, `map_reduce`, and `sort`.

A range or sequence is worked through from its low end, in blocks of about a tenth of a millisecond.
When somebody is idle, between two blocks, the far half of what is left is given away, as a child that
does the same. So there is nothing to choose: with one worker it costs what the loop costs, and no
core is idle while there is a half to give. What comes out is in the order of the items.
"""

from __future__ import annotations

import functools
import operator
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from mpsched import forkjoin
from mpsched._tasks.failure import with_siblings
from mpsched._worker import hot, scopes, streams
from mpsched._worker.context import current_task
from mpsched.sorting import sort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched.forkjoin import Handle

__all__ = ["for_each", "map", "map_reduce", "reduce", "sort"]

T = TypeVar("T")
R = TypeVar("R")

_BLOCK_NS: Final = 100_000
"""How long a block is to take. Shorter: more for looking around. Longer: an idle worker waits longer,
and somebody who asked the loop to stop."""

_COARSE_NS: Final = 200_000
"""Items that take as long as this are spawned by halves at once, and not when somebody asks: an item
may take seconds, and then the halves can be had from the stack meanwhile."""

_NOTES_MOST: Final = 20
"""Loops in loops each note their index; at the end of the stack those were thousands."""

_GROWTH: Final = 8  # at most so many times the block before

_NOTHING: Final = hot.NOTHING


class _Loop:
    """One kind of loop over items, and the child that runs a part of it.

    It is the children's function itself, so that what is known about functions (which cannot be
    pickled, which change their arguments) is known of this loop and not of all.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise TypeError(f"the first argument must be a function, not {fn!r:.100}")
        self.fn = fn
        self.key: str | None = None  # of the random streams of its items, if they have some
        # As errors and warnings call it.
        self.__qualname__ = f"parallel.{self.name}({_name_of(fn)})"

    name = ""

    def start(self) -> Any:
        """Return the result of no items, or NOTHING where there is none."""
        return None

    def block(self, state: Any, items: Iterator[Any]) -> Any:
        """Go on with some items; return the result so far."""
        raise NotImplementedError

    def merge(self, state: Any, later: Any) -> Any:
        """Join the results of two neighbouring parts."""
        raise NotImplementedError

    def __call__(self, items: Any, grain: int | None, first: int, state: Any = _NOTHING) -> Any:
        """Work through a part whose first item has the index `first`; return its result."""
        if state is _NOTHING:
            state = self.start()
        work = self._split if hot.may_fork() else self._alone
        task = streams.of_caller()
        if task is None:
            return work(items, grain, first, state)
        if self.key is None:
            self.key = streams.next_key(task)
        # Else each half that somebody takes would be one of the task's own numbered children.
        with streams.apart(task):
            return work(items, grain, first, state)

    def _alone(self, items: Any, _grain: int | None, first: int, state: Any) -> Any:
        """Work through a part of which nobody can have a half."""
        return self._part(state, items, first)

    def _split(self, items: Any, grain: int | None, first: int, state: Any) -> Any:
        """Work through a part of which others may want halves."""
        low = grain or 1
        at, end = 0, len(items)
        size, coarse = low, False
        want = hot.want
        task = current_task()
        halves: list[Handle[Any]] = []
        try:
            while True:
                # The first half at once: while an item runs, nobody else can split.
                if (want[0] or coarse or not halves) and end - at >= 2 * low:
                    middle = end - (end - at) // 2
                    halves.append(hot.spawn(self, items[middle:end], grain, first + middle))
                    end = middle
                    continue
                if at >= end:
                    break
                until = min(at + size, end)
                begun = time.perf_counter_ns()
                state = self._part(state, items[at:until], first + at)
                took = time.perf_counter_ns() - begun
                if grain is None:
                    coarse = took > _COARSE_NS * (until - at)
                    if took < _BLOCK_NS // 2:
                        size = min(size * _BLOCK_NS // (took or 1), size * _GROWTH)
                    elif took > _BLOCK_NS * 2:
                        size = max(size // 2, 1)
                at = until
                if task is not None and at < end:
                    task.raise_if_cancelled()
            while halves:
                # The nearest one: its indices follow.
                state = self.merge(state, halves.pop().join())
        except BaseException as problem:
            # Lower indices than all that is left: this error is the one to raise.
            with_siblings(problem, scopes.abandon(halves[::-1]))
            raise
        return state

    def _part(self, state: Any, items: Any, first: int) -> Any:
        ahead = iter(items)
        try:
            if self.key is None:
                return self.block(state, ahead)
            for item in streams.each(ahead, self.key, first):
                state = self.block(state, iter((item,)))
            return state
        except BaseException as problem:
            left = operator.length_hint(ahead, -1)
            notes = getattr(problem, "__notes__", ())
            enough = isinstance(notes, list) and len(notes) >= _NOTES_MOST
            if left >= 0 and hasattr(problem, "add_note") and not enough:
                problem.add_note(f"index {first + len(items) - left - 1} of {self.__qualname__}")
            raise


@final
class _ForEach(_Loop):
    name = "for_each"

    def block(self, _state: Any, items: Iterator[Any]) -> Any:
        fn = self.fn
        for item in items:
            fn(item)

    def merge(self, _state: Any, _later: Any) -> Any:
        return None


@final
class _Map(_Loop):
    name = "map"

    def start(self) -> Any:
        return []

    def block(self, state: Any, items: Iterator[Any]) -> Any:
        fn = self.fn
        # Not `map`: a StopIteration of the function would end it in silence.
        state += [fn(item) for item in items]
        return state

    def merge(self, state: Any, later: Any) -> Any:
        state += later
        return state


@final
class _Reduce(_Loop):
    name = "reduce"

    def start(self) -> Any:
        return _NOTHING

    def block(self, state: Any, items: Iterator[Any]) -> Any:
        if state is _NOTHING:
            return functools.reduce(self.fn, items)
        return functools.reduce(self.fn, items, state)

    def merge(self, state: Any, later: Any) -> Any:
        return self.fn(state, later)


@final
class _MapReduce(_Loop):
    name = "map_reduce"

    def __init__(self, fn: Callable[..., Any], combine: Callable[[Any, Any], Any]) -> None:
        super().__init__(fn)
        if not callable(combine):
            raise TypeError(f"the second argument must be a function of two, not {combine!r:.100}")
        self.combine = combine

    def start(self) -> Any:
        return _NOTHING

    def block(self, state: Any, items: Iterator[Any]) -> Any:
        fn, combine = self.fn, self.combine
        if state is _NOTHING:
            state = fn(next(items))
        for item in items:
            state = combine(state, fn(item))
        return state

    def merge(self, state: Any, later: Any) -> Any:
        return self.combine(state, later)


def for_each(fn: Callable[[T], object], items: Iterable[T], *, grain: int | None = None) -> None:
    """Call `fn` with each item.

    In a task: on this worker, and on those that are idle. In a program, inside `with
    mpsched.WorkStealingExecutor()`: on that pool. With no pool open: here, one after the other.

    Args:
        fn: What it does counts, not what it returns. An item that it changes may be a copy.
        items: A range, list, tuple, string or array is split as it is; anything else is made a list.
        grain: Items in the smallest part that is given away; None: as few as need be, by time.

    Raises:
        BaseException: What `fn` raised for the lowest index among the items that were run; its
            `siblings` are other failures. What has not started then does not start.
    """
    _run(_ForEach(fn), items, grain, _NOTHING)


def map(  # noqa: A001 - the public name is `mpsched.parallel.map`
    fn: Callable[[T], R], items: Iterable[T], *, grain: int | None = None
) -> list[R]:
    """Return `[fn(item) for item in items]`. See `for_each` for where it runs, and what it raises."""
    result: list[R] = _run(_Map(fn), items, grain, _NOTHING)
    return result


def reduce(
    fn: Callable[[Any, Any], Any],
    items: Iterable[Any],
    *,
    initial: Any = _NOTHING,
    grain: int | None = None,
) -> Any:
    """Return what `functools.reduce(fn, items)` does, for a function that is associative.

    Neighbours are combined in order, but not from the left: `fn(fn(a, b), fn(c, d))`. With floats the
    last digits may differ from run to run. `initial` is used once, on the left.

    Raises:
        TypeError: There are no items and no `initial`.
        BaseException: As for `for_each`.
    """
    return _run(_Reduce(fn), items, grain, initial)


def map_reduce(
    fn: Callable[[T], Any],
    combine: Callable[[Any, Any], Any],
    items: Iterable[T],
    *,
    initial: Any = _NOTHING,
    grain: int | None = None,
) -> Any:
    """Return `reduce(combine, map(fn, items))` without the list in between. See `reduce`."""
    return _run(_MapReduce(fn, combine), items, grain, initial)


def _run(loop: _Loop, items: Iterable[Any], grain: int | None, initial: Any) -> Any:
    if grain is not None:
        grain = operator.index(grain)
        if grain < 1:
            raise ValueError(f"grain must be None or at least 1 item, not {grain}")
    parts = _sliceable(items)
    if not len(parts):
        if initial is not _NOTHING:
            return initial
        empty = loop.start()
        if empty is _NOTHING:
            raise TypeError(f"{loop.name}() of no items needs an initial value")
        return empty
    start = () if initial is _NOTHING else (initial,)
    if not hot.in_task():
        pool = forkjoin.open_pool()
        if pool is not None:
            return forkjoin.run_in(pool, loop, parts, grain, 0, *start)
    return loop(parts, grain, 0, *start)


def _sliceable(items: Iterable[Any]) -> Any:
    """Return the items as something whose slices are small when they are sent."""
    if isinstance(items, range | list | tuple | str | bytes | bytearray):
        return items
    if hasattr(items, "__array_interface__") and getattr(items, "ndim", 0) > 0:
        return items
    return list(items)


def _name_of(fn: Callable[..., Any]) -> str:
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return name
