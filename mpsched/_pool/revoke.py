"""Taking a task back before it starts, wherever it lies. See README.md, "Cancel"."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Final, final

from mpsched._base.cancelresult import CancelResult
from mpsched._pool.task import Task
from mpsched._shm import layout as lay
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from typing import Literal

    from mpsched._pool.core import Pool
    from mpsched._pool.mapping import MapRun

    How = Literal["signal", "kill"]

_REVOKE_S: Final = 0.05
"""Seconds after which a task that cannot be had counts as started (a stopped worker may hold it)."""

_BUSY_S: Final = 5.0
"""Seconds to wait for the dispatcher's section, which others hold for milliseconds."""


@final
class Revoker:
    """Cancels tasks of one pool. Any thread.

    Attributes:
        doubtful: tasks that are being cancelled, or whose cancelling was interrupted: the supervisor finds
            out how far it got.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.doubtful: deque[Task] = deque()

    def cancel(self, task: Task, how: How | None = None, *, ask: bool = True) -> CancelResult:
        """Prevent `task` from starting, else set its signal, or end it. Any thread.

        Args:
            task: any task of this pool.
            how: what is done to it if it runs; None: what its options say.
            ask: whether anything is done to one that runs.

        Returns:
            PREVENTED: it will never start, and its future is cancelled. REQUESTED: it runs, or counts as
            started, and was asked unless `ask` is false. TOO_LATE: it is over.
        """
        if self._pool.forked:
            return CancelResult.TOO_LATE  # the segment is the parent's
        try:
            return self._cancel(task, (how or task.options.on_cancel) if ask else None)
        except BaseException:
            self.doubtful.append(task)
            self._pool.ring()
            raise
        finally:
            self._withdraw(task)

    def _cancel(self, task: Task, how: How | None) -> CancelResult:
        future = task.future
        section = self._pool.dispatcher.section
        # Somebody of this process is inside, or the supervisor opens it; but it may be this very thread,
        # interrupted by a finalizer. A worker gets its time from the first look on.
        deadline = time.monotonic() + (_REVOKE_S if section.mine() else _BUSY_S)
        looked = False
        while future is not None and not future.done():
            if section.try_enter():
                try:
                    # Where nothing else has it, until its future is final: the pool is not idle before.
                    self.doubtful.append(task)
                    answer = self._prevent(task, how)
                    if answer is not CancelResult.PREVENTED:
                        self._forget_doubt(task)
                finally:
                    section.leave()
                    self._pool.ring()
                if answer is None and not looked:
                    looked = True
                    deadline = time.monotonic() + _REVOKE_S
                if answer is CancelResult.PREVENTED:
                    future._cancel()
                    self._forget_doubt(task)
                    if self._pool.limited:
                        self._pool.made_room()
                    # Another thread may have read its result meanwhile; that came first then.
                    break
                if answer is not None:
                    return answer
            if time.monotonic() >= deadline or self._pool.supervisor.done.is_set():
                if how is not None:
                    self._signal(task, how)
                # A helper may still answer; what it takes out then has to start all the same.
                self._pool.supervisor.limits.watch(task, _REVOKE_S)
                self._pool.ring()
                return CancelResult.REQUESTED
            # Somebody dispatches, or a worker answers: tens of microseconds.
            time.sleep(0.000_1)
        cancelled = future is not None and future.cancelled()
        return CancelResult.PREVENTED if cancelled else CancelResult.TOO_LATE

    def _prevent(self, task: Task, how: How | None) -> CancelResult | None:
        """Take `task` back from where it is; None: it is on its way, look again. Section held."""
        handle = task.handle
        if task.future is not None and task.future._ending:
            return CancelResult.TOO_LATE  # it has run; the collector is about to say so
        state, worker = (st.FREE, 0) if handle < 0 else st.parts(self._pool.table.state[handle])
        if state == st.FREE:
            # In the ready queue, or about to be, perhaps for another attempt: whoever meets it there
            # drops it.
            task.cancelled = True
            if self._pool.limited:
                self._pool.ready.discard(task)  # it must not count as pending until then
            return CancelResult.PREVENTED
        if state == st.QUEUED:
            if self._pool.dispatcher.remove(task, worker):
                # crash-point: revoke.dequeued
                self._forget(task)
                return CancelResult.PREVENTED
            return None
        if state == st.CLAIMED:
            word = self._pool.layout.block(worker) + lay.B_REVOKE
            self._pool.segment.words[word] = self._pool.table.run_key(handle)
            # crash-point: revoke.asked
            self._pool.helper_bells[worker].wake()
            # crash-point: revoke.rung
            return None
        if state == st.REVOKED:
            # crash-point: revoke.found
            self._forget(task)
            return CancelResult.PREVENTED
        if how is not None:
            self._signal(task, how)
        return CancelResult.REQUESTED

    def _withdraw(self, task: Task) -> None:
        """Ask for `task` no more: an entry that is used again must not be taken for it."""
        words, layout = self._pool.segment.words, self._pool.layout
        key = task.id << 16 | task.attempt & 0xFFFF
        with contextlib.suppress(ValueError):  # the pool has ended, and with it the words
            for worker in range(layout.workers):
                word = layout.block(worker) + lay.B_REVOKE
                if words[word] == key:
                    words[word] = 0

    def start_after_all(self, task: Task) -> None:
        """Queue a root again that a helper took out when nobody waited any more. Supervisor."""
        pool = self._pool
        section, state = pool.dispatcher.section, pool.table.state
        if not section.try_enter():
            return  # looked at again soon
        try:
            handle = task.handle
            # Another `cancel` may have found it since.
            if handle >= 0 and state[handle] & 255 == st.REVOKED:
                if task.future is not None and task.future._unwanted:
                    self._forget(task)
                    pool.dispatcher.dropped.append(task.future)
                else:
                    pool.dispatcher.queue_again(handle, state[handle] >> 8)
        finally:
            section.leave()

    def ask(self, task: Task) -> bool:
        """Set the signal of a task; False if its entry may just be changing hands."""
        section = self._pool.dispatcher.section
        if not section.try_enter():
            return False
        try:
            handle = task.handle
            if handle >= 0:
                self._pool.table.cancel[handle] = 1
        finally:
            section.leave()
        return True

    def _signal(self, task: Task, how: How) -> None:
        handle = task.handle
        if handle >= 0:
            self._pool.table.cancel[handle] = 1
        if how == "kill":
            self._end(task)

    def _end(self, task: Task) -> None:
        """Have the worker ended that runs `task`, or is about to."""
        task.killed = "cancel"
        self._pool.supervisor.limits.kill_soon(task)
        self._pool.ring()

    def cancel_map(self, run: MapRun, how: How) -> CancelResult:
        """Cancel what is left of a map: nothing more of it starts. Any thread.

        What waits and what its pieces have not started fails as cancelled; what was delivered stays.
        """
        if run.finished or self._pool.forked:
            return CancelResult.TOO_LATE
        run.cancel_rest()
        pieces = list(run.outstanding.values())
        for task in pieces:
            self.tell(task)
            if how == "kill":
                self._end(task)
        self._pool.dispatcher.pump()
        self._pool.ring()
        return CancelResult.REQUESTED if pieces else CancelResult.PREVENTED

    def tell(self, task: Task) -> None:
        """Set the signal of a dispatched task, and of no other that has its entry by now."""
        deadline = time.monotonic() + _REVOKE_S
        while not self.ask(task) and time.monotonic() < deadline:
            time.sleep(0.000_1)

    def resolve(self) -> None:
        """Finish what was interrupted. The supervisor, in the dispatcher's section."""
        for task in list(self.doubtful):
            if self._resolved(task):
                self._forget_doubt(task)

    def _forget_doubt(self, task: Task) -> None:
        with contextlib.suppress(ValueError):  # the other side was quicker
            self.doubtful.remove(task)

    def _resolved(self, task: Task) -> bool:
        future, handle = task.future, task.handle
        if future is None or future.done() or future._ending:
            return True
        if handle >= 0 and not task.cancelled:
            state, worker = st.parts(self._pool.table.state[handle])
            if state == st.CLAIMED:
                return False  # a helper may still answer
            if state == st.QUEUED:
                lies_there = self._pool.dispatcher.lies_in(handle, worker)
                if lies_there is None:
                    return False
                if not lies_there:
                    self._forget(task)
            elif state == st.REVOKED:
                self._forget(task)
        if task.cancelled:
            self._forget(task)  # once more: it may have been interrupted half-way
            self._pool.dispatcher.dropped.append(future)
        return True

    def _forget(self, task: Task) -> None:
        task.cancelled = True  # first: the rest is only tidying up
        # crash-point: revoke.marked
        self._pool.dispatcher.inflight.pop(task.id, None)
        if task.handle >= 0:
            self._pool.entries.free(task.handle)
        task.holds = None

    def cancel_piece(self, task: Task) -> None:
        """Tell the worker that runs a piece of a map to stop after its current item."""
        handle = task.handle
        if handle >= 0 and not self._pool.forked:
            self._pool.table.cancel[handle] = 1

    def cancel_waiting(self, deadline: float | None = None) -> None:
        """Cancel what has not started, wherever it lies.

        Args:
            deadline: `time.monotonic()` after which it gives up on what cannot be had.
        """
        pool = self._pool
        dispatcher = pool.dispatcher
        while not dispatcher.section.try_enter():
            # Ended, and nobody can enter any more; or somebody pickles an item inside.
            if pool.supervisor.done.is_set() or _is_over(deadline):
                return
            time.sleep(0.000_1)
        try:
            items = [*pool.ready.items(), *pool.supervisor.alone.waiting]
            waiting = [item for item in items if isinstance(item, Task)]
            for task in waiting:
                task.cancelled = True
        finally:
            dispatcher.section.leave()
        for task in waiting:
            future = task.future
            if future is not None and not future.done():
                future._cancel()
        silent: set[int] = set()  # workers that do not answer: stopped, or in one long call
        for task in list(dispatcher.inflight.values()):
            state, worker = self._state_of(task)
            if state == st.RUNNING or (state == st.CLAIMED and worker in silent):
                continue
            future = task.future
            if task.run is not None:
                self.tell(task)  # it starts none of its items
            elif (
                future is not None
                and not future.done()
                and not (_is_over(deadline) or self.cancel(task, "signal"))
                and state == st.CLAIMED
            ):
                silent.add(worker)
        for run in list(pool.runs):
            run.cancel_rest()
        dispatcher.pump()
        if pool.limited:
            pool.made_room()
        pool.ring()

    def _state_of(self, task: Task) -> tuple[int, int]:
        handle = task.handle
        return (st.FREE, 0) if handle < 0 else st.parts(self._pool.table.state[handle])


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
