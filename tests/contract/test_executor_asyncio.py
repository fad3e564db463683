"""asyncio: futures that are awaited, gathered, timed out and cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import PendingLimitReached
from tests.contract.conftest import settle
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    import concurrent.futures as cf

    from tests.support.gates import Gate

HANG_S = 60.0


def test_asyncio_run_in_executor(pool: WorkStealingExecutor) -> None:
    """The loop's own way to use an executor."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(pool, tasks.square, number) for number in range(300)]
        return list(await asyncio.wait_for(asyncio.gather(*jobs), HANG_S))

    assert asyncio.run(main()) == [n * n for n in range(300)]


def test_asyncio_wrap_future_and_gather(pool: WorkStealingExecutor) -> None:
    """Futures of `submit` are awaitable by `wrap_future`."""

    async def main() -> list[int]:
        jobs = [asyncio.wrap_future(pool.submit(tasks.square, n)) for n in range(300)]
        return list(await asyncio.wait_for(asyncio.gather(*jobs), HANG_S))

    assert asyncio.run(main()) == [n * n for n in range(300)]


def test_asyncio_as_completed(pool: WorkStealingExecutor) -> None:
    """In the order in which they end."""

    async def main() -> list[int]:
        jobs = [asyncio.wrap_future(pool.submit(tasks.square, n)) for n in range(100)]
        return [await job for job in asyncio.as_completed(jobs, timeout=HANG_S)]

    assert sorted(asyncio.run(main())) == [n * n for n in range(100)]


def test_asyncio_raises_what_the_task_raised(pool: WorkStealingExecutor) -> None:
    """The same exception, with the remote traceback."""

    async def main() -> None:
        await asyncio.wrap_future(pool.submit(tasks.fail, "in a coroutine"))

    with pytest.raises(ValueError, match="in a coroutine") as caught:
        asyncio.run(main())
    assert "in fail" in str(caught.value.__cause__)


def test_asyncio_loop_goes_on_meanwhile(pool: WorkStealingExecutor, gate: Gate) -> None:
    """While a task runs, other coroutines do."""

    async def main() -> str:
        job = asyncio.wrap_future(pool.submit(gate.hold, "held"))
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        gate.open()
        return str(await asyncio.wait_for(job, HANG_S))

    assert asyncio.run(main()) == "held"


def test_asyncio_wait_for_asks_the_task_to_stop(pool: WorkStealingExecutor, gate: Gate) -> None:
    """A time-out cancels the awaitable, which sets the task's signal: the worker is free again."""

    async def main() -> None:
        job = asyncio.wrap_future(pool.submit(gate.hold_until_cancelled))
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job, 0.01)

    asyncio.run(main())
    settle(pool)  # it ends although the gate is closed


def test_asyncio_cancel_prevents_what_has_not_started(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Cancelling the awaitable of a pending task takes it back."""

    async def main() -> None:
        held = [asyncio.wrap_future(pool.submit(gate.hold)) for _ in range(2)]
        while len(gate.arrivals()) < 2:
            await asyncio.sleep(0.002)
        inner = pool.submit(gate.log, "never")
        job = asyncio.wrap_future(inner)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        while not inner.done():  # the loop tells it a turn later
            await asyncio.sleep(0.002)
        assert inner.cancelled()
        gate.open()
        await asyncio.wait_for(asyncio.gather(*held), HANG_S)

    asyncio.run(main())
    assert "never" not in gate.arrivals()


def test_asyncio_cancel_with_kill_frees_the_worker(start_method: str, gate: Gate) -> None:
    """`on_cancel="kill"` ends a task that never looks."""

    async def main(ex: WorkStealingExecutor) -> int:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(ex.options(on_cancel="kill"), gate.hold)
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        return await asyncio.wait_for(loop.run_in_executor(ex, tasks.square, 5), HANG_S)

    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert asyncio.run(main(ex)) == 25


def test_asyncio_task_cancelled_is_no_cancelled_error(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """A task that stops with TaskCancelled does not cancel the coroutine that awaits it."""
    from mpsched.errors import TaskCancelled
    from tests.contract.test_executor_cancel import stop_when_asked

    async def main() -> None:
        future = pool.submit(stop_when_asked, gate)
        job = asyncio.wrap_future(future)
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        assert not future.cancel()
        with pytest.raises(TaskCancelled):
            await asyncio.wait_for(job, HANG_S)

    asyncio.run(main())


def test_asyncio_full_pool_raises_instead_of_blocking_the_loop(
    start_method: str, gate: Gate
) -> None:
    """In a running event loop `max_pending` never waits."""

    async def main(ex: WorkStealingExecutor) -> None:
        jobs = [asyncio.wrap_future(ex.submit(gate.hold)) for _ in range(2)]
        with pytest.raises(PendingLimitReached, match="event loop"):
            ex.submit(tasks.square, 3)
        gate.open()
        await asyncio.wait_for(asyncio.gather(*jobs), HANG_S)
        assert await asyncio.wrap_future(ex.submit(tasks.square, 3)) == 9

    with WorkStealingExecutor(1, mp_context=start_method, max_pending=2) as ex:
        asyncio.run(main(ex))


def test_asyncio_async_with_lets_the_loop_go_on(start_method: str, gate: Gate) -> None:
    """Leaving `async with` waits for the pool without blocking other coroutines."""

    async def opener() -> None:
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        gate.open()

    async def main() -> Any:
        side = asyncio.create_task(opener())
        async with WorkStealingExecutor(1, mp_context=start_method) as ex:
            future = ex.submit(gate.hold, "held")
        assert ex.state == "terminated"
        await side
        return future.result(0)

    assert asyncio.run(main()) == "held"


def test_asyncio_to_thread_may_read_results(pool: WorkStealingExecutor) -> None:
    """A helper thread of the loop may wait in `result`."""

    async def main() -> int:
        return await asyncio.to_thread(pool.submit(tasks.square, 4).result, HANG_S)

    assert asyncio.run(main()) == 16


def test_asyncio_loop_that_is_closed_hurts_nobody(pool: WorkStealingExecutor, gate: Gate) -> None:
    """A result that arrives after its loop has gone is dropped, the pool goes on."""

    async def main() -> cf.Future[Any]:
        future = pool.submit(gate.hold)
        asyncio.wrap_future(future)
        return future

    future = asyncio.run(main())
    gate.open()
    wait_until(future.done, "the end of the task")
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9
