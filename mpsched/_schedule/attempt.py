"""One attempt of a version, on its way through a pool or a thread. See README.md, "Attempts"."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._pool.future import COMPLETION, Future
from mpsched._worker import context, eager
from mpsched._worker.context import TaskContext
from mpsched.errors import TaskTimeout, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task
    from mpsched._schedule.handle import TaskHandle

_LOG = logging.getLogger("mpsched")

_IDLE_S: Final = 5.0
"""Seconds for which a thread waits for the next job before it ends."""


@final
class Attempt(Future[Any]):
    """What the pool takes for the future of its task; it tells the desk instead of a waiter.

    It always goes through the pool's own thread, which runs no lock of the pool then (`_settle`), or
    through the thread that cancels it.

    Attributes:
        handle: the version that it is an attempt of.
        wanted: the desk has asked for it back: once it is cancelled, the version goes on.
        asked: it was to give way, and did not come back.
        started_ns: when the worker began (monotonic); 0 if it never did, or nobody can tell.
    """

    _shared = True  # the pool's leader leaves it to the pool's thread
    wanted = asked = False
    started_ns = 0
    _at_end = False

    def __init__(self, pool: Pool, task: Task, handle: TaskHandle[Any]) -> None:
        self._pool = pool
        self._task = task
        self.handle = handle

    # Set by whoever ends the run, while its entry is there: the last moment to look when it began.
    @property
    def _ending(self) -> bool:
        return self._at_end

    @_ending.setter
    def _ending(self, value: bool) -> None:
        self._at_end = value
        at = self._task.handle
        if at >= 0:
            self.started_ns = self._pool.table.started[at]

    def _finish(
        self, value: Any, raw: Callable[[], tuple[Any, BaseException | None]] | None, failed: bool
    ) -> bool:
        """The leader has its record. A failure is unpickled in the pool's own thread (`_settle`)."""
        self._ending = True
        if failed:
            return False
        # In this order: if it is interrupted, the record comes again (LEADER-1).
        self.handle._pool.arrive(self, value, raw)  # type: ignore[attr-defined]
        self._state = FINISHED
        self._task.future = None
        return True

    def _settle(
        self,
        value: Any,
        raw: Callable[[], tuple[Any, BaseException | None]] | None,
        *,
        failed: bool = False,
        state: str = FINISHED,
    ) -> None:
        with COMPLETION:
            if self.done():
                return
            self._state = state
            self._task.future = None
        desk = self.handle._pool
        if state == CANCELLED_AND_NOTIFIED:
            desk.taken_back(self)  # type: ignore[attr-defined]
            return
        error: BaseException | None = None
        if raw is not None:
            # Unpickles what the user's code has raised: in this thread, where callbacks run.
            value, error = raw()
            if isinstance(error, WorkerDied | TaskTimeout) and error.task_id == self._task.id:
                error.task_id = self.handle.task_id  # the pool knows its own number only
        desk.ended(self, value, error)  # type: ignore[attr-defined]

    @property
    def _label(self) -> str:
        return self.handle.describe()

    def has_begun(self) -> bool:
        """Whether a worker runs it now, as far as its state word tells."""
        return self._pool.is_running(self._task)

    def waits(self) -> bool:
        """Whether it is with the pool, has not started as far as can be seen, and nobody recalls it."""
        handle = self.handle
        if handle.run is not self or handle.begun or handle.recalling or self._at_end:
            return False
        return not (self.done() or self.has_begun())

    def take_back(self) -> None:
        """Have the pool give it back; it is cancelled then, or it has begun. No lock is held."""
        self.wanted = True
        self._pool.revoker.cancel(self._task, ask=False)

    def ask(self) -> None:
        """Set its signal. No lock is held."""
        self._pool.revoker.cancel(self._task)

    def kill(self) -> None:
        """End the worker that runs it."""
        self._task.killed = "cancel"
        self._pool.supervisor.limits.kill_soon(self._task)
        self._pool.ring()


@final
class ThreadRun:
    """An attempt in a thread of this process; what `current_task()` sees there (a `context.Host`).

    Attributes:
        taken: it was taken back; it must not begin.
    """

    index = limit_ns = incarnation = 0
    stolen = ()
    worker = None
    wanted = _unwanted = False

    def __init__(self, handle: TaskHandle[Any], pid: int) -> None:
        self.handle = handle
        self.pid = pid
        self.taken = False
        self.started_ns = 0
        self._ns = 0
        self._thread = 0
        # It is its own table, of one entry.
        self.table = self
        self.cancel = [0]
        self.started = [0]
        self.ident = [handle.version]
        self._context = TaskContext(self, 0, handle.version, handle.attempt, None)
        self._context.version, self._context.task_id = handle.version, handle.task_id

    def context(self) -> TaskContext:
        """Return what the job sees as `current_task()`."""
        return self._context

    def __call__(self) -> None:
        """Run it, unless it was taken back. In a thread of `ThreadJobs`."""
        handle = self.handle
        desk: Any = handle._pool
        job = handle.job
        if job is None or job.fn is None or not desk.begin(self):
            return
        value: Any = None
        error: BaseException | None = None
        before = context.run_here(self)
        self.started_ns = self.started[0] = begun = time.monotonic_ns()
        try:
            # As a child: what it spawns and does not join is finished, or fails, with it.
            value = eager.spawn(job.fn, job.args, job.kwargs or {}).join()
        except BaseException as problem:
            error = problem
        finally:
            self._ns = time.monotonic_ns() - begun
            context.run_here(before)
        try:
            desk.ended(self, value, error)
        finally:
            del error

    def has_begun(self) -> bool:
        """Whether it runs: the desk is told of it at once."""
        return False

    def take_back(self) -> None:
        """Keep it from beginning; the desk's lock is held."""
        self.taken = True

    def ask(self) -> None:
        """Set its signal."""
        self.cancel[0] = 1

    def kill(self) -> None:
        """A thread cannot be ended."""


@final
class ThreadJobs:
    """Threads that run jobs; made when needed, at most so many, and let go when they are not.

    Attributes:
        most: how many there may be.

    They are daemons: once a close has given up on a job, it does not keep the interpreter from ending.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._there = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._count = 0
        self._closed = False

    def submit(self, run: Callable[[], None]) -> None:
        """Have a thread call `run`; in the order in which they come."""
        with self._lock:
            self._waiting.append(run)
            if self._idle >= len(self._waiting) or self._count >= self.most:
                self._there.notify()
                return
            self._count += 1
            name = f"mpsched-job-{self._count}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._count -= 1
                if self._count:
                    return  # those there are take it
                self._waiting.remove(run)
            raise

    def _work(self) -> None:
        inside.here = self
        while True:
            with self._lock:
                self._idle += 1
                rested = False
                while not self._waiting:
                    if self._closed or rested:
                        self._idle -= 1
                        self._count -= 1
                        self._there.notify_all()
                        return
                    rested = not self._there.wait(_IDLE_S)
                self._idle -= 1
                run = self._waiting.popleft()
            try:
                run()
            except BaseException:  # of a callback, say: this thread has others to run
                _LOG.exception("a job's thread goes on after this")
            del run

    def here(self) -> bool:
        """Whether the calling thread is one of them."""
        return getattr(inside, "here", None) is self

    def close(self, timeout: float) -> None:
        """Let the idle threads end, and wait for them up to `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            self._there.notify_all()
            while self._count and (left := until - time.monotonic()) > 0:
                self._there.wait(left)


inside = threading.local()
