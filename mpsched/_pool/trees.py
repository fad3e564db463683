"""Roots whose children run in several workers: what a dead worker leaves of them elsewhere.

See README.md, "Trees". Supervisor only.
"""

from __future__ import annotations

import math
import signal
import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

from mpsched._deque.deque import Deque
from mpsched._shm import layout as lay
from mpsched._shm.words import fence
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.obituary import Death
    from mpsched._pool.task import Task

LOOK_S: Final = 0.005
"""Seconds between looks while children of a root that is lost still run."""
_GRACE_S: Final = 0.5
"""Seconds that such children have at least, after their signal was set."""
_LOCK_S: Final = 0.05
"""Seconds after which a ring counts as held by a stopped process."""
_OURS: Final = 2
"""CANCEL word of a lost root: set by this class, and not by anybody who wants it cancelled."""
_OPEN: Final = frozenset({st.QUEUED, st.CLAIMED, st.RUNNING, st.DYING})
_WORDS: Final = (
    *(lay.B_FORKS, lay.B_RUN, lay.B_WAITS, lay.B_JOINING, lay.B_BLOCKED, lay.B_WANT),
    lay.B_KILL,  # the next process of this index is another one
)


class _Dying(NamedTuple):
    """A child that died with its thief, and what is below it elsewhere: handles and idents.

    From `deadline` on (`time.monotonic()`) whoever runs a part of it is ended.
    """

    thief: int
    handle: int
    parts: list[tuple[int, int]]
    deadline: float = math.inf


class Lost(NamedTuple):
    """A root whose worker died while its children ran elsewhere; `Burial.lost` has the arguments."""

    task: Task
    key: int
    deadline: float
    end: Death
    started: int


