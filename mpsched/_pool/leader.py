"""Leader and followers: whoever waits for a result reads results for everybody.

See README.md, "Leader and followers". One thread at a time drains the workers' result rings: the
one that waits in `result()` or in a map's iterator, a submitter in passing, or the collector when
nobody else does. A leader completes futures that have no callbacks and no outside waiters; the
others it hands to the collector. It never runs callbacks and unpickles nothing of the user's.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from concurrent.futures._base import FINISHED, PENDING
from typing import TYPE_CHECKING, Any, final

from mpsched._pool.blocks import Results
from mpsched._pool.future import COMPLETION
from mpsched._pool.section import Section
from mpsched._shm import layout as lay, payloads
from mpsched._shm.words import Damaged, fence
from mpsched._tasks import codec, failure, records as rec

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._pool.core import Pool
    from mpsched._pool.future import Future
    from mpsched._pool.mapping import MapRun
    from mpsched._pool.task import Task
    from mpsched._shm.references import Carried

Raw = "Callable[[], tuple[Any, BaseException | None]]"
_FEW = 256
"""Records that a submitter drains from each ring in passing."""
_PLAIN_END = (rec.R_FLOAT + 1) << 24
"""`handle | kind << 24` of a record whose value word says it all is below this."""
_AWAY_NS = 1_000_000
"""Nanoseconds after which a thread that led is taken to be busy with something else."""
_NAP_S = (0.002, 0.5)
"""Seconds after which a leader looks at the rings without having been woken: first, most."""
_OUTSIDERS_NS = 50_000_000
"""Nanoseconds for which somebody who waits from outside keeps the collector in charge."""


@final
class Leader:
    """Drains the result rings of one pool.

    Invariant LEADER-1: a record is processed before its ring's head moves past it, and processing
    it twice is the same as once; so an exception at any line loses nothing.

    Attributes:
        section: who drains.
        finished: futures that the collector is to complete, with what they hold.
        ended: something has ended since the last pump, so that there may be room.
        lingering: results may lie for a moment (see `linger`); active_ns: when a caller last read or
            submitted (`time.perf_counter_ns`).
        wanted: the collector wants to lead (a worker died): the leader makes room.
        asked: the leader that is woken is to read all rings (see `ask`).
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._words = pool.segment.words
        self._every_reader = [
            rec.ResultReader(pool.segment.bytes, pool.segment.words, pool.layout, worker)
            for worker in range(pool.layout.workers)
        ]
        self._readers = self._every_reader[: pool.width]
        self.section = Section()
        self.finished: deque[tuple[Future[Any], Any, Any, bool]] = deque()
        self.notices: deque[tuple[int, int, int, bytes]] = deque()
        self.wanted = False
        self.asked = False
        self.lingering = False
        self.ended = False
        self.active_ns = 0
        self._outsider_ns = -_OUTSIDERS_NS
        self._worker = 0
        self._busy_ns = 0
        self._count = 0

    # --- leading ------------------------------------------------------------------------------------

    def lead(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Drain and dispatch until `done()`; the calling thread needs what it waits for.

        Returns:
            True if `done()`; False if somebody else leads, the collector wants to, or the deadline
            (`time.monotonic()`) is over: then the caller follows, or raises.
        """
        pool = self._pool
        pool.end_burst()
        nap = self._nap()
        fresh = True
        late = False
        while not done():
            pool.check_process()
            if self.wanted or not self.section.try_enter():
                return done()
            words, bell = self._words, pool.leader_bell
            try:
                # crash-point: leader.entered
                words[lay.H_WAIT] = lay.WAIT_NOBODY
                while not done() and not self.wanted:
                    # Items of a map end all the time: read them when a worker tells, or at times.
                    drained = self.drain() if late or self._news() else 0
                    late = False
                    if drained:
                        nap = self._nap()
                    if self._room_came(drained):
                        pool.dispatcher.pump()
                        if done():
                            break
                    if self.finished:
                        # Perhaps what this thread waits for; the collector rings back (`settled`).
                        pool.collector_bell.wake()
                    if fresh:
                        fresh = False
                        if self._result_comes_soon():
                            continue
                    # Announce, then look at every ring once more; pairs with
                    # Worker.ring_the_parent (publish, fence, read H_WAIT).
                    words[lay.H_WAIT] = lay.WAIT_LEADER
                    fence()
                    # crash-point: leader.announced
                    if self._news() or done():
                        words[lay.H_WAIT] = lay.WAIT_NOBODY
                        continue
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return done()
                    # A worker rings once per batch of results; if a long task follows a short one,
                    # only a look tells that the short one is done.
                    if bell.wait(min(nap, pool.patience(left))):
                        late, self.asked = self.asked, False
                    else:
                        late = True
                        nap *= 2
                        if nap > _NAP_S[1]:
                            nap = _NAP_S[1]
                            pool.ring()  # its looks put right what an exception has left
                    words[lay.H_WAIT] = lay.WAIT_NOBODY
            except Damaged:
                if pool.in_own_thread():
                    raise
                pool.ring()  # the supervisor meets it too, and fails what the caller waits for
                return done()
            finally:
                self._hand_over()
            if deadline is not None and time.monotonic() >= deadline:
                return done()
        return True

    def _room_came(self, drained: int) -> bool:
        """Whether there may be something to dispatch, and room for it."""
        pool = self._pool
        if pool.runs and not self.ended:
            # Nothing but results of items: whatever else is new, its submitter has pumped.
            return pool.dispatcher.moving()
        self.ended = False
        return bool(drained or pool.ready) or pool.dispatcher.moving()

    def _result_comes_soon(self) -> bool:
        """Look at the rings for some microseconds before sleeping; True if something came.

        Only where tasks take no longer than a wake-up; see `idle.linger`, the worker's side of it.
        """
        pool = self._pool
        linger_ns = int(pool.settings.linger_s * 1e9)
        if pool.runs or not 0 < pool.dispatcher.task_ns < linger_ns:
            return False
        clock = time.perf_counter_ns
        until = clock() + linger_ns
        while self._all_empty():
            if clock() >= until:
                return False
            os.sched_yield()
        return True

    def _nap(self) -> float:
        """Seconds of the first look after results came; pieces of a map tell every `tell_s` anyway."""
        return 2 * self._pool.settings.tell_s if self._pool.runs else _NAP_S[0]

    def _hand_over(self) -> None:
        """Stop leading: linger, or leave it to the collector. Leaves the section."""
        pool = self._pool
        if not self.wanted and self.linger():
            self.section.leave()
            if self.finished:
                pool.collector_bell.wake()
            return
        # Whoever publishes from here on rings the collector ...
        self._words[lay.H_WAIT] = lay.WAIT_COLLECTOR
        self.section.leave()
        fence()
        # crash-point: leader.left
        # ... and what was published before is told to it.
        if self.wanted or self.finished or pool.ready or self._news():
            pool.collector_bell.wake()

    def ask(self) -> None:
        """Have all results read that were published, told or not. Supervisor.

        A bell alone would not do: who is rung more often than it naps, while a map runs, reads only what
        it was told of.
        """
        self.asked = True
        self._pool.leader_bell.wake()

    def settled(self) -> None:
        """The collector has completed futures: the leader may have waited for one of them."""
        if self._words[lay.H_WAIT] == lay.WAIT_LEADER:
            self._pool.leader_bell.wake()

    def linger(self) -> bool:
        """Let results lie for a moment, because this thread is about to read them. Section held.

        A hand-over of the GIL to the collector costs more than a batch of results, and a thread
        that has just submitted much or read a result is about to do so again. Meanwhile the
        collector looks by itself every few milliseconds, and takes over once the thread has been
        away for `_AWAY_NS`. Whoever waits from outside (a callback, `wait`) ends it at once.
        """
        now = time.perf_counter_ns()
        if now - self._outsider_ns < _OUTSIDERS_NS:
            return False
        self.active_ns = now
        self._words[lay.H_WAIT] = lay.WAIT_NOBODY
        if not self.lingering:
            self.lingering = True
            self._pool.collector_bell.wake()
        return True

    def outsider(self) -> None:
        """Somebody waits who cannot lead. Any thread."""
        self._outsider_ns = time.perf_counter_ns()
        pool = self._pool
        if self.lingering or pool.supervisor.dozing or self.section.taken():
            pool.collector_bell.wake()

    def drain_in_passing(self, *, burst: bool) -> None:
        """Read what is there if nobody else does; bounded. A submitter calls it."""
        if self.wanted or not self.section.try_enter():
            return
        try:
            self.drain(_FEW)
            if burst:
                self.linger()
        except Damaged:
            self._pool.ring()  # the supervisor meets it too, and fails the pool
        finally:
            self.section.leave()
            # Whoever was rung meanwhile has found the section taken.
            if self.finished or (self._news() and not self.lingering):
                self._pool.collector_bell.wake()

    def collect(self) -> None:
        """The collector's turn: drain if nobody leads, and become the one to be woken."""
        if not self.section.try_enter():
            return
        try:
            if self.lingering:
                now = time.perf_counter_ns()
                outsiders = now - self._outsider_ns < _OUTSIDERS_NS
                if now - self.active_ns < _AWAY_NS and not outsiders:
                    return
                self.lingering = False
            for waiting in (None, lay.WAIT_COLLECTOR):
                if waiting is not None:
                    self._words[lay.H_WAIT] = waiting
                    fence()
                while self.drain():
                    self._pool.dispatcher.pump()
                    if not self._news():
                        break
        finally:
            self.section.leave()

    def close(self) -> None:
        """Let go of the segment; nobody can lead any more."""
        for reader in self._every_reader:
            reader.close()

    def read_from(self, worker: int) -> None:
        """Read the results of a spare, too, which was never started before. Supervisor."""
        self._readers = [*self._readers, self._every_reader[worker]]

    def unread(self, worker: int) -> bool:
        """Whether a worker has published what nobody has read yet; a hint unless after a fence."""
        return not self._every_reader[worker].empty()

    def _news(self) -> bool:
        """Whether there are results that a worker has told of, or would have: see B_TOLD.

        Results of a map's single items come all the time; nobody is woken for each of them, and so
        nobody stays awake for them.
        """
        if not self._pool.runs:
            return not self._all_empty()
        return any(reader.told() for reader in self._readers)

    def _all_empty(self) -> bool:
        return all(reader.empty() for reader in self._readers)

    # --- draining -----------------------------------------------------------------------------------

    def drain(self, limit: int = 1 << 20) -> int:
        """Read up to `limit` records of each ring; the section is held. Returns how many."""
        total = 0
        for reader in self._readers:
            if reader.empty():
                continue
            self._worker = reader.worker
            self._busy_ns = self._count = 0
            # What comes while this reads is for the next time: it may never end.
            left = min(limit, reader.waiting())
            while left > 0:
                # One lock for many completions; makers of a Condition wait for it (FUTURE-1).
                words, head = reader.take_plain(min(left, 512))
                if words:
                    # crash-point: leader.taken
                    with COMPLETION:
                        self._accept_plain(words)
                    count = len(words) // rec.HEAD_WORDS
                else:
                    most = min(left, 512)
                    records, head = reader.take(most)
                    if not records:
                        reader.advance(head)
                        break
                    # crash-point: leader.taken-payloads
                    with COMPLETION:
                        self._accept_all(records)
                    count = len(records)
                    if count < most:
                        left = 0  # that was all
                # crash-point: leader.accepted
                reader.advance(head)
                # crash-point: leader.advanced
                left -= count
                total += count
            if self._count:
                self.ended = True
                block = self._pool.layout.block(reader.worker)
                delay = time.monotonic_ns() - self._words[block + lay.B_FLUSH_NS]
                self._pool.dispatcher.note_times(self._busy_ns / self._count, delay)
        return total

    def _accept_plain(self, words: list[int]) -> None:
        """Process records of tasks without a payload.

        The common case, a value that nobody waits for from outside, is written out here; `_accept`
        has the others.
        """
        pool, worker = self._pool, self._worker
        entries, inflight = pool.entries, pool.dispatcher.inflight
        placed, pop = entries.placed, inflight.pop
        over: list[int] = []
        busy = 0
        word = iter(words)
        for ident, about, ns, value in zip(word, word, word, word, strict=True):
            handle = about & 0xFFFFFF
            task = placed[handle]
            if task is not None and task.id == ident and about < _PLAIN_END and not task.place:
                future = task.future
                if future is not None and not future._shared and future._state is PENDING:
                    if about >= 1 << 24:
                        future._result = rec.plain_value(about >> 24, value)
                    future._ns = ns
                    future.worker = worker
                    future._state = FINISHED
                    task.future = None  # each holds the other: a result must go with its future
                    if future.shared():
                        # A finalizer ran just now, in this very thread, and made a Condition.
                        self.finished.append((future, future._result, None, False))
                    busy += ns
                    pop(ident, None)
                    if task.holds is not None:
                        task.holds = None
                    task.handle = -1
                    over.append(handle)
                    continue
            kind = about >> 24
            self._accept(ident, handle, kind, ns, rec.plain_value(kind, value), value)
        entries.free_inline(over)
        self._busy_ns += busy
        self._count += len(over)
        if pool.limited and over:
            pool.made_room()

    def _accept_all(self, records: list[rec.Record]) -> None:
        """Process records in order; those of neighbouring items of a map become one block."""
        parts: list[tuple[int, bytes]] = []
        piece = place = first = following = 0
        for ident, handle, kind, ns, payload, value in records:
            if kind != rec.R_PART:
                if parts:
                    self._accept_parts(piece, place, first, parts)
                    parts = []
                self._accept(ident, handle, kind, ns, payload, value)
                continue
            start, count = value & 0xFFFFFFFF, value >> 32
            if parts and (start != following or ident != piece):
                self._accept_parts(piece, place, first, parts)
                parts = []
            if not parts:
                piece, place, first = ident, handle, start
            parts.append((count, payload))
            following = start + count
        if parts:
            self._accept_parts(piece, place, first, parts)

    def _accept_parts(
        self, ident: int, handle: int, start: int, parts: list[tuple[int, bytes]]
    ) -> None:
        task = self._pool.entries.placed[handle]
        if task is not None and task.id == ident and task.run is not None:  # else late
            task.run.deliver_parts(task, task.start + start, parts)

    def _accept(
        self, ident: int, handle: int, kind: int, ns: int, payload: float | bytes, value: int
    ) -> None:
        """Process one record. May see the same one twice (LEADER-1)."""
        pool = self._pool
        task = pool.entries.placed[handle]
        if task is None or task.id != ident or kind > rec.R_SPLIT:
            # Late: its task is final, or runs again. Or it is about the worker itself.
            if kind >= rec.R_READY:
                assert isinstance(payload, bytes)
                self.notices.append((self._worker, kind, ident, payload))
                pool.collector_bell.wake()
            return
        if task.run is not None:
            self._accept_piece(task, kind, ns, payload, value)
            return
        self._busy_ns += ns
        self._count += 1
        future = task.future
        if (
            future is not None  # else it is final, and this record was seen before
            and not future.done()
            and not self._complete(task, future, kind, ns, payload, value)
        ):
            return
        if kind == rec.R_LARGE:
            pool.arrivals[self._worker].close(value)
        if task.handle == handle:
            pool.dispatcher.inflight.pop(ident, None)
            task.holds = None
        pool.entries.free(handle)
        if pool.limited:
            pool.made_room()

    def _complete(
        self,
        task: Task,
        future: Future[Any],
        kind: int,
        ns: int,
        payload: float | bytes,
        value: int,
    ) -> bool:
        """Make the future final, or have it made so; False if the task is to run again."""
        if kind == rec.R_ERROR and task.options.retries:
            assert isinstance(payload, bytes)
            if self._pool.retry(task, failure.decode_exception(payload)):
                return False
        result: Any = None
        raw: Any = None
        if kind <= rec.R_BYTES:
            result = payload
        else:
            raw = self._loader(task, kind, payload, value)
        future._ns = ns
        future.worker = self._worker
        failed = kind == rec.R_ERROR
        if not future._finish(result, raw, failed):
            self.finished.append((future, result, raw, failed))
        return True

    def _loader(self, task: Task, kind: int, payload: Any, tag: int) -> Any:
        """Return what makes (value, error) of a record, in the thread that asks."""
        if kind == rec.R_ERROR:
            label = task.options.name

            def load_error() -> tuple[Any, BaseException | None]:
                error = failure.decode_exception(payload)
                if label:
                    error.add_note(f"name: {label}")
                return None, error

            return load_error
        if kind == rec.R_LARGE:
            try:
                inband, views, carried = self._received(tag, payload)
            except OSError as lost:
                error = lost
                return lambda: (None, error)
            if carried is None:
                return lambda: codec.decode_result(inband, views)

            def load_carried() -> tuple[Any, BaseException | None]:
                with carried.used():
                    return codec.decode_result(inband, views)

            return load_carried
        return lambda: codec.decode_result(payload, ())

    def _accept_piece(self, task: Task, kind: int, ns: int, payload: Any, value: int) -> None:
        run = task.run
        if run is None:
            return
        offset, count = value & 0xFFFFFFFF, value >> 32
        start = task.start + offset
        if kind == rec.R_PART_LARGE:
            tag, body = pickle.loads(payload)
            if not run.has(start):
                self._deliver_large(task, run, start, count, tag, body)
            self._pool.arrivals[self._worker].close(tag)
        elif kind == rec.R_PART_ERROR:
            run.deliver_error(task, start, _item_error(payload, start))
        elif kind == rec.R_SPLIT:
            run.split(task, offset)
            self.ended = True
        else:
            if kind == rec.R_ERROR:
                # Its function, or what it came in, could not be unpickled: no item of it was run.
                for index in range(task.start, task.end):
                    run.deliver_error(task, index, _item_error(payload, index))
                offset = 0
            self._busy_ns += ns
            self._count += 1
            handle = task.handle
            if payload and kind == rec.R_END and task.items is not None:
                # `value` is where the piece ended; the last results end there.
                run.deliver(task, start - count, count, Results([payload], (), None))
            self._pool.dispatcher.inflight.pop(task.id, None)
            run.ended(task, ns, offset)
            task.holds = None
            self._pool.entries.free(handle)

    def _deliver_large(
        self, task: Task, run: MapRun, start: int, count: int, tag: int, body: bytes
    ) -> None:
        try:
            inband, views, carried = self._received(tag, body)
        except OSError as lost:
            for index in range(start, start + count):
                run.deliver_error(task, index, lost)
            return

        run.deliver(task, start, count, Results([inband], views, carried))

    def _received(self, tag: int, body: Any) -> tuple[Any, list[memoryview], Carried | None]:
        """Return (in-band bytes, buffers, descriptors of shared arrays) of a result in files.

        Raises:
            OSError: Its files did not find room in this process.
        """
        inband, spans = pickle.loads(body)
        fd, *others = self._pool.arrivals[self._worker].fds(tag)
        views = payloads.map_private(fd, spans)
        if inband is None:
            inband, *views = views
        if not others:
            return inband, views, None
        from mpsched._shm.references import Carried  # with it, submit looks at every argument

        return inband, views, Carried(others)


def _item_error(payload: bytes, index: int) -> Callable[[], BaseException]:
    """Return what makes the error of a map's item, in the thread that asks."""

    def load() -> BaseException:
        error = failure.decode_exception(payload)
        error.add_note(f"index {index} of the map")
        return error

    return load
