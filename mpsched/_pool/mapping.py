"""A map: items in, pieces out to the workers, results back in order.

See README.md, "Map". The dispatcher carves pieces when a worker has room for one, sized by the
measured time per item; a worker may return the far half of its piece (records.R_SPLIT). What comes
back are blocks of neighbouring results; the consumer decodes them in its own thread.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
import weakref
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, final

from mpsched._pool.blocks import Block, Results
from mpsched._pool.task import Task
from mpsched._shm.buffercache import Burst
from mpsched._tasks import sealed, table as tab
from mpsched._tasks.sealed import Sealed
from mpsched.errors import EncodeError, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from mpsched._pool.calls import Callee
    from mpsched._pool.core import Pool
    from mpsched._pool.options import Options

_LOG = logging.getLogger("mpsched")

_FRUITLESS = 4
"""Workers that may die in a row before they started an item: it is the function that kills them."""
_GROWTH = 16
"""A piece is at most so many times larger than the largest before: a first estimate may be wrong."""


@final
class MapResults(itertools.chain[Any]):
    """The iterator that `map` returns: a generator of rows, run through in C.

    A row of plain results costs a tenth of what a Python generator would take to hand them out.
    """

    blocks: Generator[Iterable[Any], None, None]

    def close(self) -> None:
        """Cancel what has not started, as closing a generator does."""
        self.blocks.close()


@final
class MapRun:
    """One call of `map`, from the call to the last result.

    Carving is done under the dispatcher's section, delivering under the leader's, consuming in the
    caller's thread; each field has one writer at a time.

    Attributes:
        total: items so far; positions count from the first.
        closed: no more items will come.
        cancelled: nobody wants the rest.
        outstanding: pieces that are dispatched or on their way, by task id.
        queued: whether the dispatcher has it in its queue, as far as it has looked.
    """

    def __init__(
        self,
        pool: Pool,
        callee: Callee,
        items: Sequence[Any],
        *,
        star: bool,
        options: Options,
        chunksize: int | None,
        ordered: bool,
        closed: bool,
    ) -> None:
        self._pool = pool
        self._callee = callee
        self._star = star
        self._options = options
        self._chunksize = chunksize
        # Items that were all there at the call: an array among them is looked at once. A generator
        # may fill the same array again and again.
        self._burst = Burst() if closed else None
        self._ordered = ordered
        self._items: Any = items  # what was not carved; the first of it is `_base`
        self._base = 0
        self.total = len(items)
        self.closed = closed
        self.cancelled = False
        self.queued = False
        self.outstanding: dict[int, Task] = {}
        self._next = 0
        self._returned: deque[tuple[int, list[Any]]] = deque()
        self._splits: deque[tuple[Task, int, list[Any]]] = deque()
        self._careful = 0  # items before it go one by one: one of them cannot be sent
        self._rest_error: Callable[[], BaseException] | None = None
        self._fruitless = 0
        self._cut = False
        self._average_ns = 0.0
        self._largest = 1
        self._blocks: dict[int, Block] = {}
        self._arrived: deque[Block] = deque()
        self.failed = 0
        self.first_failure: tuple[int, Any, Callable[[], BaseException]] | None = None
        self.condition = threading.Condition()
        self._waiting = False
        self._consumer: weakref.ref[Any] | None = None
        self._started = False
        self.finished = False
        self._input_error: Exception | None = None

    @property
    def priority(self) -> int:
        """Priority of all its pieces."""
        return self._options.priority

    # --- dispatcher -----------------------------------------------------------------------------

    def waiting_items(self) -> int:
        """Items that are in no piece; of those that were split off just now, one for each split."""
        # A copy: the leader adds to it while the dispatcher counts.
        returned = sum(len(items) for _, items in list(self._returned))
        return self.total - self._next + returned + len(self._splits)

    def carve(self, moving: deque[Task]) -> bool:
        """Append the next piece to `moving`; False if there is none now. Dispatcher.

        Encoding runs the items' `__reduce__`, so no ring lock is held. An item that cannot be
        encoded becomes an error block of its own.
        """
        self.queued = True
        while not self.cancelled:
            self._take_splits()
            if self._rest_error is not None:
                self._fail_rest(self._rest_error)
                return False
            if self._returned:
                start, rest = self._returned[0]
                items = rest[: self._size(start, len(rest))]
            else:
                start, left = self._next, self.total - self._next
                if not left:
                    return False
                at = start - self._base
                items = self._items[at : at + self._size(start, left)]
            task = self._encode(start, items)
            if task is not None:
                # Once it lies there it counts: if an exception strikes before the next line, the
                # dispatcher has it committed when it puts `moving` back.
                moving.append(task)
                self.commit(task)
                return True
        return False

    def enough(self) -> bool:
        """Whether each worker has a piece to run, and one to go on with once their size is known."""
        pieces = 2 if self._average_ns else 1
        return len(self.outstanding) >= pieces * self._pool.width

    def commit(self, task: Task) -> None:
        """Count a piece as carved. Twice for the same one is as once."""
        self.outstanding[task.id] = task
        self._advance(task.start, len(task.items))

    def _advance(self, start: int, count: int) -> None:
        """Forget `count` waiting items from position `start` on; they are in a piece, or failed."""
        stop = start + count
        for at, (first, rest) in enumerate(list(self._returned)):
            if first == start:
                if count < len(rest):
                    self._returned[at] = (stop, rest[count:])
                else:
                    del self._returned[at]
                return
        if self._next == start:
            self._next = stop

    def _take_splits(self) -> None:
        """Take what workers gave back. Dispatcher; the same split may be there twice."""
        while self._splits:
            task, stop, items = self._splits[0]
            if task.end > stop:
                if not (self._returned and self._returned[-1][0] == stop):
                    rest = items[stop - task.start : task.end - task.start]
                    self._returned.append((stop, rest))
                task.end = stop
            self._splits.popleft()

    def _size(self, start: int, left: int) -> int:
        if start < self._careful:
            return 1
        if self._chunksize is not None:
            return min(left, self._chunksize)
        if not self._average_ns:
            return 1
        settings, workers = self._pool.settings, self._pool.width
        by_time = int(settings.chunk_s * 1e9 / self._average_ns)
        # Less and less towards the end, so that the workers end together; but a piece below a
        # millisecond costs more than it evens out.
        by_share = max(self.waiting_items() // (2 * workers), by_time // 20)
        size = max(1, min(left, by_time, by_share, self._largest * _GROWTH))
        self._largest = max(self._largest, size)
        return size

    def _encode(self, start: int, items: Sequence[Any]) -> Task | None:
        calls = self._pool.calls
        try:
            encoded = self._pack(items)
        except (EncodeError, OSError) as problem:
            if len(items) > 1:
                self._careful = start + len(items)  # find the one
            else:
                self._fail_span(start, items, problem)
            return None
        callee = self._callee
        frame = pickle.dumps((callee.blob, self._star, encoded.data), 5)
        meta = tab.KIND_CHUNK | callee.number << tab.FUNCTION_SHIFT
        task = calls.task(meta, frame, encoded, self._options, callee.holds, burst=self._burst)
        task.run, task.start, task.end, task.items = self, start, start + len(items), items
        task.parts = []
        return task

    def _pack(self, items: Sequence[Any]) -> Sealed:
        """Pickle items so that no two share anything that can be changed."""
        if type(items) is range or sealed.all_plain(
            itertools.chain.from_iterable(items) if self._star else items
        ):
            return Sealed(sealed.pack_plain(items), [], [])
        encode = self._pool.calls.encode
        return sealed.pack([encode(item, label="item") for item in items])

    # --- leader: everything here may see the same record twice --------------------------------------

    def deliver(self, task: Task | None, start: int, count: int, results: Results) -> None:
        """Take the results of items `start` to `start + count - 1`."""
        self._add(Block(task, start, count, results, None))

    def deliver_error(
        self,
        task: Task | None,
        index: int,
        error: BaseException | Callable[[], BaseException],
        item: Any = None,
    ) -> None:
        """Take the failure of one item."""
        if isinstance(error, BaseException):
            own = error

            def load() -> BaseException:
                return own
        else:
            load = error
        if index not in self._blocks:
            self.failed += 1
            if self.first_failure is None or index < self.first_failure[0]:
                if task is not None and task.items is not None:
                    item = task.items[index - task.start]
                self.first_failure = (index, item, load)
        self._add(Block(task, index, 1, None, load))

    def has(self, start: int) -> bool:
        """Whether the block that starts at `start` has come."""
        return start in self._blocks

    def _add(self, block: Block) -> None:
        if block.start in self._blocks:
            return
        # Noted first, so that a block that is seen again is known; then it is there.
        again = block.task is not None and block.task.parts[-1:] == [block.start]
        if self.dropped():
            # Nobody will ask for it: remember that it came, not what it was.
            block.results = block.error = None
            block.read = True
        if block.task is not None and not again:
            block.task.parts.append(block.start)
        if not self._ordered and not (
            again and any(one.start == block.start for one in list(self._arrived))
        ):
            self._arrived.append(block)
        self._blocks[block.start] = block
        if self._waiting:
            with self.condition:
                self.condition.notify_all()

    def split(self, task: Task, keep: int) -> None:
        """A worker keeps the first `keep` items of its piece and returns the rest."""
        # The dispatcher does the rest (`_take_splits`): only so is it done once.
        self._splits.append((task, task.start + keep, task.items))
        self.requeue()

    def ended(self, task: Task, ns: int, count: int) -> None:
        """A piece is over: `count` items were run in `ns` nanoseconds."""
        if count:
            self._fruitless = 0
        if count and task.items is not None:
            average = max(1.0, ns / count)
            old = self._average_ns
            self._average_ns = average if not old else old + (average - old) * 0.3
        self._close(task)
        self.outstanding.pop(task.id, None)
        self._check_finished()

    def _close(self, task: Task) -> None:
        """No record of `task` can come again: forget which of its blocks were read."""
        task.items = None
        for start in task.parts:
            block = self._blocks.get(start)
            if block is not None:
                block.task = None
                if block.read:
                    self._blocks.pop(start, None)
        task.parts = []

    def died(self, task: Task, started: int, death: Callable[[int], WorkerDied]) -> None:
        """The worker that ran `task` died after `started` of its items were started.

        Items whose results came are kept; started ones fail; the others run elsewhere. Supervisor,
        both sections held.
        """
        if task.id not in self.outstanding:
            return
        self._take_splits()
        self._fruitless = 0 if started else self._fruitless + 1
        begin = min(task.start + started, task.end)
        if self._fruitless >= _FRUITLESS:
            begin = task.end
            self._rest_error = lambda: death(task.start)
            self.queued = False
            self.requeue()
        for index in range(task.start, begin):
            if not self._has(index, task.start):
                self.deliver_error(task, index, death(index))
        if begin < task.end:
            self._returned.appendleft(
                (begin, task.items[begin - task.start : task.end - task.start])
            )
            self.requeue()
        self._close(task)
        self.outstanding.pop(task.id, None)
        self._check_finished()

    def _has(self, index: int, from_index: int) -> bool:
        at = from_index
        while at <= index:
            block = self._blocks.get(at)
            if block is None:
                at += 1
                continue
            if block.start <= index < block.start + block.count:
                return True
            at = block.start + block.count
        return False

    def requeue(self) -> None:
        """Make sure that the ready queue holds this run; more than once does no harm."""
        if not self.queued and not self.cancelled:
            self._pool.ready.put_back(self, self.priority)

    def unqueued(self) -> None:
        """The dispatcher takes it out of the ready queue because it had nothing to carve."""
        self.queued = False
        if self.waiting_items() and not self.cancelled:
            self.requeue()
        self._check_finished()

    def _check_finished(self) -> None:
        if self.finished or self.outstanding:
            return
        if self.cancelled or ((self.closed or self._cut) and not self.waiting_items()):
            self.finished = True
            self._pool.run_finished(self)
            if self._waiting:
                with self.condition:
                    self.condition.notify_all()

    def cancel_rest(self) -> None:
        """Start nothing more of it; items that are in no piece fail as cancelled, at the next pump."""
        self._rest_error = CancelledError
        self.closed = True
        self.queued = False  # for one more look
        self.requeue()

    def dropped(self) -> bool:
        """Whether its iterator is gone."""
        return self._consumer is not None and self._consumer() is None

    def cut(self) -> None:
        """No more items will come, though the input has not ended: nobody can ask for them."""
        self._cut = True
        self._check_finished()

    def seen(self) -> bool:
        """Whether its results were asked for."""
        return self._started

    def abandon(self, error: Callable[[], BaseException]) -> None:
        """Fail everything that has no result, running or not: the workers are gone. Supervisor."""
        self._take_splits()
        for task in list(self.outstanding.values()):
            for index in range(task.start, task.end):
                if not self._has(index, task.start):
                    self.deliver_error(task, index, error)
            self._close(task)
            self.outstanding.pop(task.id, None)
        self.closed = True
        self._fail_rest(error)
        self._check_finished()

    def _fail_rest(self, error: Callable[[], BaseException]) -> None:
        """Fail every item that waits. Dispatcher."""
        while self._returned:
            start, items = self._returned[0]
            self._fail_span(start, items, error)
        at = self._next - self._base
        self._fail_span(self._next, self._items[at : at + self.total - self._next], error)

    def _fail_span(
        self, start: int, items: Sequence[Any], error: BaseException | Callable[[], BaseException]
    ) -> None:
        """Fail items that are in no piece. Begun again after an exception, it fails none twice."""
        nobody = Task(0, 0, b"", self._options, None)
        nobody.start, nobody.items, nobody.parts = start, items, []
        for index in range(start, start + len(items)):
            self.deliver_error(nobody, index, error)
        self._advance(start, len(items))
        self._close(nobody)

    # --- consumer -----------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Start nothing more of it; running pieces stop after their current item."""
        self.cancelled = True
        for task in list(self.outstanding.values()):
            self._pool.revoker.cancel_piece(task)
        self._check_finished()
        self._pool.ring()

    def iterate(
        self,
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
        blocks = self._results(deadline, timeout, return_exceptions, more, ahead, grow)
        ring = self._pool.ring  # not `self`: it would live as long as its own iterator's reference
        self._consumer = weakref.ref(blocks, lambda _: ring())
        results: Any = MapResults.from_iterable(blocks)
        results.blocks = blocks
        return results  # type: ignore[no-any-return]

    def _results(
        self,
        deadline: float | None,
        timeout: float | None,
        return_exceptions: bool,
        more: Iterator[Any] | None,
        ahead: int,
        grow: bool,
    ) -> Generator[Iterable[Any], None, None]:
        """Yield the results, some at a time; what raises here ends the iteration."""
        position = 0
        self._started = True
        complete = False
        try:
            while True:
                if more is not None and not (self.closed or self._cut):
                    wanted = ahead
                    if grow and self._average_ns:
                        # Pieces of some milliseconds for every worker, and as much again ahead.
                        seconds = 4 * self._pool.settings.chunk_s * self._pool.width
                        wanted = max(ahead, min(100_000, int(seconds * 1e9 / self._average_ns)))
                    if self.total - position <= wanted // 2 or position >= self.total:
                        self.pull(more, wanted - (self.total - position))
                if position >= self.total and self.closed:
                    break
                block = None
                if position < self.total:
                    block = self._take(position, deadline, timeout)
                if block is None:
                    raise self._pool.refused()  # it was shut down while the input had not ended
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
                row = results.row()
                if row.plain is not None:
                    yield row.plain
                    continue
                for value, problem in results.each(row):
                    if problem is None:
                        yield (value,)
                    elif return_exceptions:
                        yield (problem,)
                    else:
                        raise problem
            complete = True
            if self._input_error is not None:
                try:
                    raise self._input_error
                finally:
                    self._input_error = None
        finally:
            if not complete:
                self.cancel()

    def pull(self, more: Iterator[Any], count: int) -> None:
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
            self._input_error = problem
            ended = True
        except BaseException:
            ended = True
            raise
        finally:
            if fresh:
                carved = self._next - self._base
                if carved > 4096:
                    self._drop(carved)
                self._items.extend(fresh)
                self.total += len(fresh)
            if ended:
                # Not before the last items are counted: else the results of those before them could
                # end the map.
                self.closed = True
            if fresh or ended:
                self.requeue()
                self._pool.dispatcher.pump()

    def _drop(self, carved: int) -> None:
        """Let go of items that are in pieces; the dispatcher must not be carving."""
        section = self._pool.dispatcher.section
        if section.try_enter():
            try:
                self._items = self._items[carved:]
                self._base += carved
            finally:
                section.leave()

    def _take(self, position: int, deadline: float | None, timeout: float | None) -> Block | None:
        """Wait for the next block: the one at `position`, or whichever comes."""

        def there() -> bool:
            return position in self._blocks if self._ordered else bool(self._arrived)

        while not there():
            if self.finished and not there():
                # A cancelled run, or one whose pool is gone.
                return None
            if not self._pool.leader.lead(lambda: there() or self.finished, deadline):
                self._follow(there, deadline, timeout)
        block = self._blocks[position] if self._ordered else self._arrived.popleft()
        # As long as its piece runs, its record may be seen again: keep that it came.
        if block.task is None:
            self._blocks.pop(block.start, None)
        else:
            block.read = True
        return block

    def _follow(
        self, there: Callable[[], bool], deadline: float | None, timeout: float | None
    ) -> None:
        self._pool.ring()  # as Future.result does
        with self.condition:
            self._waiting = True
            while not there() and not self.finished:
                self._pool.check_process()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"map was not done after {timeout} seconds")
                self.condition.wait(left)

    def report(self) -> None:
        """Log failures that nobody saw, once: the pool is being left."""
        if self._started:
            return
        total = self.total
        if self.failed and self.first_failure is not None:
            index, item, load = self.first_failure
            _LOG.error(
                "%s of %s items of an un-iterated map failed, first item %s: %.200r",
                f"{self.failed:,}",
                f"{total:,}",
                index,
                item,
                exc_info=load(),
            )
        if not self.closed:
            _LOG.warning(
                "a map over an iterator without a length was never read to its end: only its "
                "first %s items were run; iterate it, or pass a list",
                f"{total:,}",
            )
