"""The dispatcher: from the ready queue into the workers' inboxes.

See README.md, "Dispatch". Only a window is dispatched ahead: about `ahead_s` of work by the measured
time of a task, or twice the measured delay with which the parent refills, whichever is more. Whoever
holds the section pumps; whoever does not get it knows that the one inside looks again.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._base import cpus
from mpsched._deque.inbox import Inbox
from mpsched._pool.section import Section
from mpsched._pool.task import Task
from mpsched._shm import layout as lay
from mpsched._shm.words import fence
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._base.settings import Settings
    from mpsched._pool.entries import Entries
    from mpsched._pool.future import Future
    from mpsched._pool.ready import ReadyQueue
    from mpsched._shm.locks import KernelLocks
    from mpsched._shm.parking import Parker
    from mpsched._shm.segment import Segment


_TRIES: Final = 4
"""How often a taken inbox lock is tried in a row (a microsecond each)."""

_SHORT_NS: Final = 500_000
"""Roots that take less on average: whoever runs one is free again before it matters."""


@final
class Dispatcher:
    """Fills the inboxes. Any thread may call `pump`.

    Journal (DISPATCH-1): a task taken from the ready queue is in `_moving` until its handle is in an
    inbox; `_old_tail` and `_target` say which inbox and whether it got there. Whoever pumps first
    after an exception puts the rest back.

    Attributes:
        inflight: tasks that have an entry, by id.
        section: guards everything here.
        dropped: futures of tasks that were cancelled before they started; the supervisor tells them.
        busy: an inbox could not be filled because its lock was taken.
        early: workers that were given a root before its time, and may still wait for that.
    """

    def __init__(
        self,
        segment: Segment,
        layout: lay.Layout,
        settings: Settings,
        ready: ReadyQueue,
        entries: Entries,
        locks: KernelLocks,
        bells: Sequence[Parker],
        collector: Parker,
    ) -> None:
        self._words = segment.words
        self._blocks = [layout.block(w) for w in range(layout.workers)]
        self._settings = settings
        self._ready = ready
        self._entries = entries
        self.locks = locks
        self._bells = bells
        self._collector = collector
        self.inboxes = [Inbox(segment.words, layout, w) for w in range(layout.workers)]
        # A spare comes and goes; it finds work in the others' inboxes.
        self._filled = self.inboxes[: layout.workers - layout.spares]
        self.section = Section()
        self.inflight: dict[int, Task] = {}
        self.dropped: deque[Future[Any]] = deque()
        self.held = False
        self.early: set[int] = set()
        self.busy = False
        self._missed = False
        self._moving: deque[Task] = deque()
        self._target: int | None = None
        self._old_tail = 0
        self._turn = 0
        self._no_room = False
        self._cores = cpus.affinity_count()
        self._full = 0  # tasks in flight when there was no room; 0: not known
        self._task_ns = 0.0
        self._delay_ns = 0.0

    def moving(self) -> bool:
        """Whether tasks are between the ready queue and an inbox."""
        return bool(self._moving)

    def in_hand(self) -> list[Task]:
        """Return the tasks that are between the ready queue and an inbox."""
        return list(self._moving)

    # --- the window -------------------------------------------------------------------------------

    def note_times(self, mean_ns: float, delay_ns: float) -> None:
        """Take the mean time of the tasks just drained, and how long their results had waited."""
        old = self._task_ns
        self._task_ns = mean_ns + 1 if not old else old + (mean_ns - old) * 0.25
        # Rises at once and falls slowly: close to a high percentile of the delays, for one compare.
        self._delay_ns = max(delay_ns, self._delay_ns * 0.98)

    @property
    def task_ns(self) -> float:
        """Mean nanoseconds of recent tasks; 0 before the first result."""
        return self._task_ns

    @property
    def refill_delay_ns(self) -> float:
        """How long results have lately waited for the parent, in nanoseconds (a high percentile)."""
        return self._delay_ns

    def window(self) -> int:
        """Roots that one worker is given ahead, 2 to `Settings.window`."""
        if not self._task_ns:
            return 2
        ahead = max(self._settings.ahead_s * 1e9, 2 * self._delay_ns)
        return max(2, min(self._settings.window, int(ahead / self._task_ns)))

    def unfinished(self) -> int:
        """Count what is in flight and not final. A future is final first, then its task leaves `inflight`."""
        tasks = list(self.inflight.values())
        return sum(
            task.run is not None or not (task.future is None or task.future.done())
            for task in tasks
        )

    # --- pumping ------------------------------------------------------------------------------------

    def pump(self, *, ring: bool = True) -> None:
        """Dispatch what there is room for. Never waits; an inbox lock that is taken is tried again.

        `ring`: have the supervisor try again; it does so itself when `busy` is set.
        """
        if self._full and len(self.inflight) >= self._full and not self._moving:
            return  # there was no room, and nothing has ended since
        while (self._ready or self._moving) and not self.held:
            if not self.section.try_enter():
                # Whoever is inside looks again after leaving; unless he has left by now.
                self._missed = True
                if not self.section.try_enter():
                    return
            try:
                # Before the look at the queue, as the other side sets it after its append.
                self._missed = self.busy = False
                progress = self._pump()
                # Only if every window was full: a piece may be split, and there is work for the idle.
                no_room = self._no_room and not (progress or self.busy)
                self._full = len(self.inflight) if no_room else 0
            finally:
                self.section.leave()
            if not progress and not self._missed:
                break
        if not self._ready:
            self.busy = False  # another inbox was free
        elif self.busy and ring:
            self._collector.wake()

    def _pump(self) -> bool:
        if self._moving or self._target is not None:
            self._recover()
        window = self.window()
        words, blocks = self._words, self._blocks
        loads = []
        for worker, inbox in enumerate(self._filled):
            block = blocks[worker]
            state = words[block + lay.B_STATE]
            busy = state not in {lay.PARKED, lay.LINGERING}
            load = len(inbox) + words[block + lay.B_CLAIMED] + busy
            if self.early and self._awaits(worker):
                load = window  # what comes for others goes to others
            loads.append((load, state != lay.LINGERING, worker))
        loads.sort()
        self._no_room = loads[0][0] >= window
        share = -(-len(self._ready) // len(loads))
        progress = False
        for load, _, worker in loads:
            room = window - load
            if room <= 0 or self.held:
                break
            if self._fill(worker, min(room, max(1, share))):
                progress = True
            if not self._ready:
                break
        return progress

    def _fill(self, worker: int, count: int) -> bool:
        """Move up to `count` tasks into one inbox. Returns False if none could be."""
        inbox = self.inboxes[worker]
        count = min(count, inbox.capacity // 2 - len(inbox))
        if count <= 0:
            return False
        ready, moving = self._ready, self._moving
        # 1. Take. User code may run here (a map's items are encoded): no ring lock is held.
        ready.take_back()
        if ready.simple:
            plain = ready.plain
            while len(moving) < count and plain and (task := plain[0]).__class__ is Task:
                if (task.attempt == 1 and not task.cancelled) or self._again(task):
                    moving.append(task)
                plain.popleft()
        while len(moving) < count:
            item = ready.peek()
            if item is None:
                break
            if isinstance(item, Task):
                if (item.attempt == 1 and not item.cancelled) or self._again(item):
                    moving.append(item)
                ready.pop(item)
                continue
            if item.enough():
                break  # the end of one of its pieces brings the next pump
            if not item.carve(moving):
                item.unqueued()
                ready.pop(item)
        if not moving:
            return False
        if self.held:
            # While an item was pickled: the pool has ended, and its memory with it, or a task runs alone.
            self._put_back()
            return False
        # crash-point: dispatch.taken
        # 2. Entries: neighbours, so that workers and thieves may read them in one go.
        handles = self._place(worker)
        if not handles:
            self._put_back()
            return False
        # crash-point: dispatch.placed
        # 3. Push; the store of TAIL is the linearization point of all of them.
        pushed = self._push(inbox, handles)
        if not pushed:
            self._recover()
            return False
        # crash-point: dispatch.pushed
        # 4. The inbox before the sleeper's state; pairs with the fence in idle.park.
        moving.clear()
        self._target = None
        fence()
        # crash-point: dispatch.cleared
        self._wake(worker)
        return True

    def expect(self, until_ns: int, count: int) -> bool:
        """Have up to `count` workers awake for roots that come soon, if cores are free for them. Any thread.

        Waking one takes longer than to hand it a root. Only a hint: a worker that slept on finds what
        comes as always.

        Args:
            until_ns: monotonic time until which they look for it.
            count: how many are expected.

        Returns:
            Whether any worker has nothing to do now: else nobody is waiting for them.
        """
        words, blocks = self._words, self._blocks
        states = [words[block + lay.B_STATE] for block in blocks]
        # The caller waits awake for the same moment. Where there is no core left for a worker that does so
        # too, one that works for long would be kept from it.
        crowded = self._task_ns > _SHORT_NS and states.count(lay.AWAKE) + 2 > self._cores
        if not crowded:
            # Before the bells; pairs with the look in idle.linger.
            words[lay.H_SOON] = until_ns
            fence()
            count -= sum(
                state == lay.LINGERING and not words[inbox.early]
                for state, inbox in zip(states, self.inboxes, strict=True)
            )
            for worker, block in enumerate(blocks):
                if words[block + lay.B_STATE] == lay.PARKED and count > 0:
                    self._bells[worker].wake()
                    count -= 1
        return any(state in lay.IDLE for state in states)

    # --- before their time: README.md, "Early roots" ------------------------------------------------

    def hand_early(self, task: Task, from_ns: int) -> bool:
        """Give a task to an idle worker, which starts it when its time has come. The scheduler's thread.

        Args:
            task: one that is in no queue.
            from_ns: its time (monotonic ns), which is a moment away.

        Returns:
            False if it was not: nobody is idle, something waits that would come before it, or not now.
        """
        if not self.section.try_enter():
            return False
        try:
            self._missed = False  # as in pump
            if self._moving or self._target is not None:
                self._recover()
            worker = self.idle_one()
            if self._ready or self.held or task.cancelled or worker < 0:
                return False
            span = self._entries.allocate(1)
            if not span:
                return False
            laid = False
            try:
                laid = self._lay(task, span.start, worker, from_ns)
            finally:
                if not laid:
                    self.inflight.pop(task.id, None)
                    self._entries.free(span.start)
            if not laid:
                return False
            if self._words[self._blocks[worker] + lay.B_STATE] == lay.PARKED:
                self._bells[worker].wake()
            return True
        finally:
            self.section.leave()
            if self._missed:
                self._collector.wake()  # somebody who wanted to pump relies on whoever was inside

    def _lay(self, task: Task, handle: int, worker: int, from_ns: int) -> bool:
        """Write an entry and lay it into the inbox of a worker; False if that is not idle any more."""
        words, blocks = self._words, self._blocks
        if not self._entries.write(handle, task, st.word(st.QUEUED, worker)):
            return False
        self.inflight[task.id] = task
        inbox = self.inboxes[worker]
        self.early.add(worker)
        self._full = 0  # it counts what is in flight
        try:
            if not any(self.locks.try_acquire(worker) for _ in range(_TRIES)):
                return False
            inbox.repair()
            if not inbox.lay(handle, from_ns):
                return False
            # Pairs with "STATE = AWAKE, fence, look at EARLY" of who leaves idleness (idle.py): it sees
            # this root and waits for it, or is seen here.
            fence()
            if words[blocks[worker] + lay.B_STATE] not in lay.IDLE:
                inbox.remove(handle)
                return False
        finally:
            self.locks.release(worker)
        return True

    def idle_one(self) -> int:
        """Return a worker that has nothing, not even an early root; -1: none. One that is awake, if any is."""
        words, found = self._words, -1
        for worker, inbox in enumerate(self._filled):
            state = words[self._blocks[worker] + lay.B_STATE]
            if state in lay.IDLE and not words[inbox.early] and not len(inbox):
                if state == lay.LINGERING:
                    return worker
                found = worker
        return found

    def _awaits(self, worker: int) -> bool:
        """Whether a worker that was given an early root still waits for its time."""
        if worker not in self.early:
            return False
        words, early = self._words, self.inboxes[worker].early
        if not words[early]:
            self.early.discard(worker)
            return False
        return bool(words[early + 1] > time.monotonic_ns())

    def _wake(self, worker: int) -> None:
        """Wake whoever is to run what lies in inbox `worker` now: its owner, else a thief.

        Everybody, if another inbox was busy: its owner may sleep, and what he was to have may lie here
        behind a root that is long.
        """
        words, blocks = self._words, self._blocks
        for one in (worker, *range(len(blocks))):
            if words[blocks[one] + lay.B_STATE] == lay.PARKED:
                self._bells[one].wake()
                if not self.busy:
                    return

    def _again(self, task: Task) -> bool:
        """Whether a task that was cancelled, or queued for another attempt, is to be dispatched.

        Not if it was queued twice, by a `Pool.retry` that was interrupted.
        """
        entries, handle = self._entries, task.handle
        if task in self._moving:
            return False
        if task.cancelled and task.future is not None and not task.future.done():
            # Whoever cancelled it was interrupted, or is about to tell the future.
            self.dropped.append(task.future)
        if handle >= 0:
            if entries.attempt(handle) == task.attempt and not task.cancelled:
                return False
            entries.free(handle)  # of the attempt before
        final = task.run is None and (task.future is None or task.future.done())
        return not (task.cancelled or final)

    def _place(self, worker: int) -> list[int]:
        entries, inflight = self._entries, self.inflight
        queued = st.word(st.QUEUED, worker)
        moving = self._moving
        handles: list[int] = []
        while len(handles) < len(moving):
            span = entries.allocate(len(moving) - len(handles))
            if not span:
                break
            tasks = list(moving)[len(handles) : len(handles) + len(span)]
            if len(span) > 1 and entries.write_burst(span, tasks, queued):
                for task in tasks:
                    inflight[task.id] = task
                handles.extend(span)
                continue
            for handle in span:
                task = moving[len(handles)]
                if not entries.write(handle, task, queued):
                    for unused in range(handle, span.stop):
                        entries.free(unused)
                    span = range(0)
                    break
                inflight[task.id] = task
                handles.append(handle)
            if not span:
                break
        while len(moving) > len(handles):
            # No entry or no room in the slab: their turn comes when others are final.
            task = moving[-1]
            self._ready.append_left(task, task.options.priority)
            moving.pop()
        return handles

    def _push(self, inbox: Inbox, handles: list[int]) -> bool:
        worker = inbox.worker
        self._old_tail = inbox.tail
        self._target = worker
        try:
            # Only tried: a stopped worker may hold it, and the parent must not wait for anybody.
            # A worker that looks into it has it for microseconds.
            if not any(self.locks.try_acquire(worker) for _ in range(_TRIES)):
                self._target = None
                self.busy = True
                return False
            # crash-point: dispatch.locked
            inbox.repair()
            inbox.push(handles)
        finally:
            self.locks.release(worker)
        return True

    def _recover(self) -> None:
        """Put back what an exception, or a busy lock, left between the queue and an inbox."""
        # crash-point: dispatch.recovering
        target = self._target
        if target is not None:
            self.locks.release(target)
            if self.inboxes[target].tail != self._old_tail:
                # It was pushed, all of it; only the bell may be missing.
                self._moving.clear()
                self._bells[target].wake()
        self._put_back()
        self._target = None

    def tidy(self) -> None:
        """Put right what exceptions have left. The section is held, so no inbox lock may be."""
        for worker in range(len(self.inboxes)):
            self.locks.release(worker)
        if self._moving or self._target is not None:
            self._recover()

    def sweep(self) -> None:
        """Free entries that are neither in use nor free. The leader's section is held as well."""
        if self._entries.in_use() != len(self.inflight):
            self._entries.sweep()

    def _put_back(self) -> None:
        moving = self._moving
        while moving:
            task = moving[-1]
            if task.handle >= 0:
                self._entries.free(task.handle)
            self.inflight.pop(task.id, None)
            if task.run is not None:
                task.run.commit(task)
            if self._ready.peek() is not task:  # else it was interrupted while it was taken
                self._ready.append_left(task, task.options.priority)
            moving.pop()

    def send(self, task: Task) -> bool:
        """Dispatch a task that is not in the ready queue, `held` or not; False: not now. Supervisor."""
        if not self.section.try_enter():
            return False
        try:
            if self._moving or self._target is not None:
                self._recover()
            if not self._again(task):
                return True  # nobody wants it any more
            self._moving.append(task)
            words, blocks = self._words, self._blocks
            idle = [
                w for w in range(len(self._filled)) if words[blocks[w] + lay.B_STATE] in lay.IDLE
            ]
            worker = idle[0] if idle else 0
            handles = self._place(worker)
            if not handles or not self._push(self.inboxes[worker], handles):
                self._recover()
                self._ready.discard(task)  # where both put it
                return False
            self._moving.clear()
            self._target = None
            fence()
            self._wake(worker)
            return True
        finally:
            self.section.leave()

    # --- taking back --------------------------------------------------------------------------------

    def queue_again(self, handle: int, worker: int) -> None:
        """Put a REVOKED root into inbox `worker` again; the section is held. Supervisor.

        Does nothing if the inbox is busy or full.
        """
        if self._moving or self._target is not None:
            self._recover()  # its journal tells by TAIL, which moves here
        inbox = self.inboxes[worker]
        try:
            if not self.locks.try_acquire(worker):
                return
            inbox.repair()
            if len(inbox) >= inbox.capacity:
                return
            self._entries.table.state[handle] = st.word(st.QUEUED, worker)
            inbox.push([handle])
        finally:
            self.locks.release(worker)
        self._bells[worker].wake()

    def lies_in(self, handle: int, worker: int) -> bool | None:
        """Whether an inbox holds a handle; None if its lock is taken. The section is held."""
        try:
            if not self.locks.try_acquire(worker):
                return None
            self.inboxes[worker].repair()
            return handle in self.inboxes[worker].handles()
        finally:
            self.locks.release(worker)

    def remove(self, task: Task, worker: int) -> bool:
        """Take a QUEUED root out of inbox `worker`; the section is held. False if it is gone, or not now."""
        if self._moving or self._target is not None:
            self._recover()  # its journal tells by TAIL, which may move here; look again where the root is
            return False
        try:
            if not self.locks.try_acquire(worker):
                return False
            inbox = self.inboxes[worker]
            inbox.repair()
            if self._entries.table.state[task.handle] != st.word(st.QUEUED, worker):
                return False
            return inbox.remove(task.handle)
        finally:
            self.locks.release(worker)
