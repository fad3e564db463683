"""Test what your own code does when a worker is killed or stopped at a bad moment.

Prints what a sum over many tasks gives while workers are killed just before they tell their results, with
retries and without, and that a worker that is stopped for a moment costs nothing but that moment.
"""

from __future__ import annotations

import mpsched
from mpsched.testing import Fault, FaultPlan


def square(number: int) -> int:
    """Stand for some work."""
    return number * number


def total(retries: int) -> tuple[int, int]:
    """Return the sum of what came back, and how many tasks did not: the code under test."""
    with mpsched.WorkStealingExecutor(2) as ex:
        view = ex.options(retries=retries)
        futures = [view.submit(square, number) for number in range(100)]
        done = [future.result() for future in futures if future.exception() is None]
    return sum(done), len(futures) - len(done)


def main() -> None:
    """Run it under three plans."""
    # In each worker process the 20th result is never told, three times in all.
    kills = Fault("result.made", "kill", hit=20, times=3)
    with FaultPlan(kills) as plan:
        _, lost = total(retries=0)
    print(f"without retries: {lost} of 100 lost, {len(plan.struck)} workers killed")

    with FaultPlan(kills) as plan:
        value, lost = total(retries=3)
    print(f"with retries: {lost} lost, the sum is {value}, {len(plan.struck)} workers killed")

    with FaultPlan(Fault("result.made", "stop", hit=20, seconds=0.2)) as plan:
        value, lost = total(retries=0)
    print(f"stopped and woken: {lost} lost, the sum is {value}")


if __name__ == "__main__":
    main()
