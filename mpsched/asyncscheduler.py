"""`AsyncScheduler`: the Scheduler for programs that run an asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Literal, Self

from mpsched._pool import lifecycle
from mpsched.scheduler import Due, Scheduler, SchedulerReport

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

    from mpsched._base.cancelresult import CancelResult
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.history import Run
    from mpsched._schedule.metrics import SchedulerMetrics
    from mpsched._timers.due import TimerStatus, Wait

__all__ = ["AsyncScheduler"]


class AsyncScheduler:
    """A Scheduler whose calls are awaited, so that none of them blocks the event loop.

    Jobs are ordinary functions and run where a Scheduler runs them: in worker processes, or in threads
    with `where="thread"`. What `schedule` returns can be awaited; cancelling that await asks the job to
    stop.

    Takes what `Scheduler` takes. Use it in one event loop, with `async with`.
    """

    def __init__(self, workers: int | None = None, **options: Any) -> None:
        self._scheduler = Scheduler(workers, **options)

    @property
    def scheduler(self) -> Scheduler:
        """The Scheduler underneath: the same ids, handles and history."""
        return self._scheduler

    @property
    def state(self) -> str:
        """One of "accepting", "closing", "draining" and "closed"."""
        return self._scheduler.state

    async def schedule(
        self,
        task_id: Hashable,
        run_at: Any = None,
        priority: int = 0,
        fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> TaskHandle[Any]:
        """Have a call run at a time; arguments, result and errors are those of `Scheduler.schedule`."""
        if asyncio.iscoroutinefunction(fn):
            raise TypeError(
                f"{getattr(fn, '__qualname__', fn)!r} is a coroutine function, and jobs run outside of the "
                "event loop: give an ordinary function, or one that calls asyncio.run"
            )
        # Pickling runs in this thread, under the eyes of the caller: what it sees must not change.
        return self._scheduler.schedule(task_id, run_at, priority, fn, **options)

    async def reschedule(self, task_id: Hashable, run_at: Any = None, **options: Any) -> bool:
        """Move what has not started; see `Scheduler.reschedule`."""
        return await asyncio.to_thread(self._scheduler.reschedule, task_id, run_at, **options)

    async def cancel(self, task_id: Hashable) -> CancelResult:
        """Keep a task from starting, or ask it to stop; see `Scheduler.cancel`."""
        return await asyncio.to_thread(self._scheduler.cancel, task_id)

    async def next(self, timeout: float | None = 0) -> Due | Wait | None:
        """Take the first task that is due, in pull mode; see `Scheduler.next`. Waits without a thread."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        desk = self._scheduler._desk
        changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        desk.listeners.append(wake)
        unwatch = desk.clock.watch(wake)
        try:
            while True:
                changed.clear()
                found = self._scheduler.next()
                left = None if until is None else until - loop.time()
                if isinstance(found, Due) or (left is not None and left <= 0):
                    return found
                seconds = None if found is None else found.seconds
                wait = desk.clock.timeout(seconds, walls=desk.follows_wall())
                times = [one for one in (left, wait) if one is not None]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(times, default=None))
        finally:
            unwatch()
            desk.listeners.remove(wake)

    async def complete(self, due: Due, result: Any = None) -> None:
        """Say that what `next` returned has come to its end; see `Scheduler.complete`."""
        self._scheduler.complete(due, result)

    async def fail(self, due: Due, error: BaseException) -> None:
        """Say that what `next` returned has failed; see `Scheduler.fail`."""
        self._scheduler.fail(due, error)

    def now(self) -> float:
        """Return the seconds on the scheduler's monotonic clock."""
        return self._scheduler.now()

    async def status(self, task_id: Hashable) -> TimerStatus | None:
        """Tell how the newest version of an id stands."""
        return self._scheduler.status(task_id)

    async def history(self, task_id: Hashable | None = None) -> list[Run]:
        """Return one record per attempt that is over, oldest first."""
        return self._scheduler.history(task_id)

    async def metrics(self) -> SchedulerMetrics:
        """Return the state of the scheduler in numbers."""
        return await asyncio.to_thread(self._scheduler.metrics)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the scheduler is closed, `timeout` seconds at most; True if it is."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        # In short waits, so that a cancelled one leaves no thread behind for long.
        while not self._scheduler.wait(0):
            left = 0.1 if until is None else min(0.1, until - loop.time())
            if left <= 0:
                return False
            await asyncio.to_thread(self._scheduler.wait, left)
        return True

    async def close(
        self,
        timeout: float | None = None,
        *,
        queued: Literal["run", "keep", "cancel"] = "run",
        kill_after: float | None = None,
        wait: bool = True,
    ) -> SchedulerReport:
        """End the scheduler while the loop goes on; see `Scheduler.close`."""
        return await asyncio.to_thread(
            self._scheduler.close, timeout, queued=queued, kill_after=kill_after, wait=wait
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ends = (KeyboardInterrupt, asyncio.CancelledError)
        if exc_type is not None and issubclass(exc_type, ends):
            await self._end_at_once()
            return
        try:
            await self.close()
        except asyncio.CancelledError:
            await self._end_at_once()
            raise

    async def _end_at_once(self) -> None:
        await self.close(0.0, queued="cancel", kill_after=lifecycle.GRACE_S)

    def __repr__(self) -> str:
        return repr(self._scheduler).replace("Scheduler", "AsyncScheduler", 1)
