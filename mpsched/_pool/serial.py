"""No workers: every task runs at its submit, in the calling thread, with the same results and errors.

For debuggers and profilers (`max_workers=0`).
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any, final

from mpsched._base.cancelresult import CancelResult
from mpsched._pool.core import closed
from mpsched._pool.events import Events
from mpsched._pool.future import Future
from mpsched._pool.options import DEFAULT, Options
from mpsched._pool.stats import PoolStats, WorkerStats
from mpsched._pool.task import Task
from mpsched._tasks import failure
from mpsched._worker import context, eager, streams
from mpsched._worker.context import TaskContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@final
class _Here:
    """What `current_task` and `current_worker` see while a task runs in the caller's thread."""

    index = incarnation = limit_ns = 0
    stolen = ()

    def __init__(self, task: Task | None = None, seed: str | None = None) -> None:
        self.pid = os.getpid()
        # It is its own table, of one entry.
        self.table = self
        self.cancel = self.started = (0,)
        self.ident = (task.id if task is not None else 0,)
        self._context: TaskContext | None = None
        if task is not None:
            self._context = TaskContext(self, 0, task.id, task.attempt, seed)

    def context(self) -> TaskContext | None:
        """Return the context of the task; None in an initializer."""
        return self._context


@final
class SerialPool:
    """Stands in for a pool; there is no process and no thread."""

    def __init__(
        self, initializer: Callable[..., Any] | None = None, initargs: tuple[Any, ...] = ()
    ) -> None:
        self.width = 0
        self.events = Events(lambda: None)
        self.leader = self  # what a future asks of its pool's leader; nothing ever waits here
        self.state = "accepting"
        self._ids = itertools.count(1)
        self._executed = 0
        self._busy_ns = 0
        if initializer is not None:
            before = context.run_here(_Here())
            try:
                initializer(*initargs)
            finally:
                context.run_here(before)

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options = DEFAULT,
        index: Iterator[int] | None = None,
    ) -> Future[Any]:
        """Run the call now; returns its finished future."""
        if self.state != "accepting":
            raise closed()
        task = Task(next(self._ids), 0, b"", options)
        future: Future[Any] = Future(self, task)  # type: ignore[arg-type]
        task.future = future
        result: Any = None
        number = next(index) if index is not None else 0
        outer = streams.seeded(context.task_here())
        seed = f"{options.rng}/{number}" if options.rng is not None else None
        if seed is None and outer is not None:
            seed = streams.next_key(outer)  # in a task it stands for a child of that
        while True:
            error: BaseException | None = None
            before = context.run_here(_Here(task, seed))
            begun = time.monotonic_ns()
            try:
                # As a child: what it spawns and does not join is finished, or fails, with it.
                result = eager.spawn(fn, args, kwargs).join()
            except KeyboardInterrupt:
                raise  # of the user at the keyboard: this is his thread
            except BaseException as problem:
                error = problem
            finally:
                future._ns = time.monotonic_ns() - begun
                context.run_here(before)
            self._executed += 1
            self._busy_ns += future._ns
            if (
                error is None
                or task.attempt > options.retries
                or not isinstance(error, options.retry_on)
            ):
                break
            task.attempt += 1
            self.events.note("retried", f"{type(error).__name__}: {error}", task=task)
            self.events.deliver()
        future.worker = 0
        raw = None
        if error is not None:
            own = error
            name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
            own.add_note(f"task {task.id}: {failure.short_call(name, args, kwargs)}")

            def raw() -> tuple[Any, BaseException | None]:
                return None, own

        future._settle(result, raw, failed=error is not None)
        return future

    @property
    def refusal(self) -> Callable[[], Exception] | None:
        """Why new work is refused, or None; as `Pool.refusal`."""
        return None if self.state == "accepting" else closed

    def check_process(self) -> None:
        """Any process may use it, a forked one too: it has no workers."""

    def shutdown(self) -> None:
        """Take no more."""
        self.state = "terminated"

    def outsider(self) -> None:
        """Nobody has to be told: every future is finished."""

    def cancel(self, _task: Task) -> bool:
        """Everything that was accepted has run."""
        return False

    def cancel_running(self, _future: Future[Any], _how: str) -> CancelResult:
        """Everything that was accepted has run."""
        return CancelResult.TOO_LATE

    def in_own_thread(self) -> bool:
        """There is no thread of its own."""
        return False

    def is_running(self, _task: Task) -> bool:
        """Nothing runs between two submits."""
        return False

    def stats(self) -> PoolStats:
        """Return the counters, as one worker without a process."""
        counts: dict[str, Any] = dict.fromkeys(
            ("steals", "steal_attempts", "stolen", "returned", "splits", "parks", "rescues"), 0
        )
        counts |= {"locks": 0, "contended": 0, "items": 0}
        counts |= {"executed": self._executed, "busy_seconds": self._busy_ns / 1e9}
        worker = WorkerStats(pid=0, index=0, incarnation=0, **counts)
        return PoolStats(
            workers=(worker,),
            ready=0,
            inflight=0,
            deaths=0,
            refill_delay_seconds=0.0,
            window=0,
            **counts,
        )
