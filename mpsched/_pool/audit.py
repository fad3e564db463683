"""Finding work that is in nobody's hands, which only damage can bring about. See README.md, "Audit"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

from mpsched._pool import limits
from mpsched._pool.alibi import Alibis, Held
from mpsched._pool.jams import Jams
from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged, fence
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task

_EVERY_S: Final = 1.0

_LOOKS: Final = 2
_MORE_LOOKS: Final = 3
"""For what a thread, of a worker or of this process, may have in its hands for a moment."""
_PROVEN: Final = 1
"""For what the looks before have proven already (alibi.py)."""

_OF_ROOTS: Final = frozenset({st.QUEUED, st.CLAIMED, st.RUNNING, st.REVOKED})
_HELD: Final = frozenset({st.CLAIMED, st.RUNNING})
_IDLE: Final = frozenset({lay.STARTING, lay.PARKED})
"""STATE of a worker whose main thread has nothing: it sleeps, or there is none."""


class _Lost(NamedTuple):
    """Work that nobody has, it seems; the same at several looks in a row if so, or what alibi.py has proven.

    Attributes:
        handle: its entry; ident, attempt: what it is (attempt 0: a child).
        word: its state word.
        holder: the idle worker that it names, where that is what is wrong; else -1.
        looks: after so many it is lost.
        what: what is wrong, in words.
    """

    handle: int
    ident: int
    attempt: int
    word: int
    holder: int
    looks: int
    what: str


@final
class Audit:
    """Compares what the task table says with who could have it, now and then. Supervisor."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._due = 0.0
        self._suspects: dict[_Lost, int] = {}
        self._jams = Jams(pool)
        self._alibis = Alibis(pool.segment.words, pool.layout)

    def look(self) -> None:
        """Look, if that was not done for a second. The dispatcher's section is held, no lock is.

        Raises:
            Damaged: Something that is open was in nobody's hands, at several looks in a row.
        """
        now = time.monotonic()
        pool = self._pool
        if now < self._due or pool.dispatcher.moving():
            return
        self._due = now + _EVERY_S
        self._alibis.begin()
        idle = self._idle()
        found = [*self._roots(idle), *(self._children(idle) if pool.dispatcher.inflight else ())]
        # Who is awake by now may have taken what it was not to have.
        idle &= self._idle()
        found = [lost for lost in found if lost.holder < 0 or lost.holder in idle]
        before, self._suspects = self._suspects, {}
        for lost in found:
            self._suspects[lost] = before.get(lost, 0) + 1
            if self._suspects[lost] >= lost.looks:
                raise Damaged(
                    f"{lost.what}: something has written into the shared memory of this pool"
                )

    def _idle(self) -> set[int]:
        """Return the workers that have nothing in hand."""
        words, layout = self._pool.segment.words, self._pool.layout
        return {
            worker
            for worker in range(layout.workers)
            if words[layout.block(worker) + lay.B_STATE] in _IDLE
        }

    # --- roots --------------------------------------------------------------------------------------

    def _roots(self, idle: set[int]) -> list[_Lost]:
        pool = self._pool
        table, workers = pool.table, pool.layout.workers
        found: list[_Lost] = []
        waiting: dict[int, list[Task]] = {}
        for task in list(pool.dispatcher.inflight.values()):
            handle = task.handle
            if handle < 0:
                continue  # its record is being read
            word, key = table.state[handle], table.run_key(handle)
            kind, worker = word & 255, word >> 8
            if key != task.id << 16 | task.attempt & 0xFFFF:
                found.append(_root(task, word, f"has the entry of task {key >> 16}"))
            elif kind not in _OF_ROOTS or worker >= workers:
                found.append(_root(task, word, f"is in no state that there is, {word:#x}"))
            elif kind == st.QUEUED:
                waiting.setdefault(worker, []).append(task)
            elif kind == st.REVOKED:
                found.append(_root(task, word, "was taken back, and by nobody", _MORE_LOOKS))
            elif self._elsewhere(task, handle, word):
                what = f"is in the hands of worker {worker}, which has finished others since"
                found.append(_root(task, word, what, _PROVEN))
            elif worker in idle and not pool.leader.unread(worker) and not self._is_lost(task):
                looks = _LOOKS
                if kind == st.CLAIMED:
                    # Its helper may be giving back what lay behind something long.
                    looks = _MORE_LOOKS
                    if limits.stopped(pool.supervisor.pid_of(worker)):
                        continue
                what = f"is in the hands of worker {worker}, which has nothing"
                found.append(_root(task, word, what, looks, worker))
        for worker, tasks in waiting.items():
            found += self._missing(worker, tasks)
        return found

    def _elsewhere(self, task: Task, handle: int, word: int) -> bool:
        """Whether the worker that is said to have a root finishes others, and has not finished this one."""
        if not self._alibis.elsewhere(Held(handle, task.id, task.attempt, word)):
            return False
        # The record of its end is read before it is taken out: in the other order here.
        fence()
        if self._pool.leader.unread(word >> 8):
            return False
        there = self._pool.dispatcher.inflight.get(task.id) is task and task.handle == handle
        return there and self._pool.table.state[handle] == word and not self._is_lost(task)

    def _is_lost(self, task: Task) -> bool:
        """Whether its worker is dead, and the next one of that index has nothing to do with it."""
        return self._pool.supervisor.burial.trees.holds(task)

    def _missing(self, worker: int, tasks: list[Task]) -> list[_Lost]:
        """Return those of the tasks, which wait for `worker`, that its inbox does not hold."""
        pool = self._pool
        state, queued = pool.table.state, st.word(st.QUEUED, worker)
        there: set[int] = set()
        if worker < len(pool.dispatcher.inboxes):
            inbox, locks = pool.dispatcher.inboxes[worker], pool.dispatcher.locks
            try:
                if not locks.try_acquire(worker):
                    self._jams.shut(worker)
                    return []  # somebody moves them; the next look tells
                self._jams.opened(worker)
                inbox.repair()
                there = set(inbox.handles())
                # While the lock is held, who is QUEUED lies in the inbox (INBOX-3).
                tasks = [task for task in tasks if state[task.handle] == queued]
            finally:
                locks.release(worker)
        return [
            _root(task, queued, f"waits for worker {worker}, and lies in no inbox")
            for task in tasks
            if task.handle not in there
        ]

    # --- children -------------------------------------------------------------------------------------

    def _children(self, idle: set[int]) -> list[_Lost]:
        """Return the published children whose thief is idle or elsewhere; home looks after all others."""
        table, layout = self._pool.table, self._pool.layout
        found: list[_Lost] = []
        for home in range(layout.workers):
            own = layout.children_of(home)
            for handle, word in zip(own, table.state[own.start : own.stop].tolist(), strict=True):
                thief = word >> 8
                if word & 255 not in _HELD or thief >= layout.workers:
                    continue
                held = Held(handle, table.ident[handle], 0, word)
                what = f"a child of worker {home} is in the hands of worker {thief}, which has "
                if self._alibis.elsewhere(held) and table.state[handle] == word:
                    found.append(_Lost(*held, -1, _PROVEN, what + "finished roots since"))
                elif thief in idle:
                    found.append(_Lost(*held, thief, _LOOKS, what + "nothing"))
        return found


def _root(task: Task, word: int, what: str, looks: int = _LOOKS, holder: int = -1) -> _Lost:
    text = f"task {task.id} (attempt {task.attempt}) {what}"
    return _Lost(task.handle, task.id, task.attempt, word, holder, looks, text)
