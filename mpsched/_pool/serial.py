"""No workers: every task runs at its submit, in the calling thread, with the same results and errors.

For debuggers and profilers (`max_workers=0`).
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, final

from mpsched._pool.core import closed
from mpsched._pool.future import Future
from mpsched._pool.options import DEFAULT, Options
from mpsched._pool.stats import PoolStats, WorkerStats
from mpsched._pool.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@final
class SerialPool:
    """Stands in for a pool; there is no process and no thread."""

    def __init__(
        self, initializer: Callable[..., Any] | None = None, initargs: tuple[Any, ...] = ()
    ) -> None:
        self.width = 0
        self.leader = self  # what a future asks of its pool's leader; nothing ever waits here
        self.state = "accepting"
        self._ids = itertools.count(1)
        self._executed = 0
        self._busy_ns = 0
        if initializer is not None:
            initializer(*initargs)

    def submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options = DEFAULT,
        _index: Iterator[int] | None = None,
    ) -> Future[Any]:
        """Run the call now; returns its finished future."""
        if self.state != "accepting":
            raise closed()
        task = Task(next(self._ids), 0, b"", options, None)
        future: Future[Any] = Future(self, task)  # type: ignore[arg-type]
        task.future = future
        result: Any = None
        while True:
            begun = time.monotonic_ns()
            error: BaseException | None = None
            try:
                result = fn(*args, **kwargs)
            except KeyboardInterrupt:
                raise  # of the user at the keyboard: this is his thread
            except BaseException as problem:
                error = problem
            future._ns = time.monotonic_ns() - begun
            self._executed += 1
            self._busy_ns += future._ns
            if (
                error is None
                or task.attempt > options.retries
                or not isinstance(error, options.retry_on)
            ):
                break
            task.attempt += 1
        raw = None
        if error is not None:
            own = error

            def raw() -> tuple[Any, BaseException | None]:
                return None, own

        future._settle(result, raw, failed=error is not None)
        return future

    def shutdown(self) -> None:
        """Take no more."""
        self.state = "terminated"

    def outsider(self) -> None:
        """Nobody has to be told: every future is finished."""

    def cancel(self, _task: Task) -> bool:
        """Everything that was accepted has run."""
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
