"""One piece of a map: a run of items that a worker takes in order, and may have to share.

See README.md, "Pieces of a map". The main thread runs items; the helper thread may send finished
results (`flush`) and give away the far half of what has not started (`split`). Both sides agree
through two fields and a lock: `started` (items that were started; the main thread stores it and then
reads `end`), `end` (the helper stores it and then reads `started`), and the worker's write lock around
everything that reaches the result ring.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._shm import layout as lay
from mpsched._tasks import codec, failure, records as rec, sealed
from mpsched._worker import deliver, hot, long
from mpsched.errors import DecodeError, ResultEncodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._tasks.sealed import Row
    from mpsched._worker.worker import Worker


_PROBE: Final = 8
"""Items of the first block: singly run, items cannot show how short they are."""

_LONG_NS: Final = 1_000_000
_LOOK_NS: Final = 50_000_000
"""Nanoseconds of an item that `Worker.look` follows; and of shorter ones together (LEFT-1)."""

_NONE: Final[list[Any]] = []
"""No results of a block; never appended to."""


@final
class Chunk:
    """The state of the piece that runs.

    Attributes:
        end: first item that is not ours (any more).
        base: index of the first item in `values`; `sent`: how many of `values` left already.
    """

    __slots__ = (
        "_block_size",
        "_flushed_ns",
        "_fn",
        "_fresh",
        "_look_ns",
        "_plain",
        "_progress",
        "_row",
        "_short",
        "_singly",
        "_star",
        "_taken",
        "_words",
        "_worker",
        "base",
        "closed",
        "end",
        "handle",
        "ident",
        "sent",
        "values",
    )

    def __init__(
        self,
        worker: Worker,
        ident: int,
        handle: int,
        fn: Callable[..., Any],
        star: bool,
        items: Row,
    ) -> None:
        self._worker = worker
        self._words = worker.words
        self._progress = worker.block + lay.B_PROGRESS
        self._words[self._progress] = 0
        self._fn = fn
        self._star = star
        self._flushed_ns = self._look_ns = 0
        self.ident = ident
        self.handle = handle
        self._row = items
        self._short = False  # items take less than `short_s`: they are run in blocks
        self._block_size = _PROBE
        self._plain = True  # so far no result was sealed
        self._singly = False  # there were results that can be changed: blocks would take them late
        self.end = len(items)
        self.base = 0
        self.values: list[Any] = []
        self._fresh: list[Any] = []  # results of the block that runs
        self._taken = 0  # of these, how many are in `values`
        self.sent = 0
        self.closed = False

    @property
    def started(self) -> int:
        """Items that were started: the word PROGRESS, which the parent reads too."""
        return int(self._words[self._progress])

    @started.setter
    def started(self, items: int) -> None:
        self._words[self._progress] = items

    def run(self) -> int:
        """Run the items; returns nanoseconds spent. Main thread."""
        worker = self._worker
        words, left = worker.words, worker.block + lay.B_LEFT
        words[left] = max(0, self.end - 1)
        begun = self._flushed_ns = time.monotonic_ns()
        self._look_ns = begun + _LOOK_NS
        now = begun
        while True:
            if self._row.plain is None:
                now = self._sealed(now)
            elif self._short:
                now = self._blocks(now)
            else:
                now = self._singles(now)
            if (self.started >= self.end or worker.table.cancel[self.handle]) and self._ended(
                now - begun
            ):
                break
        words[left] = 0
        worker.items += self.started
        self.started = 0
        return now - begun

    def _sealed(self, now: int) -> int:
        """Run sealed items one by one; returns the time."""
        worker = self._worker
        words, cancel, handle = worker.words, worker.table.cancel, self.handle
        progress, unsent = self._progress, worker.block + lay.B_UNSENT
        flush_ns = int(worker.settings.flush_s * 1e9)
        clock = time.monotonic_ns
        index = words[progress]
        while not cancel[handle]:
            words[progress] = index + 1  # before the look at `end`: see split
            if index >= self.end:
                words[progress] = index
                break
            self._one(index)
            index += 1
            before, now = now, clock()
            if now - self._flushed_ns < flush_ns:
                words[unsent] = 1
            elif index < self.end:  # else the end of the piece tells
                self._tell(now, now - before)
        return now

    def _singles(self, now: int) -> int:
        """Run items one by one, each with its word, while they are not short.

        Returns the time.
        """
        worker = self._worker
        words, cancel, handle = worker.words, worker.table.cancel, self.handle
        progress, unsent = self._progress, worker.block + lay.B_UNSENT
        row, fn, star, plain_types = self._row.plain, self._fn, self._star, codec.PLAIN_TYPES
        assert row is not None
        flush_ns = int(worker.settings.flush_s * 1e9)
        short_ns, first = worker.settings.short_s * 1e9, worker.settings.singles_first
        clock = time.monotonic_ns
        index = words[progress]
        while not cancel[handle]:
            words[progress] = index + 1  # before the look at `end`: see split
            if index >= self.end:
                words[progress] = index
                break
            try:
                value = fn(*row[index]) if star else fn(row[index])
                if hot.forking:
                    long.finish_item()
            except BaseException as problem:
                self._failed(index, long.item_error(problem), row[index])
            else:
                if type(value) in plain_types:
                    self.values.append(value)
                else:
                    self._take(index, value, row[index])
            index += 1
            before = now
            now = clock()
            if now - self._flushed_ns < flush_ns:
                words[unsent] = 1
            elif index < self.end:  # else the end of the piece tells
                self._tell(now, now - before)
            if now - before < short_ns and index >= first and not (hot.forking or self._singly):
                self._short = True
                break
        return now

    def _blocks(self, now: int) -> int:
        """Run items in blocks of `flush_s`, while they are short; returns the time.

        Nothing is done for each item but to call the function. A block's results leave with its end.
        """
        worker = self._worker
        words, cancel, handle = worker.words, worker.table.cancel, self.handle
        progress, unsent = self._progress, worker.block + lay.B_UNSENT
        row, fn = self._row.plain, self._fn
        call = itertools.starmap if self._star else map
        assert row is not None
        settings = worker.settings
        block_ns, short_ns = settings.flush_s * 1e9, settings.short_s * 1e9
        # The time has the block's end in it, which is no work of the items.
        least, most = block_ns * 0.9, block_ns * 1.06
        clock = time.monotonic_ns
        if len(self.values) > self.sent:
            self.flush()
        size = self._block_size
        start = words[progress]
        while not cancel[handle]:
            stop = start + size
            words[progress] = stop  # before the look at `end`: see split
            if self.end < stop:
                words[progress] = stop = max(start, self.end)
                if start >= stop:
                    break
            # Its first results may have to wait for its last: the parent may ask for them, and the
            # helper takes them from here.
            fresh: list[Any] = []
            self._fresh = fresh
            words[unsent] = 1
            try:
                # `extend` keeps what it has appended when the iterator raises: that tells which.
                fresh.extend(call(fn, row[start:stop]))
                if hot.forking:
                    # Whose children failed, nobody knows: the last item's. (From here on singly.)
                    last = fresh.pop()
                    long.finish_item()
                    fresh.append(last)
            except BaseException as problem:
                self._break_off(start, fresh, long.item_error(problem))
            else:
                count = len(fresh)
                if count < stop - start:
                    # A StopIteration of the function ended the loop as if the items had.
                    self._break_off(start, fresh, StopIteration("raised by the function"))
                else:
                    self._send_block(start, fresh)
            before = now
            now = clock()
            took = now - before
            if now >= worker.parent_ns:
                self._ring_if_due(now, took / (stop - start))
            if now >= self._look_ns:
                self._look_ns = now + _LOOK_NS
                worker.look(now)
            if not least <= took <= most:
                size = max(2, min(size * 2, int(block_ns * (stop - start) / (took + 1) + 0.5)))
                if took > 2 * short_ns * (stop - start):
                    self._short = False
            start = words[progress]
            if not self._short or self._singly or hot.forking:
                self._short = False
                break
        words[unsent] = len(self.values) > self.sent
        self._block_size = max(2, min(_PROBE, size))
        self._flushed_ns = now
        return now

    def _tell(self, now: int, took: float) -> None:
        """Put results into the ring, where a kill does not reach them, and wake the parent at times.

        The parent may look by itself meanwhile, and waking it takes a core from a worker.
        """
        if self._plain and not self._fresh:
            if self.values:
                self._flush_plain()
        else:
            self.flush()
        self._ring_if_due(now, took)
        self._flushed_ns = now
        if took >= _LONG_NS or now >= self._look_ns:
            self._look_ns = now + _LOOK_NS
            self._worker.look(now)

    def _ring_if_due(self, now: int, took: float) -> None:
        worker = self._worker
        if took >= 2 * worker.tell_ns or worker.parent_is_due(now):
            worker.ring_the_parent()
        worker.words[worker.block + lay.B_LEFT] = max(0, self.end - self.started)

    def _flush_plain(self) -> None:
        """Publish results of which none is sealed; main thread. `flush`, for the common case."""
        worker = self._worker
        results = worker.results
        with worker.write_lock:
            values = self.values[self.sent :] if self.sent else self.values
            data = sealed.pack_settled(values)
            if len(data) > results.largest:
                self._flush_locked()
                return
            if values:
                start = self.base + self.sent
                where = start | len(values) << 32
                results.write_payload(self.ident, self.handle, rec.R_PART, 0, data, where)
                # crash-point: piece.sent
                self.values, self.sent, self.base = [], 0, start + len(values)
            worker.words[worker.block + lay.B_UNSENT] = 0

    def _ended(self, spent: int) -> bool:
        """Publish the end of the piece; False if there is more to run after all."""
        worker = self._worker
        with worker.write_lock:
            # A `split` that has given up had made `end` smaller for a moment.
            if self.started < self.end and not worker.table.cancel[self.handle]:
                return False
            # The last results travel with the end, if they can: two records are twice the work.
            values: list[Any] = []
            data = b""
            results = worker.results
            if self._plain and len(self.values) > self.sent:
                values = self.values[self.sent :]
                data = sealed.pack_settled(values)
            if not values or len(data) > results.largest:
                values, data = [], b""
                self._flush_locked()
            self.closed = True
            where = self.started | len(values) << 32
            results.write_payload(self.ident, self.handle, rec.R_END, spent, data, where)
            # crash-point: piece.ended
            self._words[worker.block + lay.B_UNSENT] = 0
            return True

    def _one(self, index: int) -> None:
        try:
            item = self._row.load(index)
        except DecodeError as problem:
            self._failed(index, problem, None)
            return
        try:
            value = self._fn(*item) if self._star else self._fn(item)
            if hot.forking:
                long.finish_item()
        except BaseException as problem:
            self._failed(index, long.item_error(problem), item)
            return
        self._take(index, value, item)

    def _take(self, index: int, value: Any, item: Any) -> None:
        """Take a result as it is now: the next item may change it."""
        if type(value) in codec.PLAIN_TYPES:
            self.values.append(value)
            return
        if self._plain:
            settled = sealed.settle(value)
            if settled is not None:
                if settled is not value:
                    self._singly = True
                self.values.append(settled)
                return
            # Where one is not to be settled, the others are not either.
            self._plain, self._singly = False, True
        try:
            one = deliver.seal(self._worker, value)
        except ResultEncodeError as problem:
            self._failed(index, problem, item)
            return
        self.values.append(one)
        self._words[self._worker.block + lay.B_UNSENT] = 1
        if one.buffers:
            # They are still the object's own memory until they are in a memory file.
            self.flush()

    def _send_block(self, start: int, fresh: list[Any]) -> None:
        """Publish the results of a block; main thread."""
        data = sealed.pack_constants(fresh)
        worker = self._worker
        results = worker.results
        if data is not None and len(data) <= results.largest:
            lock = worker.write_lock
            lock.acquire()
            try:
                if not self._taken:
                    count = len(fresh)
                    where = start | count << 32
                    results.write_payload(self.ident, self.handle, rec.R_PART, 0, data, where)
                    self._fresh = _NONE
                    if self.values:  # all of them were sent before
                        self.values, self.sent = [], 0
                    self.base = start + count
                    return
            finally:
                lock.release()
        self._keep(start, fresh)

    def _break_off(self, start: int, fresh: list[Any], problem: BaseException) -> None:
        """End a block at the item that raised."""
        row = self._row.plain
        assert row is not None
        bad = start + len(fresh)
        self._keep(start, fresh)
        self._failed(bad, problem, row[bad])
        self.started = bad + 1

    def _take_fresh(self) -> None:
        """Take the first results of the block that runs while they are constant; write lock held.

        The others are copied or pickled by the main thread, after the block.
        """
        fresh, taken = self._fresh, self._taken
        upto = taken
        while upto < len(fresh) and sealed.constant(fresh[upto]):
            upto += 1
        # All or, without memory, none of them.
        self.values.extend(fresh[taken:upto])
        self._taken = upto

    def _keep(self, start: int, fresh: list[Any]) -> None:
        """Take what a block has returned, constants as they are; main thread."""
        with self._worker.write_lock:
            taken, self._taken, self._fresh = self._taken, 0, []
            if all(map(sealed.constant, fresh)):
                self.values.extend(fresh[taken:] if taken else fresh)
                self._flush_locked()
                return
        row = self._row.plain
        assert row is not None
        for offset in range(taken, len(fresh)):
            self._take(start + offset, fresh[offset], row[start + offset])

    def _failed(self, index: int, problem: BaseException, item: Any) -> None:
        args = item if self._star and item is not None else (item,)
        call = failure.short_call(getattr(self._fn, "__qualname__", repr(self._fn)), args, {})
        worker = self._worker
        with worker.write_lock:
            self._flush_locked()
            self.values = []
            self.base = index + 1
            self.sent = 0
            deliver.item_error(
                worker, self.ident, self.handle, index, problem, f"task {self.ident}: {call}"
            )

    def flush(self) -> None:
        """Publish finished results that are not in the ring yet. Main or helper thread."""
        with self._worker.write_lock:
            if not self.closed:
                self._take_fresh()
                self._flush_locked()

    def _flush_locked(self) -> None:
        count = len(self.values)
        if count > self.sent:
            batch = self.values[self.sent : count]
            deliver.part(self._worker, self.ident, self.handle, self.base + self.sent, batch)
            # crash-point: piece.flushed
            self.sent = count
            if count >= 4096:
                # Keep the list short; nothing of it is needed any more.
                del self.values[:count]
                self.base += count
                self.sent = 0
        self._worker.words[self._worker.block + lay.B_UNSENT] = 0

    def split(self) -> bool:
        """Give the far half of the items that have not started back to the parent. Helper thread.

        Returns False if there is nothing to give.
        """
        worker = self._worker
        with worker.write_lock:
            if self.closed:
                return False
            first, end = self.started, self.end
            if first >= end:
                return False
            keep = first + (end - first) // 2
            # Pairs with `run`, which stores `started` and then reads `end`: one of the two sees the
            # other's store. If this one does, nothing is given; if both do, nothing is either.
            self.end = keep
            if self.started > keep:
                self.end = end
                return False
            # crash-point: piece.split.kept
            worker.results.write(self.ident, self.handle, rec.R_SPLIT, 0, keep)
            # crash-point: piece.split.told
            worker.words[worker.block + lay.B_LEFT] = keep - first
            return True
