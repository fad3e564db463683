"""Reading the results of a map, in the thread that asked for it. See README.md, "Map"."""

from __future__ import annotations

import itertools
import time
import weakref
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from mpsched._pool.blocks import Block
    from mpsched._pool.mapping import MapRun


@final
class MapResults(itertools.chain[Any]):
    """The iterator that `map` returns: a generator of rows, run through in C.

    A row of plain results costs a tenth of what a Python generator would take to hand them out.
    """

    blocks: Generator[Iterable[Any], None, None]
    run: weakref.ref[MapRun]

    def close(self) -> None:
        """Cancel what has not started, as closing a generator does."""
        self.blocks.close()


def iterate(
    run: MapRun,
    *,
    timeout: float | None,
    return_exceptions: bool,
    more: Iterator[Any] | None,
    ahead: int,
    grow: bool,
) -> Iterator[Any]:
    """Return the iterator over the results. Called once.

    `more` are items that are pulled while at most `ahead` are not read; with `grow` as many
    more as the measured speed asks for.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    blocks = _results(run, deadline, timeout, return_exceptions, more, ahead, grow)
    ring = run._pool.ring  # not `run`: it would live as long as its own iterator's reference

    def on_dropped(_: object) -> None:
        ring()

    run._consumer = weakref.ref(blocks, on_dropped)
    results: Any = MapResults.from_iterable(blocks)
    results.blocks = blocks
    results.run = weakref.ref(run)  # it goes when it is read to its end
    return results  # type: ignore[no-any-return]


def _results(
    run: MapRun,
    deadline: float | None,
    timeout: float | None,
    return_exceptions: bool,
    more: Iterator[Any] | None,
    ahead: int,
    grow: bool,
) -> Generator[Iterable[Any], None, None]:
    """Yield the results, some at a time; what raises here ends the iteration."""
    position = 0
    # Said, then taken out; pairs with Pool.run_finished.
    run._started = True
    run._pool.forget(run)
    complete = False
    try:
        while True:
            run._pool.check_process()
            if more is not None and not (run.closed or run._cut):
                wanted = ahead
                if grow and run._average_ns:
                    # Pieces of some milliseconds for every worker, and as much again ahead.
                    seconds = 4 * run._pool.settings.chunk_s * run._pool.width
                    wanted = max(ahead, min(100_000, int(seconds * 1e9 / run._average_ns)))
                if run.total - position <= wanted // 2 or position >= run.total:
                    pull(run, more, wanted - (run.total - position))
            if position >= run.total and run.closed:
                break
            block = None
            if position < run.total:
                block = _take(run, position, deadline, timeout)
            if block is None:
                raise run._pool.refused()  # it was shut down while the input had not ended
            position += block.count
            if block.error is not None:
                error = block.error()
                if not return_exceptions:
                    try:
                        raise error
                    finally:
                        del error, block
                yield (error,)
                continue
            results, block.results = block.results, None
            if results is None:
                continue
            if (numbers := results.numbers()) is not None:
                yield numbers
                continue
            for row in results.rows():
                if (harmless := row.harmless()) is not None:
                    yield harmless
                    continue
                for value, problem in results.each(row):
                    if problem is None:
                        yield (value,)
                    elif return_exceptions:
                        yield (problem,)
                    else:
                        raise problem
        complete = True
        if run._input_error is not None:
            try:
                raise run._input_error
            finally:
                run._input_error = None
    finally:
        if not complete:
            run.cancel()


def pull(run: MapRun, more: Iterator[Any], count: int) -> None:
    """Take up to `count` further items from the caller's iterator, in the caller's thread."""
    fresh = []
    ended = False
    try:
        for item in more:
            fresh.append(item)
            if len(fresh) >= count:
                break
        else:
            ended = True
    except Exception as problem:
        # The consumer gets it in its place: behind the items that came before it.
        run._input_error = problem
        ended = True
    except BaseException:
        ended = True
        raise
    finally:
        if fresh:
            carved = run._next - run._base
            if carved > 4096:
                _drop(run, carved)
            run._items.extend(fresh)
            run.total += len(fresh)
        if ended:
            # Not before the last items are counted: else the results of those before them could
            # end the map.
            run.closed = True
        if fresh or ended:
            run.requeue()
            run._pool.dispatcher.pump()


def _drop(run: MapRun, carved: int) -> None:
    """Let go of items that are in pieces; the dispatcher must not be carving."""
    section = run._pool.dispatcher.section
    if section.try_enter():
        try:
            run._items = run._items[carved:]
            run._base += carved
        finally:
            section.leave()


def _take(
    run: MapRun, position: int, deadline: float | None, timeout: float | None
) -> Block | None:
    """Wait for the next block: the one at `position`, or whichever comes."""

    def there() -> bool:
        return position in run._blocks if run._ordered else bool(run._arrived)

    while not there():
        if run.finished and not there():
            # A cancelled run, or one whose pool is gone.
            return None
        if run._pool.in_own_thread():
            supervisor = run._pool.supervisor
            if not supervisor.wait_inside(lambda: there() or run.finished, deadline):
                raise TimeoutError(f"map was not done after {timeout} seconds")
        elif not run._pool.leader.lead(lambda: there() or run.finished, deadline):
            _follow(run, there, deadline, timeout)
    block = run._blocks[position] if run._ordered else run._arrived.popleft()
    # As long as its piece runs, its record may be seen again: keep that it came.
    if block.task is None:
        run._blocks.pop(block.start, None)
    else:
        block.read = True
    return block


def _follow(
    run: MapRun, there: Callable[[], bool], deadline: float | None, timeout: float | None
) -> None:
    run._pool.ring()  # as Future.result does
    with run.condition:
        run._waiting = True
        while not there() and not run.finished:
            run._pool.check_process()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"map was not done after {timeout} seconds")
            run.condition.wait(left)
