"""A pool without processes: the parent's side and the workers' sides in one thread.

Everything is real but the processes and the supervisor's thread: memory, locks, bells, rings. A test
does what each side would do, in the order that it wants to see. (Kernel locks do not exclude the sides
from each other here, because they are one process; `locks.taken` does where a test needs it.)
"""

from __future__ import annotations

import itertools
import os
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from mpsched._base.settings import Settings
from mpsched._deque.deque import Deque
from mpsched._deque.inbox import Inbox
from mpsched._pool.dispatch import Dispatcher
from mpsched._pool.entries import Entries
from mpsched._pool.future import Future
from mpsched._pool.leader import Leader
from mpsched._pool.options import DEFAULT
from mpsched._pool.ready import ReadyQueue
from mpsched._pool.task import Task
from mpsched._shm import layout as lay
from mpsched._shm.layout import Layout
from mpsched._shm.locks import KernelLocks
from mpsched._shm.parking import Parker
from mpsched._shm.segment import Segment, anonymous_file
from mpsched._shm.words import fence
from mpsched._tasks import state as st, table as tab
from mpsched._tasks.names import FunctionWriter
from mpsched._tasks.table import TaskTable
from mpsched._worker.config import WorkerConfig
from mpsched._worker.worker import Worker
from tests.support.stores import StateView, Stores, as_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._pool.core import Pool


class ParentLocks:
    """The parent's kernel locks, some of which another process seems to hold.

    Attributes:
        taken: locks that cannot be had.
        tries: how often a taken one was tried.
        owner: the process that has those that are taken; 0 if that cannot be told.
    """

    def __init__(self, real: KernelLocks) -> None:
        self._real = real
        self.taken: set[int] = set()
        self.tries = 0
        self.owner = 0

    def holder(self, index: int) -> int:
        return self.owner if index in self.taken else 0

    def try_acquire(self, index: int) -> bool:
        if index in self.taken:
            self.tries += 1
            return False
        return self._real.try_acquire(index)

    def release(self, index: int) -> None:
        self._real.release(index)


class QuietPool:
    """What `Leader`, `Dispatcher` and `Future` need of a pool, and the workers of it.

    Attributes:
        workers: each worker's side; none of them runs anything by itself.
        lost: ids of roots whose worker is dead, and whose children are waited for.
    """

    def __init__(self, width: int = 2, **settings: Any) -> None:
        small = {
            "entries_per_worker": 16,
            "window": 8,
            "inbox_slots": 16,
            "result_ring_bytes": 4096,
            "children": 8,
            "ring_slots": 8,
            "child_bytes": 256,
        }
        self.settings = Settings(**{**small, "slab_bytes": 1 << 16, **settings})
        self.width = width
        self.layout = layout = Layout.plan(
            width,
            entries=1 << (self.settings.entries_per_worker * width - 1).bit_length(),
            inbox_slots=self.settings.inbox_slots,
            result_words=self.settings.result_ring_bytes // 8,
            slab_bytes=self.settings.slab_bytes,
            children=self.settings.children,
            child_bytes=self.settings.child_bytes,
            ring_slots=self.settings.ring_slots,
        )
        self.segment = Segment.create(layout.size_bytes)
        self.real_locks = KernelLocks(anonymous_file("quiet-locks", 64))
        self.locks = ParentLocks(self.real_locks)
        self.bells = [Parker.create() for _ in range(width)]
        self.helper_bells = [Parker.create() for _ in range(width)]
        self.leader_bell, self.collector_bell = Parker.create(), Parker.create()
        for worker in range(width):
            Inbox.initialise(self.segment.words, layout, worker)
            Deque.initialise(self.segment.words, layout, worker)
        self.segment.words[lay.H_LIVE] = width
        self.segment.words[lay.H_WAIT] = lay.WAIT_COLLECTOR
        self.table = TaskTable(self.segment.bytes, self.segment.words, layout)
        checked = as_memory(StateView(self.table.state, Stores()))
        self.table.state = checked
        self.entries = Entries(self.table, layout, self.settings.slab_most_bytes)
        self.ready = ReadyQueue(0.0)
        self.functions = FunctionWriter(self.segment.bytes, self.segment.words, layout)
        self.dispatcher = Dispatcher(
            self.segment,
            layout,
            self.settings,
            self.ready,
            self.entries,
            cast("KernelLocks", self.locks),
            self.bells,
            self.collector_bell,
        )
        self.limited = False
        self.forked = False
        self.runs: set[object] = set()
        self.lost: set[int] = set()
        trees = SimpleNamespace(holds=lambda task: task.id in self.lost)
        self.supervisor = SimpleNamespace(
            dozing=False, burial=SimpleNamespace(trees=trees), pid_of=lambda _worker: 0
        )
        self.as_pool = cast("Pool", self)
        self.leader = Leader(self.as_pool)
        self._ids = itertools.count(1)
        self.workers = [self._worker(index) for index in range(width)]
        for inbox in [*self.dispatcher.inboxes, *(i for w in self.workers for i in w.inboxes)]:
            inbox._state = checked
        for one in self.workers:
            one.table.state = checked

    def _worker(self, index: int) -> Worker:
        config = WorkerConfig(
            layout=self.layout,
            settings=self.settings,
            segment_fd=os.dup(self.segment.fd),
            lock_fd=self.real_locks.fd,
            bells=tuple(bell.fds() for bell in self.bells),
            helper_bells=tuple(bell.fds() for bell in self.helper_bells),
            leader_bell=self.leader_bell.fds(),
            collector_bell=self.collector_bell.fds(),
            payload_sockets=(),
            initializer=None,
            initargs=b"",
            max_tasks=0,
        )
        return Worker(config, index, 1)

    # --- what a pool has ------------------------------------------------------------------------

    def check_process(self) -> None:
        """It was never forked."""

    def end_burst(self) -> None:
        """It has no bursts."""

    def ring(self) -> None:
        self.collector_bell.wake()

    def patience(self, left: float | None) -> float:
        return 60.0 if left is None else left

    # --- what tests do --------------------------------------------------------------------------

    def task(self, fn: Callable[..., Any] = abs, *args: Any) -> Task:
        """Return a new task with a future, in no queue yet."""
        meta = tab.KIND_ARGS | self.functions.number(fn) << tab.FUNCTION_SHIFT
        task = Task(next(self._ids), meta, pickle.dumps(args, 5), DEFAULT)
        task.future = Future(self.as_pool, task)
        return task

    def submit(self, *tasks: Task) -> None:
        """Append to the ready queue; nobody pumps."""
        for task in tasks:
            self.ready.append(task)

    def push(self, worker: int, count: int = 1) -> list[int]:
        """Put tasks into one inbox, as the dispatcher would, and ring as it would."""
        span = self.entries.allocate(count)
        assert len(span) == count, span
        for handle in span:
            task = self.task()
            assert self.entries.write(handle, task, st.word(st.QUEUED, worker))
            self.dispatcher.inflight[task.id] = task
        self.dispatcher.inboxes[worker].push(list(span))
        fence()
        self.dispatcher._wake(worker)
        return list(span)

    def close(self) -> None:
        """Close everything, and let go of it: a mapping keeps a descriptor as long as it has views."""
        for worker in self.workers:
            worker.segment.close()
            worker.__dict__.clear()
        for bell in (*self.bells, *self.helper_bells, self.leader_bell, self.collector_bell):
            bell.close()
        self.real_locks.close()
        self.segment.close()
        self.__dict__.clear()
