"""Time limits: the watch over dispatched tasks that may not run for ever.

See README.md, "Limits". The limit counts from the STARTED word, which the worker writes. First the
task's signal is set, `grace` seconds later the worker that runs it is ended; the death then becomes
a TaskTimeout.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Final, final

from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged, fence
from mpsched._tasks import state as st, table as tab

if TYPE_CHECKING:
    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task
    from mpsched._pool.trees import Trees

_UNSENT_S: Final = 0.25
"""Seconds that finished items of a map have to be sent before the one behind them is ended."""


@final
class Limits:
    """The supervisor's heap of looks to take, earliest first. Supervisor only, except `watch`."""

    def __init__(self, pool: Pool, trees: Trees) -> None:
        self._pool = pool
        self._trees = trees
        self._heap: list[tuple[float, int, Task, int]] = []
        self._count = itertools.count()
        self._condemned: dict[int, tuple[int, int]] = {}  # task id -> KILL word, run
        self._asked: dict[int, float] = {}  # task id -> when its unsent results were asked for
        self._stopped: dict[int, tuple[int, int, bool]] = {}  # task id -> worker, pid, by us

    def watch(self, task: Task, after: float) -> None:
        """Look at `task` in `after` seconds. Any thread: one heap operation."""
        entry = (time.monotonic() + after, next(self._count), task, task.attempt)
        heapq.heappush(self._heap, entry)

    def kill_soon(self, task: Task) -> None:
        """End the worker that runs `task` at the next look."""
        heapq.heappush(self._heap, (0.0, next(self._count), task, task.attempt))

    def next(self) -> float | None:
        """Return the `time.monotonic()` of the next look, or None."""
        return self._heap[0][0] if self._heap else None

    def check(self) -> None:
        """Take the looks that are due.

        Raises:
            Damaged: A task says that it starts in the future: its limit would never come.
        """
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _at, _n, task, attempt = heapq.heappop(self._heap)
            again = self._look(task, attempt, now)
            if again is not None:
                heapq.heappush(self._heap, (again, next(self._count), task, attempt))

    def _look(self, task: Task, attempt: int, now: float) -> float | None:
        """Return when to look again; None: it is over."""
        if _over(task, attempt):
            self._spare(task)
            return None
        pool, handle = self._pool, task.handle
        if self._trees.holds(task):
            self._spare(task)
            return None  # its worker is dead, and its state word names the next one
        if handle < 0:
            # It waits in the parent.
            return now + (task.options.timeout or 0.05)
        state, _worker = st.parts(pool.table.state[handle])
        if state == st.REVOKED:
            pool.revoker.start_after_all(task)
            return now + 0.005
        if task.killed in {"cancel", "memory"}:
            return self._kill(task, handle, now) if state == st.RUNNING else now + 0.005
        limit = task.options.timeout
        if limit is None:
            # A `cancel` that got no answer in time: until it runs, one may come.
            return None if state == st.RUNNING else now + 0.05
        started = pool.table.started[handle] / 1e9
        if state != st.RUNNING or not started:
            return now + limit
        if started > (clock := time.monotonic()):
            raise Damaged(
                f"{task.describe()} will have started {started - clock:,.3f} s from now: "
                "something has written into the shared memory of this pool"
            )
        over = started + limit
        if now < over:
            return over
        if not pool.revoker.ask(task):
            return now + 0.001
        end = over + task.options.grace
        if now < end:
            return end
        task.killed = "timeout"
        return self._kill(task, handle, now)

    def _kill(self, task: Task, handle: int, now: float) -> float | None:
        """End the worker that runs `task`, if it still does. Returns when to look again.

        First KILL, then the look for the record of its end; the worker does it in the other order
        (`Runner._wait_for_its_end`). So whoever is killed runs `task`, or nothing any more.
        """
        if not task.meta & tab.FLAG_TIMED:
            return self._kill_stopped(task, handle, now)
        pool = self._pool
        words, run = pool.segment.words, task.id << 16 | task.attempt & 0xFFFF
        worker = pool.table.state[handle] >> 8
        kill = pool.layout.block(worker) + lay.B_KILL
        self._condemned[task.id] = (kill, run)
        words[kill] = run
        fence()
        # crash-point: limit.named
        if pool.leader.unread(worker):
            # Perhaps the record is among them. Whoever leads reads it now.
            pool.leader.ask()
            return now + 0.001
        if pool.table.state[handle] == st.word(st.RUNNING, worker) and (
            pool.table.run_key(handle) == run
        ):
            # crash-point: limit.killing
            pool.supervisor.kill(worker, signal.SIGKILL, task.why or _why(task))
            return now + 0.05
        return now + 0.001

    def _kill_stopped(self, task: Task, handle: int, now: float) -> float | None:
        """The same for a task whose worker does not look at KILL at its end: it was not known before.

        The worker is stopped, and everything that it has published read; then it is plain to see
        whether it is inside of `task`.
        """
        pool, run = self._pool, task.id << 16 | task.attempt & 0xFFFF
        worker = pool.table.state[handle] >> 8
        pid = pool.supervisor.pid_of(worker)
        if task.id not in self._stopped:
            if self._unsent(task, worker, now):
                return now + 0.002
            ours = not stopped(pid)  # else somebody has stopped it, who will have it go on
            self._stopped[task.id] = (worker, pid, ours)
            if ours:
                pool.supervisor.kill(worker, signal.SIGSTOP)
        elif self._stopped[task.id][:2] != (worker, pid):
            self._spare(task)
        elif stopped(pid):
            fence()
            if pool.leader.unread(worker):
                pool.leader.ask()
            elif pool.table.state[handle] == st.word(st.RUNNING, worker) and (
                pool.table.run_key(handle) == run
            ):
                pool.supervisor.kill(worker, signal.SIGKILL, task.why or _why(task))
                return now + 0.05
        return now + 0.000_5

    def _unsent(self, task: Task, worker: int, now: float) -> bool:
        """Whether to wait for results that a piece of a map has behind the item that is to be ended.

        The worker's helper sends them, unless the item never lets go of the interpreter.
        """
        unsent = self._pool.layout.block(worker) + lay.B_UNSENT
        if task.run is None or not self._pool.segment.words[unsent]:
            return False
        self._pool.helper_bells[worker].wake()
        return now < self._asked.setdefault(task.id, now) + _UNSENT_S

    def _spare(self, task: Task) -> None:
        """The worker that was to be killed for `task` may go on, or is dead."""
        self._asked.pop(task.id, None)
        worker, pid, ours = self._stopped.pop(task.id, (0, 0, False))
        if ours and self._pool.supervisor.pid_of(worker) == pid:
            self._pool.supervisor.kill(worker, signal.SIGCONT)
        kill, run = self._condemned.pop(task.id, (0, 0))
        if run and self._pool.segment.words[kill] == run:
            self._pool.segment.words[kill] = 0


def _over(task: Task, attempt: int) -> bool:
    """Whether that run of a task is over."""
    if task.run is not None:
        return task.id not in task.run.outstanding
    return task.future is None or task.future.done() or task.attempt != attempt


def stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped. False if it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return all(_state(pid, thread) in {"T", "t"} for thread in threads)
    except OSError:
        return False


def _state(pid: int, thread: str) -> str:
    with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
        return chr(file.read().rpartition(b")")[2].split()[0][0])


def _why(task: Task) -> str:
    if task.killed == "timeout":
        return f"{task.describe()} was over its limit of {task.options.timeout} s"
    return f"{task.describe()} was cancelled"
