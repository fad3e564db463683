"""What becomes of the work of a worker whose process is gone.

See README.md, "Supervisor" and "Trees". Supervisor only.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, final

from mpsched._pool import obituary
from mpsched._pool.oom import OomWatch
from mpsched._pool.trees import Trees
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched.errors import TaskTimeout, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsched._pool.core import Pool
    from mpsched._pool.section import Section
    from mpsched._pool.task import Task


@final
class Burial:
    """Buries workers of one pool.

    Attributes:
        trees: the children of roots.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._oom = OomWatch()
        self.trees = Trees(pool)

    def bury(self, index: int, pid: int, status: int | None) -> str | None:
        """Account for everything that worker `index` had. Idempotent. Returns the suspected cause."""
        pool = self._pool
        cause = self._oom.suspect(status)
        with self._both_sections():
            # crash-point: bury.entered
            # 2. Every ring once: the next holder's repair must not come after the look.
            self._repair_rings()
            # crash-point: bury.repaired
            # 3. What it had taken: first children, and the words that say what it runs.
            self.trees.bury(index, pid, status)
            # crash-point: bury.children
            self._reassign(obituary.Death(index, pid, status, cause))
            # crash-point: bury.reassigned
            pool.arrivals[index].close_all()
        pool.dispatcher.pump()
        # crash-point: bury.pumped
        # 4. Whoever may take over should look: a bell may have died with its receiver.
        for bell in pool.bells:
            bell.wake()
        return cause

    def look(self) -> None:
        """Settle the lost roots whose children have all ended."""
        if not self.trees.busy():
            return
        ended = self.trees.check()
        if not ended:
            return
        with self._both_sections():
            for lost in ended:
                self.lost(lost.task, lost.end, lost.started)
        self._pool.dispatcher.pump()

    @contextlib.contextmanager
    def _both_sections(self) -> Iterator[None]:
        """Keep everybody out, with the result rings drained."""
        pool = self._pool
        leader, dispatcher = pool.leader, pool.dispatcher
        leader.wanted = True
        pool.leader_bell.wake()
        try:
            self._enter(leader.section)
            try:
                # 1. What workers have published counts, up to their last complete records.
                while leader.drain():
                    pass
                self._enter(dispatcher.section)
                try:
                    yield
                finally:
                    dispatcher.section.leave()
            finally:
                pool.segment.words[lay.H_WAIT] = lay.WAIT_COLLECTOR
                leader.section.leave()
        finally:
            leader.wanted = False

    def _reassign(self, end: obituary.Death) -> None:
        pool, index = self._pool, end.worker
        table, words = pool.table, pool.segment.words
        block = pool.layout.block(index)
        started = int(words[block + lay.B_PROGRESS])
        claimed: list[Task] = []
        for task in list(pool.dispatcher.inflight.values()):
            handle = task.handle
            if handle < 0:
                continue
            state, worker = st.parts(table.state[handle])
            if worker != index or self.trees.holds(task):
                continue
            if state == st.CLAIMED:
                claimed.append(task)
            elif state == st.RUNNING and not self.trees.wait_for(task, end, started):
                self.lost(task, end, started)
        for task in sorted(claimed, key=lambda task: task.id, reverse=True):
            pool.dispatcher.inflight.pop(task.id, None)
            pool.entries.free(task.handle)
            pool.ready.append_left(task, task.options.priority)
        for stale in (lay.B_CLAIMED, lay.B_LEFT, lay.B_PROGRESS, lay.B_UNSENT):
            words[block + stale] = 0
        words[block + lay.B_REVOKE] = 0

    def lost(self, task: Task, end: obituary.Death, started: int) -> None:
        """The worker died while it ran `task`, of which nothing runs any more: run it again, or fail.

        Both sections are held.
        """
        pool = self._pool
        if task.run is not None:
            pool.dispatcher.inflight.pop(task.id, None)
            pool.entries.free(task.handle)
            task.run.died(
                task,
                started,
                lambda item: self._error(task, end, f", item {item} of a map,"),
            )
            return
        future = task.future
        if future is None or future.done():
            return
        error = self._error(task, end)
        if task.killed == "timeout":
            pool.events.note("timed_out", str(error), task=task)
        alone = isinstance(error, WorkerDied) and error.cause == "memory"
        if task.killed != "cancel" and pool.retry(task, error, alone=alone):
            if alone:
                pool.events.note("alone", str(error), task=task)
            return
        if task.options.retries and isinstance(error, WorkerDied):
            pool.events.note("poison", str(error), task=task)
        future.worker = end.worker
        future._ending = True
        pool.leader.finished.append((future, None, lambda: (None, error), True))
        pool.dispatcher.inflight.pop(task.id, None)
        pool.entries.free(task.handle)
        task.holds = None
        if pool.limited:
            pool.made_room()

    def _error(self, task: Task, end: obituary.Death, where: str = "") -> BaseException:
        if task.killed == "timeout":
            seconds = task.options.timeout
            return TaskTimeout(
                f"{task.describe()} ran longer than its limit of {seconds} s and was ended "
                f"(attempt {task.attempt})",
                seconds=seconds,
                task_id=task.id,
                attempt=task.attempt,
            )
        if task.killed == "cancel":
            return CancelledError(f"{task.describe()}{where} was cancelled and its worker ended")
        if task.killed == "memory":
            return obituary.too_large(task, end, where)
        return obituary.death(task, end, where)

    def _repair_rings(self) -> None:
        """Take every ring's lock once. A holder that lives has repaired it, or does so first.

        Raises:
            Damaged: Something has written into a ring. Whoever looks into it ends; so does the pool.
        """
        pool = self._pool
        for ring in (*pool.dispatcher.inboxes, *self.trees.deques):
            deadline = time.monotonic() + 0.05
            while True:
                try:
                    if pool.locks.try_acquire(ring.lock):
                        ring.repair()
                        ring.verify()
                        break
                finally:
                    pool.locks.release(ring.lock)
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.000_1)

    def _enter(self, section: Section) -> None:
        """Enter a section, waiting for whoever is inside; open it if nobody is any more."""
        waited = 0
        while not section.try_enter():
            waited += 1
            if waited % 100 == 0:
                section.recover()
            self._pool.leader_bell.wake()
            time.sleep(0.000_2)
