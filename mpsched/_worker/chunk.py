"""One piece of a map: a run of items that a worker takes in order, and may have to share.

See README.md, "Pieces of a map". The main thread runs items; the helper thread may send finished
results (`flush`) and give away the far half of what has not started (`split`). Both sides agree
through two fields and a lock: `next` (first item not started; the main thread stores it and then
reads `end`), `end` (the helper stores it and then reads `next`), and the worker's write lock around
everything that reaches the result ring.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._shm import layout as lay
from mpsched._tasks import codec, failure, records as rec, sealed
from mpsched._worker import deliver
from mpsched.errors import DecodeError, ResultEncodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._tasks.sealed import Row
    from mpsched._worker.worker import Worker


_PROBE: Final = 8
"""Items of a block that shows what they take."""
_PROBE_EVERY: Final = 256
"""Items that are run singly after such a block has shown that they are not tiny."""
_SINGLES_FIRST: Final = 64
"""Items of a piece that are run singly first: a short map fails no more than the item that kills."""


@final
class Chunk:
    """The state of the piece that runs.

    Attributes:
        next: first item that has not started.
        end: first item that is not ours (any more).
        base: index of the first item in `values`; `sent`: how many of `values` left already.
    """

    __slots__ = (
        "_first_ns",
        "_flushed_ns",
        "_fn",
        "_fresh",
        "_plain",
        "_row",
        "_star",
        "_taken",
        "_worker",
        "base",
        "closed",
        "end",
        "handle",
        "ident",
        "next",
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
        self._fn = fn
        self._star = star
        self._first_ns = 0
        self._flushed_ns = 0
        self.ident = ident
        self.handle = handle
        self._row = items
        self._plain = items.plain is not None  # so far: items and results that nobody can change
        self.next = 0
        self.end = len(items)
        self.base = 0
        self.values: list[Any] = []
        self._fresh: list[Any] = []  # results of the block that runs
        self._taken = 0  # of these, how many are in `values`
        self.sent = 0
        self.closed = False

    def run(self) -> int:
        """Run the items; returns nanoseconds spent. Main thread."""
        worker = self._worker
        settings = worker.settings
        words, block = worker.words, worker.block
        tiny_ns, block_ns = settings.tiny_s * 1e9, settings.block_s * 1e9
        flush_ns = int(settings.flush_s * 1e9)
        clock = time.monotonic_ns
        words[block + lay.B_LEFT] = max(0, self.end - 1)
        begun = now = self._flushed_ns = clock()
        size, singles = 1, _SINGLES_FIRST
        cancel = worker.table.cancel
        while True:
            if size == 1 and self._plain and not self._star:
                singles, now = self._singles(singles, now)
                size = _PROBE  # this loop takes as long as a tiny item: only a block tells
            start = self.next
            stop = min(start + size, self.end)
            if start >= stop or cancel[self.handle]:
                if self._ended(now - begun):
                    break
                continue
            self.next = stop  # before the look at `end`: see split
            end = self.end
            if end < stop:
                self.next = stop = max(start, end)
                if start >= stop:
                    continue
            words[block + lay.B_PROGRESS] = stop
            if not self._plain:
                for index in range(start, stop):
                    self._one(index)
            elif size == 1:
                self._one(start)
            else:
                # Its first results may have to wait for its last: the parent may ask for them.
                words[block + lay.B_UNSENT] = 1
                self._block(start, stop)
            before, now = now, clock()
            took = (now - before) / (stop - start)
            if now - self._flushed_ns >= flush_ns:
                self._tell(now, took)
            elif size == 1:
                words[block + lay.B_UNSENT] = 1
            # Items so small that a word for each start would cost as much are started in blocks.
            if not self._plain or (self._star and size == 1 and took >= 4 * tiny_ns):
                size = 1
            elif size == 1:
                size = _PROBE
            elif took < tiny_ns:
                size = max(2, min(size * 2, int(block_ns / (took + 1))))
            else:
                size, singles = 1, _PROBE_EVERY
        words[block + lay.B_LEFT] = 0
        words[block + lay.B_PROGRESS] = 0
        worker.items += self.next
        return now - begun

    def _singles(self, singles: int, now: int) -> tuple[int, int]:
        """Run items one by one, each with its word, while they are plain and not tiny.

        The same as `run` does, written out: this is the loop of most maps. Returns (how many more are
        to be run singly, the time).
        """
        worker = self._worker
        words, handle, cancel = worker.words, self.handle, worker.table.cancel
        progress, unsent = worker.block + lay.B_PROGRESS, worker.block + lay.B_UNSENT
        row, fn, plain_types = self._row.plain, self._fn, codec.PLAIN_TYPES
        assert row is not None
        flush_ns = int(worker.settings.flush_s * 1e9)
        small_ns = 4 * worker.settings.tiny_s * 1e9
        clock = time.monotonic_ns
        while not cancel[handle]:
            index = self.next
            self.next = index + 1  # before the look at `end`: see split
            if index >= self.end:
                self.next = index
                break
            words[progress] = index + 1
            try:
                value = fn(row[index])
            except BaseException as problem:
                self._failed(index, problem, row[index])
            else:
                if type(value) in plain_types:
                    self.values.append(value)
                else:
                    self._seal_one(index, value, row[index])
            before, now = now, clock()
            if now - self._flushed_ns < flush_ns:
                words[unsent] = 1
            elif index + 1 < self.end:  # else the end of the piece tells
                self._tell(now, now - before)
            if singles:
                singles -= 1
            elif now - before < small_ns:
                break
            if not self._plain:
                break
        return singles, now

    def _tell(self, now: int, took: float) -> None:
        """Put results into the ring, where a kill does not reach them, and wake the parent at times.

        Waking the parent costs it a core: at once for long items, else every `tell_s`.
        """
        worker = self._worker
        settings = worker.settings
        self.flush()
        if took >= settings.flush_s * 1e9 or now - worker.last_flush_ns >= settings.tell_s * 1e9:
            worker.ring_the_parent()
        worker.words[worker.block + lay.B_LEFT] = max(0, self.end - self.next)
        self._flushed_ns = now

    def _ended(self, spent: int) -> bool:
        """Publish the end of the piece; False if there is more to run after all."""
        worker = self._worker
        with worker.write_lock:
            # A `split` that has given up had made `end` smaller for a moment.
            if self.next < self.end and not worker.table.cancel[self.handle]:
                return False
            self._flush_locked()
            self.closed = True
            worker.results.write(self.ident, self.handle, rec.R_END, spent, self.next)
            return True

    def _one(self, index: int) -> None:
        try:
            item = self._row.load(index)
        except DecodeError as problem:
            self._failed(index, problem, None)
            return
        try:
            value = self._fn(*item) if self._star else self._fn(item)
        except BaseException as problem:
            self._failed(index, problem, item)
            return
        if type(value) in codec.PLAIN_TYPES:
            self.values.append(value)
        else:
            self._seal_one(index, value, item)

    def _seal_one(self, index: int, value: Any, item: Any) -> None:
        """Pickle a result that can be changed, now: the next item may change it."""
        self._plain = False
        try:
            one = deliver.seal(self._worker, value)
        except ResultEncodeError as problem:
            self._failed(index, problem, item)
            return
        self.values.append(one)
        if one.buffers:
            # They are still the object's own memory until they are in a memory file.
            self.flush()

    def _block(self, start: int, stop: int) -> None:
        row = self._row.plain
        assert row is not None
        items, fn = row[start:stop], self._fn
        # Not in `values`, which the helper may send at any time; but see `_take_fresh`.
        fresh: list[Any] = []
        self._fresh = fresh
        try:
            # `extend` keeps what it has appended when the iterator raises: that tells which item.
            fresh.extend(itertools.starmap(fn, items) if self._star else map(fn, items))
        except BaseException as problem:
            bad = start + len(fresh)
            self._keep(start, fresh)
            self._failed(bad, problem, row[bad])
            self.next = bad + 1
        else:
            self._keep(start, fresh)
            bad = start + len(fresh)
            if bad < stop:
                # A StopIteration of the function ended the loop as if the items had.
                self._failed(bad, StopIteration("raised by the function"), row[bad])
                self.next = bad + 1

    def _take_fresh(self) -> None:
        """Take the first plain results of the block that runs; write lock held.

        Nobody can change them. The others are pickled by the main thread, after the block.
        """
        fresh, taken = self._fresh, self._taken
        for value in fresh[taken:]:
            if type(value) not in codec.PLAIN_TYPES:
                break
            self.values.append(value)
            taken += 1
        self._taken = taken

    def _keep(self, start: int, fresh: list[Any]) -> None:
        """Take what a block has returned, pickled unless it is plain."""
        with self._worker.write_lock:
            taken, self._taken, self._fresh = self._taken, 0, []
            if sealed.all_plain(fresh):
                self.values.extend(fresh[taken:] if taken else fresh)
                return
        self._plain = False
        row = self._row.plain
        assert row is not None
        for offset, value in enumerate(fresh):
            if offset < taken:
                continue
            try:
                one = deliver.seal(self._worker, value)
            except ResultEncodeError as problem:
                self._failed(start + offset, problem, row[start + offset])
            else:
                self.values.append(one)
                if one.buffers:
                    self.flush()

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
            ns, self._first_ns = self._since()
            deliver.part(self._worker, self.ident, self.handle, ns, self.base + self.sent, batch)
            self.sent = count
            if count >= 4096:
                # Keep the list short; nothing of it is needed any more.
                del self.values[:count]
                self.base += count
                self.sent = 0
        self._worker.words[self._worker.block + lay.B_UNSENT] = 0

    def _since(self) -> tuple[int, int]:
        now = time.monotonic_ns()
        return (now - self._first_ns if self._first_ns else 0), now

    def split(self) -> bool:
        """Give the far half of the items that have not started back to the parent. Helper thread.

        Returns False if there is nothing to give.
        """
        worker = self._worker
        with worker.write_lock:
            if self.closed:
                return False
            first, end = self.next, self.end
            if first >= end:
                return False
            keep = first + (end - first) // 2
            # Pairs with `run`, which stores `next` and then reads `end`: one of the two sees the
            # other's store. If this one does, nothing is given; if both do, nothing is either.
            self.end = keep
            if self.next > keep:
                self.end = end
                return False
            worker.results.write(self.ident, self.handle, rec.R_SPLIT, 0, keep)
            worker.words[worker.block + lay.B_LEFT] = keep - first
            return True
