"""`map` and `starmap`: which way a map takes. See README.md, "Map".

Items whose options watch each of them (time limits, retries, random streams) are tasks with a future
each; all others travel in pieces (mapping.py). With no workers everything runs here and now.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections import OrderedDict
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, final

from mpsched._base.cancelresult import CancelResult
from mpsched._pool import consume
from mpsched._pool.core import Pool
from mpsched._pool.mapping import MapRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mpsched._pool.future import Future
    from mpsched._pool.options import Options
    from mpsched._pool.revoke import How
    from mpsched._pool.serial import SerialPool

    _PassingOn = itertools.islice[Any]
else:
    _PassingOn = itertools.islice  # takes no brackets when it runs


def start_map(
    pool: Pool | SerialPool,
    fn: Callable[..., Any],
    items: Iterable[Any],
    *,
    star: bool,
    options: Options,
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
    ordered: bool,
    return_exceptions: bool,
    progress: bool,
) -> Iterator[Any]:
    """Start a map and return the iterator over its results; see `WorkStealingExecutor.map`."""
    if not callable(fn):
        raise TypeError(f"the first argument must be a function, not {fn!r:.100}")
    for name, value in (("chunksize", chunksize), ("buffersize", buffersize)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise ValueError(f"{name} must be None or an int of at least 1, not {value!r}")
    if pool.refusal is not None:
        raise pool.refusal()
    bar = _bar() if progress else None
    sized = hasattr(items, "__len__")
    source = items if sized else iter(items)
    if star:
        # An item is the arguments: anything that can be iterated, as in itertools.starmap.
        source = [tuple(item) for item in source] if sized else _tuples(source)
    total = len(source) if sized else None  # type: ignore[arg-type]
    if not isinstance(pool, Pool):
        results: Iterator[Any] = _serial(
            pool, fn, source, star, options, timeout, ordered, return_exceptions
        )
    elif options.single:
        ahead = buffersize
        if not sized and ahead is None:
            ahead = max(64, 16 * pool.width)
        results = _each(pool, fn, source, star, options, timeout, ahead, ordered, return_exceptions)
    else:
        closed = sized and buffersize is None
        run = MapRun(
            pool,
            pool.calls.callee(fn),
            # A range stays one: it takes no room, here and on its way.
            (source if type(source) is range else list(source)) if closed else [],
            star=star,
            options=options,
            chunksize=chunksize,
            ordered=ordered,
            closed=closed,
        )
        more = None if closed else iter(source)
        ahead = buffersize or max(64, 16 * pool.width)
        # Made before the run is started: once it is gone, nobody reads, and the pool knows.
        results = consume.iterate(
            run,
            timeout=timeout,
            return_exceptions=return_exceptions,
            more=more,
            ahead=ahead,
            grow=buffersize is None,
        )
        pool.start_run(run)
        if more is not None:
            consume.pull(run, more, ahead)
    return bar(results, total=total) if bar is not None else results


def _tuples(items: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for item in items:
        yield tuple(item)


def _serial(
    pool: SerialPool,
    fn: Callable[..., Any],
    items: Iterable[Any],
    star: bool,
    options: Options,
    timeout: float | None,
    ordered: bool,
    return_exceptions: bool,
) -> Iterator[Any]:
    # As with workers, what has a length runs at the call, iterated or not; the rest when it is read.
    ahead = None if hasattr(items, "__len__") else 1
    return _each(pool, fn, items, star, options, timeout, ahead, ordered, return_exceptions)


def _each(
    pool: Pool | SerialPool,
    fn: Callable[..., Any],
    items: Iterable[Any],
    star: bool,
    options: Options,
    timeout: float | None,
    ahead: int | None,
    ordered: bool,
    return_exceptions: bool,
) -> Iterator[Any]:
    """Each item is a task of its own; `ahead` at a time, None: all at once, now."""

    def submit(numbered: tuple[int, Any]) -> Future[Any]:
        index, item = numbered
        future = pool.submit(fn, item if star else (item,), {}, options, iter((index,)))
        future._task.start = index
        return future

    deadline = None if timeout is None else time.monotonic() + timeout
    window = _Window(pool, map(submit, enumerate(items)), ahead, ordered=ordered)
    window.fill()
    return ItemResults.over(window, window.results(deadline, timeout, return_exceptions))


@final
class ItemResults(_PassingOn):
    """The iterator that such a `map` returns: a generator, run through in C."""

    window: _Window
    generator: Generator[Any, None, None]

    @classmethod
    def over(cls, window: _Window, generator: Generator[Any, None, None]) -> ItemResults:
        """Return the iterator over the results of a window."""
        made = cls(generator, None)
        made.window, made.generator = window, generator
        return made

    def close(self) -> None:
        """Cancel what has not started, as closing a generator does."""
        self.generator.close()


@final
class _Window:
    """The futures of a map's items, submitted at most `ahead` before they are read.

    An error of the input, or of a submit, comes behind the results of the items before it; where
    everything is submitted at the call it is raised there, since nobody may ever read the results.
    """

    def __init__(
        self,
        pool: Pool | SerialPool,
        made: Iterator[Future[Any]],
        ahead: int | None,
        *,
        ordered: bool,
    ) -> None:
        self.pool = pool
        self._made: Iterator[Future[Any]] | None = made
        self._ahead = ahead
        self._open: OrderedDict[Future[Any], None] = OrderedDict()
        self._done: queue.SimpleQueue[Any] | None = None
        if not ordered:
            self._done = queue.SimpleQueue()
        self._problem: Exception | None = None

    def fill(self) -> None:
        """Submit what there is room for."""
        # `cancel` may take it away meanwhile.
        while (made := self._made) is not None and (
            self._ahead is None or len(self._open) < self._ahead
        ):
            try:
                future = next(made)
            except StopIteration:
                self._made = None
                return
            except Exception as problem:
                self._made = None
                if self._ahead is None:
                    self._cancel()
                    raise
                self._problem = problem
                return
            self._open[future] = None
            if self._done is not None:
                future.add_done_callback(self._done.put)

    def cancel(self, how: How) -> CancelResult:
        """Submit no more, and cancel what was; any thread."""
        self._made = None
        answers = set()
        for future in self._open.copy():  # in C, so whole, whatever the reader does meanwhile
            answers.add(self.pool.cancel_running(future, how))
        for answer in (CancelResult.REQUESTED, CancelResult.PREVENTED):
            if answer in answers:
                return answer
        return CancelResult.TOO_LATE

    def results(
        self, deadline: float | None, timeout: float | None, return_exceptions: bool
    ) -> Generator[Any, None, None]:
        """Give the results as they are wanted; a reader that stops cancels the rest."""
        try:
            while True:
                self.fill()
                if not self._open:
                    break
                future = self._take(deadline, timeout)
                yield _outcome(future, return_exceptions)
                del future
            if self._problem is not None:
                try:
                    raise self._problem
                finally:
                    self._problem = None
        finally:
            self._cancel()

    def _take(self, deadline: float | None, timeout: float | None) -> Future[Any]:
        """Wait for the next future: the first, or whichever is done."""
        self.pool.check_process()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            if self._done is not None:
                future: Future[Any] = self._done.get(timeout=left)
            else:
                future = next(iter(self._open))
                future._await(left)
        except (queue.Empty, TimeoutError):
            raise TimeoutError(f"map was not done after {timeout} seconds") from None
        del self._open[future]
        return future

    def _cancel(self) -> None:
        for future in self._open:
            future._drop()


def _outcome(future: Future[Any], return_exceptions: bool) -> Any:
    try:
        error = future.exception()
    except CancelledError as cancelled:
        if return_exceptions:
            return cancelled
        raise
    if error is not None:
        error.add_note(f"index {future._task.start} of the map")
        if return_exceptions:
            return error
    # The error is a local variable no longer when its traceback gets this frame.
    del error
    return future.result()


def _bar() -> Any:
    """Return what shows a bar around an iterator; first of all, so that nothing runs without it."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'mpsched[progress]'") from None
    return tqdm


def cancel_results(pool: Pool | SerialPool, results: object, how: How) -> CancelResult | None:
    """Cancel the map of `pool` whose results these are; None if they are no such thing."""
    if isinstance(results, ItemResults) and results.window.pool is pool:
        return results.window.cancel(how)
    if isinstance(results, consume.MapResults) and isinstance(pool, Pool):
        run = results.run()
        if run is None:
            return CancelResult.TOO_LATE  # read to its end
        if run._pool is pool:
            return pool.revoker.cancel_map(run, how)
    return None


def is_of_map(results: object) -> bool:
    """Whether it is what a map returned, of whichever pool."""
    return isinstance(results, ItemResults | consume.MapResults)
