"""The three ways to end a pool: let it finish, drop what waits, or set a limit.

Prints the state of the pool on its way (accepting, draining, terminated), what happens to a task
submitted too late, how many tasks were dropped by `cancel_futures`, and what `close` reports when
a task does not end in time.
"""

from __future__ import annotations

import time

import mpsched


def nap(seconds: float) -> float:
    """Stand for work."""
    time.sleep(seconds)
    return seconds


def main() -> None:
    """End three pools."""
    ex = mpsched.WorkStealingExecutor(2)
    futures = [ex.submit(nap, 0.05) for _ in range(20)]
    print("before:", ex.state)
    ex.shutdown(wait=False)  # everything accepted will still run
    print("after shutdown(wait=False):", ex.state)
    try:
        ex.submit(nap, 0.05)
    except mpsched.errors.SchedulerClosed as error:
        print("too late:", error)
    ex.await_termination()
    print(f"at the end: {ex.state}, {sum(future.done() for future in futures)} of 20 done")

    ex = mpsched.WorkStealingExecutor(2)
    futures = [ex.submit(nap, 0.05) for _ in range(200)]
    futures[0].result()
    ex.shutdown(cancel_futures=True)  # what has started ends, the rest never starts
    cancelled = sum(future.cancelled() for future in futures)
    print(f"cancel_futures: some were dropped: {0 < cancelled < 200}, state {ex.state}")

    ex = mpsched.WorkStealingExecutor(2)
    stuck = ex.submit(nap, 3600)
    while not stuck.running():
        time.sleep(0.01)
    report = ex.close(timeout=0.2, kill_after=0.2)
    print("close:", report)
    print("the stuck task:", type(stuck.exception()).__name__)


if __name__ == "__main__":
    main()
