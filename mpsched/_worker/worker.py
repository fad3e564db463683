"""One worker: its views of the segment, its sources of work, and the order in which it looks.

See README.md, "Main loop". Everything here runs in the worker's main thread, except what helper.py
calls (`give_back`, `revoke`), which says so.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, final

from mpsched._deque.deque import Deque
from mpsched._deque.inbox import Inbox
from mpsched._shm import layout as lay
from mpsched._shm.locks import KernelLocks
from mpsched._shm.parking import Parker
from mpsched._shm.segment import Segment
from mpsched._shm.words import MASK, fence
from mpsched._tasks import origin, state as st
from mpsched._tasks.children import Children
from mpsched._tasks.records import ResultWriter
from mpsched._tasks.table import ATTEMPT_SHIFT, FLAG_RERUN, TaskTable
from mpsched._worker import early, outcome, stolen
from mpsched._worker.context import TaskContext
from mpsched._worker.heldring import HeldRing

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from mpsched._worker.ahead import Ahead
    from mpsched._worker.away import Away
    from mpsched._worker.baseline import Baseline
    from mpsched._worker.config import WorkerConfig
    from mpsched._worker.outcome import Kept


def _look_away(_handle: int) -> None:
    """Nothing can be read before somebody can run it."""


@final
class Worker:
    """The worker's side of a pool. One per process; made by main.py.

    Attributes:
        local: handles that are CLAIMED by this worker, oldest first. `popleft` by the main thread is
            the start of a root; the helper thread takes from the right or removes one (both atomic).
        current: handle of the root that runs, or whose child does; None between tasks.
        run: run key of the root that all on the stack belongs to, if it has to do with fork-join; 0.
        stolen: entries of other workers' children that run here, the outermost first.
        published: entry -> record of the children that are in the table. `away.fork_lock`.
        kept: entry -> files of outcomes that their home has not fetched yet.
        keeps_blocks: whether shared arrays of children that ran here may still be mapped (outcome.py).
        others: each other worker, and where its WAITS word is; `asked`: what says there that it wants work of this one.
        in_section: ident of the thread that holds a ring's lock, which a finalizer must not take again.
        child_ns: nanoseconds that the last child of another worker took here.
        recent_ns: mean nanoseconds of recent roots; 0 before the first.
        chunk: the piece of a map that runs, or None (chunk.py).
        patient_ns: until then (monotonic ns) results of ended roots need not be told of.
        tell_ns: nanoseconds after which the parent is told of results of maps; parent_ns: before it (monotonic ns) that is
            not so, as far as was seen.
        look_ahead: reads what it can of a root that is not claimed yet (run.py); ahead: what that has found.
        baseline: what it was like when it was ready; None until then.
        write_lock: guards the result ring between the main and the helper thread.
    """

    def __init__(self, config: WorkerConfig, index: int, incarnation: int) -> None:
        self.config = config
        self.settings = config.settings
        self.index = index
        self.incarnation = incarnation
        self.pid = os.getpid()
        layout = config.layout
        segment = Segment(config.segment_fd, layout.size_bytes)
        self.segment = segment
        self.words = segment.words
        self.block = layout.block(index)
        self.locks = KernelLocks(config.lock_fd)
        self.ring_lock = threading.Lock()
        self.write_lock = threading.Lock()
        self.inboxes = [Inbox(segment.words, layout, w) for w in range(layout.workers)]
        self.inbox = self.inboxes[index]
        self._early = self.inbox.early
        self.table = TaskTable(segment.bytes, segment.words, layout)
        self.deques = [Deque(segment.words, layout, w) for w in range(layout.workers)]
        self.deque = self.deques[index]
        self._waiting = [HeldRing(self, ring, wait=True) for ring in self.deques]
        self._trying = [HeldRing(self, ring, wait=False) for ring in self.deques]
        self.children = Children(self.table, layout, index)
        self.published: dict[int, Away] = {}
        self.kept: dict[int, Kept] = {}
        self.stolen: list[int] = []
        self.run = 0
        self.keeps_blocks = False
        self.in_section = 0
        self.others = [
            (w, layout.block(w) + lay.B_WAITS) for w in range(layout.workers) if w != index
        ]
        self.asked = 1 + index, lay.WAITS_ANY
        self.bells = [Parker(*fds) for fds in config.bells]
        self.helper_bells = [Parker(*fds) for fds in config.helper_bells]
        self.bell = self.bells[index]
        self.leader_bell = Parker(*config.leader_bell)
        self.collector_bell = Parker(*config.collector_bell)
        self.results = ResultWriter(
            segment.bytes, segment.words, layout, index, self._wait_for_the_parent
        )
        self.local: deque[int] = deque()
        self.current: int | None = None
        self.seed: str | None = None
        self.limit_ns = 0
        self.blocks = False
        self.version = 0
        self.chunk: object | None = None
        self.baseline: Baseline | None = None
        self.executed = 0
        self.items = 0
        self.busy_ns = 0
        self.last_flush_ns = 0
        self.parent_ns = 0
        self._tail = layout.result(index) + lay.R_TAIL
        self.patient_ns = 0
        self.tell_ns = int(config.settings.tell_s * 1e9)
        self.unflushed = 0
        self.recent_ns = 0.0
        self.child_ns = 0
        self.look_ahead: Callable[[int], None] = _look_away
        self.ahead: Ahead | None = None
        self._context: TaskContext | None = None
        # Which victim comes first must differ between workers and between tries.
        self._dice = index * 2654435761 + incarnation

    @functools.cached_property
    def payload_socket(self) -> socket.socket:
        """This worker's end of the socket by which large results leave."""
        import socket

        return socket.socket(fileno=os.dup(self.config.payload_sockets[self.index]))

    # --- what the task asks ---------------------------------------------------------------------

    def context(self) -> TaskContext | None:
        """Return the running task's context, made when first asked for; None between tasks."""
        handle = self.current
        if handle is None:
            return None
        ident = self.table.ident[handle]
        attempt = (self.table.meta[handle] >> ATTEMPT_SHIFT) & 0xFFFF
        made = self._context
        if made is None or not made.is_of(ident, attempt):
            made = self._context = TaskContext(self, handle, ident, attempt, self.seed)
            scheduled = origin.of(self.table, handle)
            if scheduled is not None:
                made.version, made.task_id = scheduled.version, scheduled.task_id
        return made

    def name_of(self, handle: int) -> str:
        """Return what messages call the root of an entry: its scheduler's id, or its number."""
        scheduled = origin.of(self.table, handle)
        return str(self.table.ident[handle]) if scheduled is None else scheduled.label

    # --- finding work -----------------------------------------------------------------------------

    def find_work(self) -> bool:
        """Fill `local`, or run another worker's child. The order is README.md, "find_work"."""
        if self.words[self._early] and early.await_own(self):
            return True
        return self._claim() or self._steal() or stolen.steal(self)

    def _claim(self) -> bool:
        inbox = self.inbox
        if not len(inbox):
            return False
        handles = self._take(inbox, self._claim_limit(), wait=True)
        return self._accept(handles)

    def _steal(self) -> bool:
        """Look at every other inbox once, from a random one on; take at most half of what is there."""
        words, block = self.words, self.block
        count = words[lay.H_LIVE]
        if count == 1:
            return False
        first = self.roll() % count
        limit = self._claim_limit()
        for offset in range(count):
            victim = self.inboxes[(first + offset) % count]
            if victim is self.inbox:
                continue
            if not (waiting := len(victim)) and not (
                words[victim.early] and early.is_due(words, victim)
            ):
                continue
            words[block + lay.B_STEAL_ATTEMPTS] += 1
            handles = self._take(victim, min(-(-waiting // 2), limit), wait=False)
            if handles:
                words[block + lay.B_STEALS] += 1
                words[block + lay.B_STOLEN] += len(handles)
                return self._accept(handles)
        return False

    def roll(self) -> int:
        """Return a number that says which victim comes first.

        A linear congruential generator (Knuth's MMIX): it only spreads the thieves, and `random`
        costs a worker 5 ms at its start.
        """
        self._dice = (self._dice * 6364136223846793005 + 1442695040888963407) & MASK
        return self._dice >> 33

    def take_early(self) -> bool:
        """Claim the early root of the own inbox, if its time has come and it is there."""
        return self._accept(self._take(self.inbox, 0, wait=True))

    def _accept(self, handles: list[int]) -> bool:
        if not handles:
            return False
        # crash-point: claim.taken
        self.local.extend(handles)
        # crash-point: claim.accepted
        # Read by thieves before they park (idle.others_have_more): there is more than runs here.
        self.words[self.block + lay.B_CLAIMED] = len(handles) - 1
        self.words[self.block + lay.B_WAITS] = 0
        if self.keeps_blocks:
            outcome.let_go_of_blocks(self)
        return True

    def _claim_limit(self) -> int:
        """Roots to take at once: `claim_s` of work by the recent average, 1 to 128."""
        recent = self.recent_ns
        if recent <= 0:
            return 1
        return max(1, min(128, int(self.settings.claim_s * 1e9 / recent)))

    def _take(self, inbox: Inbox, limit: int, *, wait: bool) -> list[int]:
        """Claim up to `limit` roots of an inbox; 0: its early one, if that is due."""
        locks, which = self.locks, inbox.worker
        words, block = self.words, self.block
        with self.ring_lock:
            self.in_section = threading.get_ident()
            try:
                if not locks.try_acquire(which):
                    words[block + lay.B_CONTENDED] += 1
                    if not wait:
                        return []
                    locks.acquire(which)
                words[block + lay.B_LOCKS] += 1
                # crash-point: claim.locked
                inbox.repair()
                return (
                    inbox.take(limit, self.index)
                    if limit
                    else inbox.take_early(self.index, time.monotonic_ns())
                )
            finally:
                locks.release(which)
                self.in_section = 0

    def ring(self, ring: Deque, *, wait: bool = True) -> HeldRing:
        """Hold the lock of a ring of children, which is repaired. Main or helper thread.

        Gives False, and nothing is held, if it was taken and `wait` is false.

        Raises:
            RuntimeError: This thread is in such a section: a finalizer interrupted it.
        """
        return (self._waiting if wait else self._trying)[ring.worker]

    def is_cancelled(self) -> bool:
        """Whether the root that runs was asked to stop, or is lost."""
        return self.current is not None and bool(self.table.cancel[self.current])

    def may_repeat(self) -> bool:
        """Whether the root that runs has retries left for the death of a worker."""
        return self.current is not None and bool(self.table.meta[self.current] & FLAG_RERUN)

    def give_back(self, handles: list[int]) -> int:
        """Return claimed roots, oldest first, to the own inbox. Main or helper thread.

        Returns how many of the last ones went in.

        Raises:
            MemoryError: What did not go in is in `local`.
        """
        with self.ring_lock:
            self.in_section = threading.get_ident()
            try:
                self.locks.acquire(self.index)
                self.inbox.repair()
                try:
                    count = self.inbox.give_back(handles)
                except BaseException:
                    # While the lock is ours, the states say what is in.
                    self.inbox.repair()
                    self._keep(handles)
                    raise
            finally:
                self.locks.release(self.index)
                self.in_section = 0
        if count:
            # crash-point: give.unlocked
            self.words[self.block + lay.B_RETURNED] += count
            self.wake_parked(count)
        return count

    def _keep(self, handles: list[int]) -> None:
        """Put those that are still claimed here before what is in `local`."""
        mine = st.word(st.CLAIMED, self.index)
        for handle in reversed(handles):
            if self.table.state[handle] == mine:
                self.local.appendleft(handle)

    def wake_parked(self, limit: int) -> None:
        """Wake up to `limit` workers that sleep, because there is something to take."""
        fence()  # pairs with the fence in idle.park: the inbox before the sleeper's state
        words, layout = self.words, self.config.layout
        for worker in range(words[lay.H_LIVE]):
            if limit <= 0:
                return
            if worker != self.index and words[layout.block(worker) + lay.B_STATE] == lay.PARKED:
                self.bells[worker].wake()
                # crash-point: wake.parked.rung
                limit -= 1

    # --- telling the parent -------------------------------------------------------------------------

    def parent_is_due(self, now: int) -> bool:
        """Whether no worker has told the parent of anything for `tell_s`."""
        if now < self.parent_ns:
            return False
        words, layout = self.words, self.config.layout
        told = max(
            words[layout.block(worker) + lay.B_FLUSH_NS] for worker in range(words[lay.H_LIVE])
        )
        self.parent_ns = told + self.tell_ns
        return now >= self.parent_ns

    def ring_the_parent(self) -> None:
        """Wake whoever is to read the results that were published so far."""
        self.unflushed = 0
        now = time.monotonic_ns()
        self.last_flush_ns = now
        self.parent_ns = now + self.tell_ns
        words, block = self.words, self.block
        fresh = self.executed - words[block + lay.B_EXECUTED]
        if fresh > 0:
            mean = (self.busy_ns - words[block + lay.B_BUSY_NS]) / fresh
            recent = self.recent_ns
            self.recent_ns = mean + 1.0 if not recent else recent + (mean - recent) * 0.5
        words[block + lay.B_EXECUTED] = self.executed
        words[block + lay.B_ITEMS] = self.items
        words[block + lay.B_BUSY_NS] = self.busy_ns
        words[block + lay.B_FLUSH_NS] = now
        words[block + lay.B_TOLD] = words[self._tail]
        # crash-point: wake.parent.told
        # Pairs with the leader's "announce, fence, look at every ring" in leader.py: one of the two
        # sees the other's store.
        fence()
        waiting = words[lay.H_WAIT]
        if waiting == lay.WAIT_LEADER:
            self.leader_bell.wake()
        elif waiting == lay.WAIT_COLLECTOR:
            self.collector_bell.wake()

    def _wait_for_the_parent(self) -> None:
        """The result ring is full: make sure that somebody drains it, and look again soon."""
        self.ring_the_parent()
        # The parent does not ring back for room; half a millisecond is what it needs to drain a ring.
        time.sleep(0.0005)

    def stopping(self) -> bool:
        """Whether the parent asked this worker to leave."""
        return bool(self.words[self.block + lay.B_STOP])

    def flush_stdio(self) -> None:
        """Write out what tasks have printed; called before every sleep, and each ms of work."""
        for stream in (sys.stdout, sys.stderr):
            if stream is None:
                continue
            try:
                stream.flush()
            except (Exception, SystemExit):  # noqa: S112 - and not an error of the next task
                # The task closed it, or nobody reads it any more, or it is a task's own object.
                continue

    # --- what tasks leave behind -----------------------------------------------------------------

    def busy(self) -> bool:
        """Whether a root runs here, or something of one."""
        return self.current is not None or bool(self.run or self.stolen)

    def look(self, now: int) -> None:
        """Put back what tasks have changed, if it was not looked at for a ms. Main thread."""
        baseline = self.baseline
        if baseline is not None and now >= baseline.due_ns:
            baseline.look(now)

    def descriptors(self) -> list[int]:
        """Return descriptors without which this worker cannot go on."""
        bells = self.bell, self.helper_bells[self.index], self.leader_bell, self.collector_bell
        ends = {fd for bell in bells for fd in bell.fds()}
        return [*sorted(ends), self.config.lock_fd, self.config.payload_sockets[self.index]]
