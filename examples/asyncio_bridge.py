"""Computing from asyncio: the event loop goes on while the workers compute.

Prints the sums that `run_in_executor` and `wrap_future` gave, how a time limit ends a task that
would never end, and that the loop kept ticking meanwhile.
"""

from __future__ import annotations

import asyncio

import mpsched


def add_up(limit: int) -> int:
    """Compute for a while."""
    return sum(range(limit))


def forever() -> None:
    """Never end."""
    while True:
        pass


async def tick(ticks: list[int]) -> None:
    """Count, as a sign that the loop is free."""
    while True:
        await asyncio.sleep(0.01)
        ticks[0] += 1


async def main() -> None:
    """Await tasks of the pool like any other awaitable."""
    loop = asyncio.get_running_loop()
    ticks = [0]
    ticker = asyncio.create_task(tick(ticks))
    with mpsched.WorkStealingExecutor(2) as ex:
        one = await loop.run_in_executor(ex, add_up, 3_000_000)
        print("run_in_executor:", one)

        many = [asyncio.wrap_future(ex.submit(add_up, n * 1_000_000)) for n in range(4)]
        print("gather:", await asyncio.gather(*many))

        limited = ex.options(timeout=0.3, name="forever")
        try:
            await asyncio.wrap_future(limited.submit(forever))
        except mpsched.errors.TaskTimeout as error:
            print("limit:", error)
    ticker.cancel()
    print("the loop kept ticking:", ticks[0] > 10)


if __name__ == "__main__":
    asyncio.run(main())