@final
class Trees:
    """What is known of roots beyond the worker that runs them.

    Attributes:
        deques: the workers' rings of children.
        waiting: lost roots whose children still run, by task id.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        words, layout = pool.segment.words, pool.layout
        self.deques = [Deque(words, layout, worker) for worker in range(layout.workers)]
        self.waiting: dict[int, Lost] = {}
        self._left: list[tuple[int, list[int]]] = []  # home, children in a ring that was held
        self._dying: list[_Dying] = []

    def close(self) -> None:
        """Let go of the segment, which cannot be unmapped before."""
        for ring in self.deques:
            ring.close()

    def busy(self) -> bool:
        """Whether a look is due every `LOOK_S`."""
        return bool(self.waiting or self._left or self._dying)

    # --- burying ------------------------------------------------------------------------------------

    def bury(self, index: int, pid: int, status: int | None) -> None:
        """Account for the children of worker `index`, and for those that it ran. Idempotent.

        Its process is gone and all rings are repaired. Children that others run for it are told to
        stop; their entries stay taken until they do. Whoever waits for a child that it had is told by
        the state word, and by the bells that every burial rings.
        """
        pool = self._pool
        words, block = pool.segment.words, pool.layout.block(index)
        parts = self._children_of(index)
        self._children_at(index, pid, status, parts)
        for word in _WORDS:
            words[block + word] = 0

    def _children_of(self, home: int) -> list[tuple[int, int]]:
        """Free the entries of a dead home; returns those that others still have, with their idents."""
        table, own = self._pool.table, self._pool.layout.children_of(home)
        queued = st.word(st.QUEUED, home)
        waiting = [
            handle for handle, word in zip(own, self._states(own), strict=True) if word == queued
        ]
        if waiting and not self._drop(home, waiting):
            # A stopped thief has the ring. What it takes out it will not start (CANCEL).
            self._left.append((home, waiting))
        parts = []
        for handle, word in zip(own, self._states(own), strict=True):
            state = word & 255
            if state in _OPEN:
                table.cancel[handle] = 1
                parts.append((handle, table.ident[handle]))
            elif state != st.FREE:
                table.state[handle] = st.FREE
        fence()  # CANCEL before the look at RUN; a thief has them in the other order (TREES-2)
        return parts

    def _children_at(
        self, thief: int, pid: int, status: int | None, parts: list[tuple[int, int]]
    ) -> None:
        """Give back what a dead thief had of others; what it ran is LOST, or DYING while parts of it run.

        `parts` are its own children that others have. A thief may have run several, each below the one
        before; only what is below a child may keep it DYING, or two could wait for each other.
        """
        layout, table = self._pool.layout, self._pool.table
        claimed, running = st.word(st.CLAIMED, thief), st.word(st.RUNNING, thief)
        every = range(layout.entries, layout.total)
        for handle, word in zip(every, self._states(every), strict=True):
            if word == claimed:
                table.state[handle] = st.word(st.RETURNED, layout.home_of(handle))
                # crash-point: trees.returned
            elif word == running:
                # How it died, for home's WorkerDied: before the state word, which says LOST.
                table.length[handle] = (status or 0) & 0xFFFFFFFF
                table.started[handle] = pid
                below = [part for part in parts if part[1] >= table.below[handle]]
                table.state[handle] = st.word(st.DYING if below else st.LOST, thief)
                # crash-point: trees.told
                if below:
                    deadline = time.monotonic() + _GRACE_S
                    self._dying.append(_Dying(thief, handle, below, deadline))

    def _states(self, handles: range) -> list[int]:
        words: list[int] = self._pool.table.state[handles.start : handles.stop].tolist()
        return words

    def _drop(self, home: int, handles: list[int]) -> bool:
        """Take children out of the ring of a dead home. False if its lock cannot be had."""
        locks, table, ring = self._pool.locks, self._pool.table, self.deques[home]
        queued = st.word(st.QUEUED, home)
        deadline = time.monotonic() + _LOCK_S
        try:
            while not locks.try_acquire(ring.lock):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.000_1)
            ring.repair()
            for handle in handles:
                if table.state[handle] == queued:
                    # Not there: home died before it had pushed it.
                    ring.remove(handle)
                    table.state[handle] = st.FREE
        finally:
            locks.release(ring.lock)
        return True

    # --- lost roots ---------------------------------------------------------------------------------

    def still_run(self, key: int) -> list[int]:
        """Return the workers that run something of the root with this run key."""
        words, layout = self._pool.segment.words, self._pool.layout
        return [
            worker
            for worker in range(layout.workers)
            if words[layout.block(worker) + lay.B_RUN] == key
        ]

    def holds(self, task: Task) -> bool:
        """Whether `task` is lost and its children are still waited for."""
        return task.id in self.waiting

    def wait_for(self, task: Task, end: Death, started: int) -> bool:
        """Take over a root that died with its worker, which is buried, if others run parts of it.

        Returns:
            False: nobody does, and what becomes of it can be settled now.
        """
        table, handle = self._pool.table, task.handle
        key = table.run_key(handle)
        if not self.still_run(key):
            return False
        # Read by all of its children, wherever they run (`current_task().cancelled`).
        if not table.cancel[handle]:
            table.cancel[handle] = _OURS
        deadline = time.monotonic() + max(task.options.grace, _GRACE_S)
        self.waiting[task.id] = Lost(task, key, deadline, end, started)
        # crash-point: trees.waiting
        return True

    def check(self) -> list[Lost]:
        """Look whether lost roots have come to their end; returns those that have."""
        left, self._left = self._left, []
        self._left += [(home, handles) for home, handles in left if not self._drop(home, handles)]
        self._dying = [dying for dying in self._dying if not self._died(dying)]
        ended = []
        for lost in list(self.waiting.values()):
            running = self.still_run(lost.key)
            if running:
                if lost.task.killed is not None or time.monotonic() >= lost.deadline:
                    self._kill(running, lost.key)
                continue
            del self.waiting[lost.task.id]
            self._spare(lost.key)
            handle = lost.task.handle
            if handle < 0:
                continue  # the pool has failed meanwhile, and its future with it
            if self._pool.table.cancel[handle] == _OURS:
                self._pool.table.cancel[handle] = 0
            # crash-point: trees.settled
            ended.append(lost)
        return ended

    def _died(self, dying: _Dying) -> bool:
        """Say LOST once nothing of it runs any more; False if something does."""
        pool = self._pool
        state, ident = pool.table.state, pool.table.ident
        for handle, was in dying.parts:
            if state[handle] & 255 in _OPEN and ident[handle] == was:
                if time.monotonic() >= dying.deadline:
                    self._end_below(dying)
                return False
        if state[dying.handle] == st.word(st.DYING, dying.thief):
            state[dying.handle] = st.word(st.LOST, dying.thief)
            # crash-point: trees.died
            pool.bells[pool.layout.home_of(dying.handle)].wake()
        return True

    def _end_below(self, dying: _Dying) -> None:
        """End the workers that run, or hold, what is below a child that is DYING; never the root's own.

        Such a worker may run other parts of the same root too; they are lost with it, as with any thief.
        """
        table = self._pool.table
        for handle, was in dying.parts:
            state, worker = st.parts(table.state[handle])
            if state not in {st.CLAIMED, st.RUNNING} or table.ident[handle] != was:
                continue
            if table.state[table.place[handle]] != st.word(st.RUNNING, worker):
                self.end_part(worker, table.root[handle], "what it runs is below a child that died")

    def _kill(self, workers: list[int], key: int) -> None:
        """End the workers that run parts of a root, unless they have just come to the end of it.

        KILL, fence, RUN here; RUN = 0, fence, KILL there (as in limits.py): whoever is killed runs a
        part of it, or nothing any more.
        """
        words, layout = self._pool.segment.words, self._pool.layout
        for worker in workers:
            words[layout.block(worker) + lay.B_KILL] = key
        fence()
        # crash-point: trees.named
        for worker in workers:
            if words[layout.block(worker) + lay.B_RUN] == key:
                self._pool.supervisor.kill(worker, signal.SIGKILL, "its root is lost elsewhere")

    def end_part(self, worker: int, key: int, why: str) -> bool:
        """End a worker that runs a part of a root, unless it has just come to the end of it."""
        words, block = self._pool.segment.words, self._pool.layout.block(worker)
        words[block + lay.B_KILL] = key
        fence()
        if words[block + lay.B_RUN] == key:
            return self._pool.supervisor.kill(worker, signal.SIGKILL, why)
        words[block + lay.B_KILL] = 0
        return False

    def _spare(self, key: int) -> None:
        words, layout = self._pool.segment.words, self._pool.layout
        for worker in range(layout.workers):
            word = layout.block(worker) + lay.B_KILL
            if words[word] == key:
                words[word] = 0
