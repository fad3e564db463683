"""The pool behind an executor: its shared memory, its queues, and what callers' threads do.

See README.md. The supervisor (supervisor.py) is the pool's own thread; it keeps the pool alive until
its work is done, also when the executor object is gone.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._base.cancelresult import CancelResult
from mpsched._deque.deque import Deque
from mpsched._deque.inbox import Inbox
from mpsched._pool import descriptors, guards, launch, stats
from mpsched._pool.calls import Calls
from mpsched._pool.dispatch import Dispatcher
from mpsched._pool.entries import Entries
from mpsched._pool.events import Events
from mpsched._pool.future import Future
from mpsched._pool.leader import Leader
from mpsched._pool.options import DEFAULT, Options
from mpsched._pool.ready import ReadyQueue
from mpsched._pool.revoke import Revoker
from mpsched._pool.task import Task
from mpsched._pool.waiting import Condition
from mpsched._shm import layout as lay
from mpsched._shm.layout import Layout
from mpsched._shm.locks import KernelLocks
from mpsched._shm.parking import Parker
from mpsched._shm.segment import Segment, anonymous_file
from mpsched._shm.transfer import Arrivals, channel
from mpsched._tasks import codec, state as st, table as tab
from mpsched._tasks.table import TaskTable
from mpsched._worker import environment
from mpsched._worker.config import WorkerConfig
from mpsched.errors import EncodeError, PendingLimitReached, SchedulerClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._base.settings import Settings
    from mpsched._pool.mapping import MapRun
    from mpsched._pool.revoke import How
    from mpsched._pool.stats import PoolStats

_BURST_NS: Final = 50_000
"""Submits that follow each other faster than this are a burst, and are dispatched in batches."""
_PAUSE_NS: Final = 1_000_000
"""After a pause of this length a burst is over."""
_BATCH: Final = 64
_TINY_NS: Final = 10_000
_TINY_BATCH: Final = 256
_FEW: Final = 4
"""Submits of a burst that are dispatched at once while a worker may be idle."""
_REVOKE_S: Final = 0.05
_SHORT: Final = 16384
"""Bytes of arguments above which the long way round decides how they travel."""
_REFERENCES: Final = "mpsched._shm.references"

_PLAIN: Final = codec.PLAIN_TYPES
_UNKNOWN: Final = (object(),)
"""Stands for the arguments of a function without a number: not plain."""
_MARSHAL_VERSION: Final = 2
"""The first with exact floats, and the last that looks for no object that occurs twice."""
_dumps = pickle.dumps
_marshal = marshal.dumps
_clock = time.perf_counter_ns


class PoolOptions(NamedTuple):
    """How a pool is made; `WorkStealingExecutor` documents each."""

    workers: int
    method: str
    initializer: Callable[..., Any] | None
    initargs: tuple[Any, ...]
    preload: tuple[str, ...]
    max_tasks: int
    max_rss: int | None
    max_rss_hard: int | None
    max_pending: int | None
    raise_when_full: bool
    aging: float
    settings: Settings


@final
class Pool:
    """Everything of one pool that lives in the parent.

    Attributes:
        refusal: why new work is refused (an exception to raise), or None.
        limited: whether `max_pending` was given.
        ending: taken, once, by the thread that gives everything back.
    """

    def __init__(self, options: PoolOptions, bind: Callable[[Pool], object]) -> None:
        """Open everything and start the supervisor, which gives it back.

        `bind` ties the pool to the life of its owner. It is called before anything runs, so that
        KeyboardInterrupt leaves no pool that nobody can end.
        """
        self.options = options
        self.settings = settings = options.settings
        self.width = width = options.workers
        self.pid = os.getpid()
        self.refusal: Callable[[], Exception] | None = None
        self.forked = False
        self.limited = options.max_pending is not None
        self.last_stats: PoolStats | None = None
        entries = 1 << (settings.entries_per_worker * width - 1).bit_length()
        spares = min(settings.max_spares, width)
        self.layout = layout = Layout.plan(
            width + spares,
            spares=spares,
            entries=entries,
            inline_bytes=settings.inline_bytes,
            inbox_slots=settings.inbox_slots,
            result_words=settings.result_ring_bytes // 8,
            slab_bytes=settings.slab_bytes,
            children=settings.children,
            child_bytes=settings.child_bytes,
            ring_slots=settings.ring_slots,
        )
        settings.check()
        descriptors.require(6 * width + 4 * spares + 16)
        descriptors.fill_standard()
        self.ending = threading.Lock()
        undo = contextlib.ExitStack()
        try:
            self._open(layout, undo)
            self._prepare(layout, undo)
            bind(self)
            self.supervisor.start()
        except BaseException:
            if self.ending.acquire(blocking=False):
                undo.close()
            else:  # interrupted when the supervisor ran already
                self.refuse(closed)
                self.supervisor.draining = True
                self.ring()
            raise
        guards.pools.add(self)

    def _open(self, layout: Layout, undo: contextlib.ExitStack) -> None:
        settings, workers = self.settings, layout.workers
        self.segment = segment = Segment.create(layout.size_bytes)
        undo.callback(segment.close)
        segment.words[lay.H_MAGIC] = lay.MAGIC
        segment.words[lay.H_WORKERS] = workers
        segment.words[lay.H_LIVE] = self.width
        segment.words[lay.H_WAIT] = lay.WAIT_COLLECTOR
        self.locks = KernelLocks(anonymous_file("mpsched-locks", 4096))
        undo.callback(self.locks.close)

        def bell() -> Parker:
            made = Parker.create()
            undo.callback(made.close)
            return made

        self.bells = [bell() for _ in range(workers)]
        self.helper_bells = [bell() for _ in range(workers)]
        self.leader_bell = bell()
        self.collector_bell = bell()
        self.channels = []
        for worker in range(workers):
            Inbox.initialise(segment.words, layout, worker)
            Deque.initialise(segment.words, layout, worker)
            ends = channel()
            self.channels.append(ends)
            for end in ends:
                undo.callback(end.close)
        self.arrivals = [Arrivals(ours) for ours, _theirs in self.channels]
        self.table = TaskTable(segment.bytes, segment.words, layout)
        self.entries = Entries(self.table, layout, settings.slab_most_bytes)
        self.ready = ReadyQueue(self.options.aging)
        self.calls = Calls(segment, layout, settings)
        self._known_number = self.calls.known_number
        self._next_id = self.calls.next_id
        self.dispatcher = Dispatcher(
            segment,
            layout,
            settings,
            self.ready,
            self.entries,
            self.locks,
            self.bells,
            self.collector_bell,
        )
        self.events = Events(self.ring)
        self.leader = Leader(self)
        self.revoker = Revoker(self)
        self.runs: set[MapRun] = set()
        self.unseen: list[MapRun] = []
        self.room = Condition()
        self._last_ns = 0
        self._progress = [-1] * workers
        self._burst = 0
        self._batch = _BATCH

    def _prepare(self, layout: Layout, undo: contextlib.ExitStack) -> None:
        from mpsched._pool.supervisor import Supervisor

        options = self.options
        config = WorkerConfig(
            layout=layout,
            settings=self.settings,
            segment_fd=self.segment.fd,
            lock_fd=self.locks.fd,
            bells=tuple(bell.fds() for bell in self.bells),
            helper_bells=tuple(bell.fds() for bell in self.helper_bells),
            leader_bell=self.leader_bell.fds(),
            collector_bell=self.collector_bell.fds(),
            payload_sockets=tuple(theirs.fileno() for _ours, theirs in self.channels),
            initializer=None
            if options.initializer is None
            else codec.dumps_callable(options.initializer),
            initargs=self._initargs(options.initargs),
            max_tasks=options.max_tasks,
        )
        fds = [
            config.segment_fd,
            config.lock_fd,
            *(fd for pair in (*config.bells, *config.helper_bells) for fd in set(pair)),
            *set(config.leader_bell),
            *set(config.collector_bell),
            *config.payload_sockets,
        ]
        spec = environment.snapshot(config=_dumps(config, 5), preload=options.preload)
        self.supervisor = Supervisor(self, lambda: launch.make(options.method, spec, fds))
        undo.callback(self.supervisor.discard)

    def _initargs(self, initargs: tuple[Any, ...]) -> bytes:
        data, buffers = codec.encode(initargs, threshold=1 << 62)
        assert not buffers, f"{len(buffers)} buffers above the threshold"
        return data

    # --- accepting work ------------------------------------------------------------------------------

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options = DEFAULT,
        index: Iterator[int] | None = None,
    ) -> Future[Any]:
        """Accept one call. Any thread; user code (`__reduce__`) runs in it, under no lock.

        `index` yields the call's place in its batch.

        Raises:
            SchedulerClosed, PoolFailed, ForkedPool: see `refusal`.
            PendingLimitReached: see `max_pending`.
        """
        if self.refusal is not None:
            raise self.refusal()
        if self.limited:
            self._wait_for_room()
        task: Task | None = None
        number = 0
        if options is DEFAULT and not kwargs:
            number = self._known_number(fn)
            for arg in args if number else _UNKNOWN:
                if type(arg) not in _PLAIN:
                    break
            else:
                # As pickle would, at a fifth of the price: only such types take this way.
                data = _marshal(args, _MARSHAL_VERSION)
                if len(data) < _SHORT:
                    meta = tab.KIND_PLAIN | number << tab.FUNCTION_SHIFT
                    task = Task(self._next_id(), meta, data)
        if task is None:
            try:
                task = self._pickled(fn, args, number) if number else None
                if task is None:
                    task = self.calls.call(fn, args, kwargs, options, next(index) if index else 0)
            except (EncodeError, OSError) as problem:
                return self._born_failed(options, problem)
        # crash-point: submit.pickled
        future: Future[Any] = Future(self, task)
        task.future = future
        # crash-point: submit.made
        ready = self.ready
        if options is DEFAULT and ready.simple:
            ready.plain.append(task)
        else:
            ready.append(task, options.priority)
        if self.supervisor.draining and self.revoker.cancel(task):
            # Shut down while the arguments were pickled: perhaps nobody looks into the queue any more.
            raise self.refused()
        if options is not DEFAULT and options.timeout is not None:
            self.supervisor.limits.watch(task, options.timeout)
            self.ring()
        # A burst is dispatched in batches. Whatever is left over then is pumped by whoever reads
        # the next result, and there will be one: something is in flight before anything is held back.
        now = _clock()
        gap = now - self._last_ns
        if gap < _BURST_NS:
            burst = self._burst = self._burst + 1
        else:
            # Halved, not ended: the caller may only have lost its core for a moment.
            burst = self._burst = self._burst >> 1 if gap < _PAUSE_NS else 0
        inflight = len(self.dispatcher.inflight)
        if not inflight or (inflight < self.width and burst < _FEW):
            self.dispatcher.pump()
            now = _clock()
        elif burst >= _BATCH:
            if not burst & (self._batch - 1):
                self.leader.active_ns = now
                self.leader.drain_in_passing(burst=True)
                self.dispatcher.pump()
                # Of tiny tasks a worker does so many in the time that waking it takes.
                tiny = 0 < self.dispatcher.task_ns < _TINY_NS and burst >= _TINY_BATCH
                self._batch = _TINY_BATCH if tiny else _BATCH
                now = _clock()
        elif len(ready) > burst >> 1:
            self.leader.drain_in_passing(burst=False)
            self.dispatcher.pump()
            now = _clock()
        # What counts is the caller's own time between two submits, not ours.
        self._last_ns = now
        return future

    def _pickled(self, fn: Callable[..., Any], args: tuple[Any, ...], number: int) -> Task | None:
        """Make the task of a call with small arguments; None if the long way round must be taken."""
        if _REFERENCES in sys.modules:
            return None  # what travels by reference must be noted while it is encoded
        buffers: list[Any] = []
        try:
            data = _dumps(args, 5, buffer_callback=buffers.append)
        except KeyboardInterrupt:
            raise
        except BaseException:  # SystemExit of a `__reduce__` too
            return None  # the long way round says precisely what is wrong
        if buffers or len(data) >= _SHORT or codec.MAIN_MARK in data:
            return None
        return Task(self._next_id(), tab.KIND_ARGS | number << tab.FUNCTION_SHIFT, data)

    def _born_failed(self, options: Options, problem: Exception) -> Future[Any]:
        task = Task(self.calls.next_id(), 0, b"", options)
        future: Future[Any] = Future(self, task)
        task.future = future
        # The caller holds nothing of it yet, so it can be settled here.
        future._settle(None, lambda: (None, problem), failed=True)
        return future

    def _wait_for_room(self) -> None:
        limit = self.options.max_pending
        assert limit is not None
        if self.pending() < limit or self.unfinished() < limit:
            return
        own = self.in_own_thread()
        if self.options.raise_when_full or own or guards.in_event_loop():
            why = (
                "the pool's own thread (a done-callback) must not wait for itself"
                if own
                else "a running event loop must not be blocked"
                if not self.options.raise_when_full
                else "on_full='raise'"
            )
            raise PendingLimitReached(
                f"{limit} tasks are pending, the pool's max_pending; {why}: "
                "submit again when some are done",
                limit=limit,
            )
        with self.room:
            while self.pending() >= limit:
                if self.refusal is not None:
                    raise self.refusal()
                self.room.wait(0.1)

    def made_room(self) -> None:
        """A task is final: a submitter that waits for room may go on."""
        with self.room:
            self.room.notify_all()

    def end_burst(self) -> None:
        """The caller reads a result: what it submits next is wanted at once."""
        self._burst = 0

    def pending(self) -> int:
        """Tasks that are accepted and not final."""
        return len(self.ready) + len(self.dispatcher.inflight) + len(self.supervisor.alone.waiting)

    def unfinished(self) -> int:
        """As `pending`, without what is final and still has to be accounted for; looks at each task."""
        return len(self.ready) + self.dispatcher.unfinished() + len(self.supervisor.alone.waiting)

    def start_run(self, run: MapRun) -> None:
        """Accept a map."""
        if self.refusal is not None:
            raise self.refusal()
        # First to be run, then to be waited for: an exception between the two leaves no run that
        # nobody runs.
        run.requeue()
        self.runs.add(run)
        self.dispatcher.pump()
        if self.supervisor.draining:
            run.cancel()
            self.runs.discard(run)
            raise self.refused()
        if run.finished:
            self.runs.discard(run)

    def run_finished(self, run: MapRun) -> None:
        """A map has all its results, or needs no more. Twice for the same one is as once."""
        try:
            self.runs.remove(run)
        except KeyError:
            return
        # Added, then looked: whoever begins to read it says so, then takes it out.
        self.unseen.append(run)
        if run.seen():
            self.forget(run)
        self.collector_bell.wake()

    def forget(self, run: MapRun) -> bool:
        """Keep nothing of a map for its report; False if it was not kept. Any thread."""
        try:
            self.unseen.remove(run)
        except ValueError:
            return False
        return True

    # --- asking ---------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """Raise ForkedPool in a process that was forked from the pool's parent."""
        if self.forked:
            raise guards.forked()

    def in_own_thread(self) -> bool:
        """Whether the caller is a callback, in the supervisor's thread."""
        return threading.get_ident() == self.supervisor.thread.ident

    def is_running(self, task: Task) -> bool:
        """Whether a worker runs `task` now, as far as its state word tells."""
        handle = task.handle
        return handle >= 0 and (self.table.state[handle] & 255) == st.RUNNING

    def started_of(self, piece: Task) -> int:
        """Return how many items of a piece of a map were started, as far as its worker tells."""
        if not self.is_running(piece):
            return 0
        worker = self.table.state[piece.handle] >> 8
        return int(self.segment.words[self.layout.block(worker) + lay.B_PROGRESS])

    def patience(self, left: float | None) -> float:
        """Seconds that a leader sleeps before it looks whether a worker sits on results."""
        wait = 1.0
        if self.runs:
            wait = 2 * self.settings.tell_s
            for worker in range(self.segment.words[lay.H_LIVE]):
                words, block = self.segment.words, self.layout.block(worker)
                progress = words[block + lay.B_PROGRESS] if words[block + lay.B_UNSENT] else -1
                if progress >= 0 and progress == self._progress[worker]:
                    # The same item as at the last look, with results behind it. Its helper takes
                    # the GIL from it for a moment, so only then.
                    self.helper_bells[worker].wake()
                    wait = 0.005
                self._progress[worker] = progress
        return wait if left is None else min(wait, left)

    def ring(self) -> None:
        """Wake the supervisor."""
        self.collector_bell.wake()

    def stats(self) -> PoolStats:
        """Return the counters; those of its end once the pool has terminated."""
        pids = self.supervisor.pids()
        try:
            return stats.take(
                self.segment.words,
                self.layout,
                pids,
                ready=len(self.ready) + len(self.supervisor.alone.waiting),
                inflight=len(self.dispatcher.inflight),
                deaths=self.supervisor.deaths,
                refill_delay_s=self.dispatcher.refill_delay_ns / 1e9,
                window=self.dispatcher.window(),
            )
        except ValueError:  # the segment is closed, and `last_stats` was taken before
            if self.last_stats is None:
                raise
            return self.last_stats

    # --- taking back: see revoke.py ---------------------------------------------------------------------

    def cancel(self, task: Task) -> bool:
        """Prevent `task` from starting (True), else set its signal (False). Any thread."""
        return bool(self.revoker.cancel(task))

    def cancel_running(self, future: Future[Any], how: How) -> CancelResult:
        """Cancel a root whether it runs or not; see `WorkStealingExecutor.cancel_running`."""
        answer = CancelResult.TOO_LATE
        if not future.done():
            answer = self.revoker.cancel(future._task, how)
        return CancelResult.PREVENTED if future.cancelled() else answer

    def retry(self, task: Task, error: BaseException, *, alone: bool = False) -> bool:
        """Queue another attempt if the task's options want one after `error`. Leader's section held.

        Safe to see the same end twice: the attempt in the entry tells. The entry is kept until the
        dispatcher gives the task another, so that nobody else can get it in between. With `alone` it
        runs with no other beside it (the supervisor only).
        """
        options, handle = task.options, task.handle
        if self.entries.attempt(handle) == task.attempt:
            if task.attempt > options.retries or not isinstance(error, options.retry_on):
                return False
            if self.table.cancel[handle] and task.killed != "timeout":
                return False  # nobody wants it any more
            task.attempt += 1
            if task.attempt > options.retries:
                task.meta &= ~tab.FLAG_RERUN
            if self.events.wanted("retried"):
                self.events.note("retried", f"{type(error).__name__}: {error}", task=task)
        task.killed = None
        self.table.state[handle] = st.FREE
        task.why = None
        self.dispatcher.inflight.pop(task.id, None)
        if alone:
            self.supervisor.alone.add(task)
        else:
            self.ready.put_back(task, options.priority)
        if options.timeout is not None:
            self.supervisor.limits.watch(task, options.timeout)
            self.ring()
        return True

    # --- ending -----------------------------------------------------------------------------------------

    def refused(self) -> Exception:
        """Return why new work is refused, as an error to raise."""
        assert self.refusal is not None, "the pool is accepting"
        return self.refusal()

    def refuse(self, make: Callable[[], Exception]) -> None:
        """Refuse new work from now on; the first reason stays."""
        if self.refusal is None:
            self.refusal = make

    def idle(self) -> bool:
        """Whether nothing that was accepted is left to do."""
        return not (
            self.ready
            or self.dispatcher.inflight
            or self.dispatcher.moving()
            or self.runs
            or self.revoker.doubtful
            or self.supervisor.alone.waiting
        )

    def gone(self) -> None:
        """The pool is terminated: nobody needs to close it at exit any more."""
        guards.pools.discard(self)

    def close_files(self, *, unmap: bool) -> None:
        """Give everything back; the supervisor calls it last.

        With `unmap` nobody looks at the segment any more; else it goes with the last who could.
        """
        if unmap:
            self.leader.close()
            for inbox in self.dispatcher.inboxes:
                inbox.close()
            self.supervisor.burial.trees.close()
            self.table.close()
        self.arrivals_close()
        self.calls.clear()
        for ours, theirs in self.channels:
            ours.close()
            theirs.close()
        for bell in (*self.bells, *self.helper_bells, self.leader_bell, self.collector_bell):
            bell.close()
        self.locks.close()
        self.segment.close(unmap=unmap)

    def arrivals_close(self) -> None:
        """Close received files that nobody fetched."""
        for arrivals in self.arrivals:
            arrivals.close_all()


def closed() -> SchedulerClosed:
    """Return what a submit after shutdown raises."""
    return SchedulerClosed("the pool was shut down and takes no new work: make a new one")
