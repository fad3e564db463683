"""`AsyncScheduler`: the same with `await`, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import AsyncScheduler, CancelResult, Due, TaskHandle, Wait
from mpsched.errors import SchedulerClosed
from mpsched.testing import ManualClock
from tests.support import tasks

if TYPE_CHECKING:
    from mpsched import WorkStealingExecutor
    from tests.support.gates import Gate

HANG_S = 60.0


def test_async_jobs_are_awaited(default_pool: WorkStealingExecutor) -> None:
    """`schedule` gives a handle that can be awaited; a failure raises there."""

    async def main() -> None:
        async with AsyncScheduler(executor=default_pool, on_error=lambda *_: None) as s:
            handle = await s.schedule("one", after=0.01, fn=tasks.square, args=(6,))
            assert isinstance(handle, TaskHandle)
            assert await handle == 36
            bad = await s.schedule("bad", after=0, fn=int, args=("x",))
            with pytest.raises(ValueError, match="invalid literal"):
                await bad
            many = [await s.schedule(n, after=0, fn=tasks.square, args=(n,)) for n in range(50)]
            assert await asyncio.gather(*many) == [n * n for n in range(50)]
            assert (await s.metrics()).outcomes == {"completed": 51, "failed": 1}
            status = await s.status("one")
            assert status is not None
            assert status.state == "completed"
            assert len(await s.history("one")) == 1
        assert s.state == "closed"
        with pytest.raises(SchedulerClosed):
            await s.schedule("late", after=0, fn=tasks.nothing)

    asyncio.run(main())


def test_async_cancel_and_reschedule(default_pool: WorkStealingExecutor, gate: Gate) -> None:
    """With the answers of the Scheduler; cancelling the await of a running job asks it to stop."""

    async def main() -> None:
        async with AsyncScheduler(executor=default_pool) as s:
            far = await s.schedule("far", after=1000, fn=tasks.identity, args=(1,))
            assert await s.reschedule("far", after=0)
            assert await far == 1
            await s.schedule("far", after=1000, fn=tasks.nothing)
            assert await s.cancel("far") is CancelResult.PREVENTED
            runs = await s.schedule("runs", after=0, fn=gate.hold_until_cancelled, args=("runs",))
            await asyncio.to_thread(gate.wait_for, 1)
            waiting = asyncio.ensure_future(runs)
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.to_thread(runs.result, HANG_S) == "cancelled"

    asyncio.run(main())


def test_async_loop_goes_on_while_the_scheduler_closes(
    default_pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Leaving the block waits for what runs, in the loop's time."""
    leaving = asyncio.Event()

    async def tick() -> None:
        await leaving.wait()
        for _ in range(20):
            await asyncio.sleep(0.01)
        gate.open()

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        async with AsyncScheduler(executor=default_pool) as s:
            held = await s.schedule("held", after=0, fn=gate.hold)
            await asyncio.to_thread(gate.wait_for, 1)
            leaving.set()
        assert held.result(0) == "task"
        await ticking

    asyncio.run(main())


def test_async_pull_mode_waits_without_a_thread() -> None:
    """`next` is woken by what is scheduled, by a clock that is moved, and by a close."""
    clock = ManualClock()

    async def main() -> None:
        s = AsyncScheduler(0, clock=clock)
        assert await s.next() is None
        handle = await s.schedule("a", after=60, fn=tasks.square, args=(3,))
        assert await s.next(0.01) == Wait(60.0)
        got = asyncio.create_task(s.next(None))
        await asyncio.sleep(0.01)
        clock.advance(60)
        due = await asyncio.wait_for(got, HANG_S)
        assert isinstance(due, Due)
        await s.complete(due, due.fn(*due.args))
        assert await handle == 9
        got = asyncio.create_task(s.next(None))
        await asyncio.sleep(0.01)
        await s.schedule("b", after=0, fn=tasks.nothing)
        due = await asyncio.wait_for(got, HANG_S)
        assert isinstance(due, Due)
        got = asyncio.create_task(s.next(None))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(s.close())
        with pytest.raises(SchedulerClosed):
            await asyncio.wait_for(got, HANG_S)
        await closing
        await s.complete(due)
        assert await s.wait(HANG_S)

    asyncio.run(main())


def test_async_coroutine_functions_are_refused_clearly(default_pool: WorkStealingExecutor) -> None:
    """A job runs outside of the loop; the message says so."""

    async def job() -> None:
        """Do nothing."""

    async def main() -> None:
        async with AsyncScheduler(executor=default_pool) as s:
            with pytest.raises(TypeError, match="coroutine function"):
                await s.schedule("co", after=0, fn=job)
            assert await s.wait(0.01) is False

    asyncio.run(main())


def test_async_scheduler_has_every_call_of_the_scheduler() -> None:
    """Under the same names; what is only for threads is left out."""
    from mpsched import Scheduler

    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(Scheduler) - names(AsyncScheduler) == {"run_due"}


def test_async_cancellation_of_the_block_ends_the_scheduler(
    default_pool: WorkStealingExecutor, gate: Gate
) -> None:
    """As Ctrl-C does in `asyncio.run`: nothing new starts, what runs is asked."""
    seen: list[Any] = []

    async def block() -> None:
        async with AsyncScheduler(executor=default_pool) as s:
            seen.append(await s.schedule("runs", after=0, fn=gate.hold_until_cancelled))
            seen.append(await s.schedule("far", after=1000, fn=tasks.nothing))
            await asyncio.sleep(HANG_S)

    async def main() -> None:
        running = asyncio.create_task(block())
        await asyncio.to_thread(gate.wait_for, 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert seen[0].result(HANG_S) == "cancelled"
    assert seen[1].cancelled()
