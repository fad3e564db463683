"""A map: items in, pieces out to the workers, results back in order.

See README.md, "Map". The dispatcher carves pieces when a worker has room for one, sized by the
measured time per item; a worker may return the far half of its piece (records.R_SPLIT). What comes
back are blocks of neighbouring results; the consumer decodes them in its own thread.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, final

from mpsched._pool.blocks import Block, Results
from mpsched._pool.task import Task
from mpsched._pool.waiting import Condition
from mpsched._shm.buffercache import Burst
from mpsched._tasks import sealed, table as tab
from mpsched._tasks.sealed import Sealed
from mpsched.errors import EncodeError

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Sequence

    from mpsched._pool.calls import Callee
    from mpsched._pool.core import Pool
    from mpsched._pool.options import Options

_LOG = logging.getLogger("mpsched")

_FRUITLESS = 4
"""Workers that may die in a row before they started an item: it is the function that kills them."""
_GROWTH = 16
"""A piece is at most so many times larger than the largest before: a first estimate may be wrong."""


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
        cut_off: items were cancelled that had not started.
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
        self.cut_off = False
        self.queued = False
        self.key: float | None = None  # its place in a queue with aging
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
        self.condition = Condition()
        self._waiting = False
        self._consumer: weakref.ref[Any] | None = None
        self._started = False
        self.finished = False
        self._input_error: Exception | None = None

    def describe(self) -> str:
        """Return "a map of 300 items" for reports."""
        name = self._options.name
        return f"a map{f' {name!r}' if name else ''} of {self.total:,} items"

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
        if (
            type(items) is range
            or sealed.all_plain(itertools.chain.from_iterable(items) if self._star else items)
            or all(map(sealed.constant, items))
        ):
            return Sealed(sealed.pack_plain(items), [], [])
        encode = self._pool.calls.encode
        return sealed.pack([encode(item, label="item") for item in items])

    # --- leader: everything here may see the same record twice --------------------------------------

    def deliver(self, task: Task | None, start: int, count: int, results: Results) -> None:
        """Take the results of items `start` to `start + count - 1`."""
        self._add(Block(task, start, count, results, None))

    def deliver_parts(self, task: Task, start: int, parts: list[tuple[int, bytes]]) -> None:
        """Take neighbouring rows of results, (count, packed row) each, from item `start` on.

        When records are seen again there may be more of them than before: those that are known, in
        blocks that they made then, are passed.
        """
        while parts and (known := self._blocks.get(start)) is not None:
            stop = start + known.count
            while parts and start < stop:
                start += parts.pop(0)[0]
        if parts:
            count = sum(one for one, _ in parts)
            self.deliver(task, start, count, Results([row for _, row in parts], (), None))

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
            self._notify()  # the first time may have been interrupted just before
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
        self._notify()

    def split(self, task: Task, keep: int) -> None:
        """A worker keeps the first `keep` items of its piece and returns the rest."""
        # The dispatcher does the rest (`_take_splits`): only so is it done once.
        self._splits.append((task, task.start + keep, task.items))
        self.requeue()

    def ended(self, task: Task, ns: int, count: int) -> None:
        """A piece is over: `count` items were run in `ns` nanoseconds."""
        if count:
            self._fruitless = 0
        if self._rest_error is not None and task.items is not None:
            # Told to stop (`cancel_rest`): what it has not started is nobody's.
            stops = [stop for one, stop, _ in list(self._splits) if one is task]
            for index in range(task.start + count, min([task.end, *stops])):
                self.deliver_error(task, index, self._rest_error)
                self.cut_off = True
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

    def died(self, task: Task, started: int, death: Callable[[int], BaseException]) -> None:
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
            self.tell_finished()

    def tell_finished(self) -> None:
        """Tell the pool, and whoever waits. Twice is as once."""
        self._pool.run_finished(self)
        self._notify()

    def _notify(self) -> None:
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
        if not self._cut:
            self._cut = True
            self.requeue()  # whoever pulled the last ones may have been interrupted before
        self._check_finished()

    def seen(self) -> bool:
        """Whether its results were asked for."""
        return self._started

    def abandon(
        self,
        error: Callable[[], BaseException],
        ended: Callable[[Task], BaseException] | None = None,
    ) -> bool:
        """Fail everything that has no result, running or not: the workers are gone. Supervisor.

        `ended` makes the error of an item that runs, where it is another one.

        Returns:
            Whether there was such an item.
        """
        self._take_splits()
        killed = False
        for task in list(self.outstanding.values()):
            started = 0 if ended is None else self._pool.started_of(task)
            for index in range(task.start, task.end):
                if self._has(index, task.start):
                    continue
                if ended is not None and index < task.start + started:
                    self.deliver_error(task, index, ended(task))
                    killed = True
                else:
                    self.deliver_error(task, index, error)
                    self.cut_off = True
            self._close(task)
            self.outstanding.pop(task.id, None)
        self.closed = True
        self._fail_rest(error)
        self._check_finished()
        return killed

    def _fail_rest(self, error: Callable[[], BaseException]) -> None:
        """Fail every item that waits. Dispatcher."""
        self.cut_off = self.cut_off or self.waiting_items() > 0
        while self._returned:
            start, items = self._returned[0]
            self._fail_span(start, items, error)
        at = self._next - self._base
        self._fail_span(self._next, self._items[at : at + self.total - self._next], error)

    def _fail_span(
        self, start: int, items: Sequence[Any], error: BaseException | Callable[[], BaseException]
    ) -> None:
        """Fail items that are in no piece. Begun again after an exception, it fails none twice."""
        nobody = Task(0, 0, b"", self._options)
        nobody.start, nobody.items, nobody.parts = start, items, []
        for index in range(start, start + len(items)):
            self.deliver_error(nobody, index, error)
        self._advance(start, len(items))
        self._close(nobody)

    # --- consumer: see consume.py -----------------------------------------------------------------------

    def cancel(self) -> None:
        """Start nothing more of it; running pieces stop after their current item."""
        self.cancelled = self.cut_off = True
        for task in list(self.outstanding.values()):
            self._pool.revoker.cancel_piece(task)
        self._check_finished()
        self._pool.ring()

    def report(self) -> None:
        """Log failures that nobody has read, once: nobody can any more, or the pool is left."""
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
