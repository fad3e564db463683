"""A map whose items are children: what `map` gives to a task that uses its own pool's executor.

See README.md, "Fork-join". The iterator joins, so it helps instead of waiting.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks.failure import with_siblings
from mpsched._worker import hot, long, scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched._worker.hot import Handle

_LOOKED_AT: Final = 32
"""Of the children that are open, so many of the oldest may be the next result out of order."""


def start(
    fn: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
    ordered: bool,
    return_exceptions: bool,
    progress: bool,
    sized: bool,
) -> Iterator[Any]:
    """Spawn the calls, as many as may be open at once, and return the iterator over their results.

    Args:
        fn: What to call.
        calls: Its arguments, for each call.
        timeout: Seconds from now; what takes longer is a TimeoutError when it is asked for.
        chunksize: Checked, but of no use: each item is a child, and costs what a child costs.
        buffersize: Children open at once; None: all of inputs with a length, else 16 per worker.
        ordered: Results in the order of the calls; else those that have ended elsewhere first.
        return_exceptions: Give an error in the place of its result, and go on.
        progress: Must be false.
        sized: Whether the inputs have a length.

    Raises:
        TypeError, ValueError: One of them makes no sense; the message names it.
    """
    for name, value in (("chunksize", chunksize), ("buffersize", buffersize)):
        if value is not None and (isinstance(value, bool) or operator.index(value) < 1):
            raise ValueError(f"{name} must be None or an int of at least 1, not {value!r}")
    if progress:
        raise TypeError(
            "progress=True is for a map of the program: a task has no terminal to show a bar on"
        )
    if buffersize is None and not sized:
        buffersize = 16 * long.width()
    running = _Map(fn, iter(calls))
    running.spawn(buffersize)
    deadline = None if timeout is None else time.monotonic() + timeout
    return running.results(deadline, timeout, ordered, return_exceptions)


@final
class _Map:
    """Children that are open, and the calls that are to become some."""

    __slots__ = ("_calls", "_fn", "_input_error", "_opened")

    def __init__(self, fn: Callable[..., Any], calls: Iterator[tuple[Any, ...]]) -> None:
        self._fn = fn
        self._calls = calls
        self._opened: deque[Handle[Any]] = deque()
        self._input_error: Exception | None = None

    def spawn(self, count: int | None) -> None:
        """Spawn up to so many further calls; None: all."""
        if self._input_error is not None:
            return
        try:
            for call in itertools.islice(self._calls, count):
                self._opened.append(hot.spawn(self._fn, *call))
        except Exception as problem:
            self._input_error = problem  # raised in its place: behind the items that came before it

    def results(
        self, deadline: float | None, timeout: float | None, ordered: bool, return_exceptions: bool
    ) -> Iterator[Any]:
        """Yield the results; what is open when this ends early is ended as well."""
        opened = self._opened
        try:
            while opened:
                handle = self._next(ordered)
                if deadline is not None and not handle.done() and time.monotonic() > deadline:
                    opened.appendleft(handle)
                    raise TimeoutError(f"map was not done after {timeout} seconds")
                try:
                    value = handle.join()
                except BaseException as problem:
                    # Not done: it came to the one who waits (a signal handler, a cancelled root).
                    if not return_exceptions or not handle.done():
                        raise
                    value = problem
                self.spawn(1)
                yield value
                del value
            if self._input_error is not None:
                raise self._input_error
        except BaseException as problem:
            with_siblings(problem, scopes.abandon(opened))
            raise

    def _next(self, ordered: bool) -> Handle[Any]:
        """Take out the child whose result is next."""
        opened = self._opened
        if not ordered:
            for place in range(min(len(opened), _LOOKED_AT)):
                if opened[place].done():
                    handle = opened[place]
                    del opened[place]
                    return handle
        return opened.popleft()
