"""`map` and `starmap`: which way a map takes. See README.md, "Map".

Items whose options watch each of them (time limits, retries, random streams) are tasks with a future
each; all others travel in pieces (mapping.py). With no workers everything runs here and now.
"""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

from mpsched._pool.mapping import MapRun
from mpsched._pool.serial import SerialPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mpsched._pool.core import Pool
    from mpsched._pool.future import Future
    from mpsched._pool.options import Options


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
    sized = hasattr(items, "__len__")
    source = items if sized else iter(items)
    if star:
        # An item is the arguments: anything that can be iterated, as in itertools.starmap.
        source = [tuple(item) for item in source] if sized else _tuples(source)
    total = len(source) if sized else None  # type: ignore[arg-type]
    if isinstance(pool, SerialPool):
        results: Iterator[Any] = _serial(pool, fn, source, star, return_exceptions)
    elif options.single:
        results = _each(
            pool, fn, source, star, options, timeout, buffersize, ordered, return_exceptions
        )
    else:
        closed = sized and buffersize is None
        run = MapRun(
            pool,
            pool.calls.callee(fn),
            list(source) if closed else [],
            star=star,
            options=options,
            chunksize=chunksize,
            ordered=ordered,
            closed=closed,
        )
        more = None if closed else iter(source)
        ahead = buffersize or max(64, 16 * pool.width)
        pool.start_run(run)
        if more is not None:
            run.pull(more, ahead)
        results = run.iterate(
            timeout=timeout,
            return_exceptions=return_exceptions,
            more=more,
            ahead=ahead,
            grow=buffersize is None,
        )
    return _with_bar(results, total) if progress else results


def _tuples(items: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for item in items:
        yield tuple(item)


def _serial(
    pool: SerialPool,
    fn: Callable[..., Any],
    items: Iterable[Any],
    star: bool,
    return_exceptions: bool,
) -> Iterator[Any]:
    # As with workers, what has a length runs at the call, iterated or not.
    futures = [pool.submit(fn, tuple(item) if star else (item,), {}) for item in items]
    return _read(futures, None, None, return_exceptions)


def _each(
    pool: Pool,
    fn: Callable[..., Any],
    items: Iterable[Any],
    star: bool,
    options: Options,
    timeout: float | None,
    buffersize: int | None,
    ordered: bool,
    return_exceptions: bool,
) -> Iterator[Any]:
    """Each item is a task of its own."""
    deadline = None if timeout is None else time.monotonic() + timeout
    numbered = enumerate(items)

    def submit(pair: tuple[int, Any]) -> Future[Any]:
        index, item = pair
        return pool.submit(fn, item if star else (item,), {}, options, iter((index,)))

    if hasattr(items, "__len__") and buffersize is None:
        futures = [submit(pair) for pair in numbered]
        if ordered:
            return _read(futures, deadline, timeout, return_exceptions)
        return _as_done(iter(futures), len(futures), deadline, timeout, return_exceptions)
    ahead = buffersize or max(64, 16 * pool.width)
    made = (submit(pair) for pair in numbered)
    if ordered:
        return _ahead(made, ahead, deadline, timeout, return_exceptions)
    return _as_done(made, ahead, deadline, timeout, return_exceptions)


def _outcome(
    future: Future[Any], deadline: float | None, timeout: float | None, return_exceptions: bool
) -> Any:
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    if left is not None and not future.done() and not left:
        raise TimeoutError(f"map was not done after {timeout} seconds")
    if return_exceptions:
        error = future.exception(left)
        return error if error is not None else future.result()
    return future.result(left)


def _read(
    futures: list[Future[Any]],
    deadline: float | None,
    timeout: float | None,
    return_exceptions: bool,
) -> Generator[Any, None, None]:
    # Reversed, so that each future can be let go of as soon as it was read.
    futures.reverse()
    try:
        while futures:
            yield _outcome(futures.pop(), deadline, timeout, return_exceptions)
    finally:
        for future in futures:
            future.cancel()


def _ahead(
    made: Iterator[Future[Any]],
    ahead: int,
    deadline: float | None,
    timeout: float | None,
    return_exceptions: bool,
) -> Generator[Any, None, None]:
    waiting: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    try:
        for future in made:
            waiting.put(future)
            if waiting.qsize() >= ahead:
                yield _outcome(waiting.get(), deadline, timeout, return_exceptions)
        while not waiting.empty():
            yield _outcome(waiting.get(), deadline, timeout, return_exceptions)
    finally:
        while not waiting.empty():
            waiting.get().cancel()


def _as_done(
    made: Iterator[Future[Any]],
    ahead: int,
    deadline: float | None,
    timeout: float | None,
    return_exceptions: bool,
) -> Generator[Any, None, None]:
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    open_futures: set[Any] = set()

    def fill() -> None:
        while len(open_futures) < ahead:
            future = next(made, None)
            if future is None:
                return
            open_futures.add(future)
            future.add_done_callback(done.put)

    fill()

    def results() -> Generator[Any, None, None]:
        try:
            while open_futures:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    future = done.get(timeout=left)
                except queue.Empty:
                    raise TimeoutError(f"map was not done after {timeout} seconds") from None
                open_futures.discard(future)
                fill()
                yield _outcome(future, None, None, return_exceptions)
        finally:
            for future in open_futures:
                future.cancel()

    return results()


def _with_bar(results: Iterator[Any], total: int | None) -> Iterator[Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'mpsched[progress]'") from None
    return iter(tqdm(results, total=total))
