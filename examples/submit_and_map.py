"""Submit one call, map many, and collect results as they come.

Prints 6 (one call), the squares of 0 to 9 (in the order of the inputs), the same as they were
finished (no order), a lambda's result, and the error of the one item that fails, with its place.
"""

from __future__ import annotations

from concurrent.futures import Future, as_completed
from typing import TYPE_CHECKING

import mpsched

if TYPE_CHECKING:
    from collections.abc import Iterable


def square(number: int) -> int:
    """Stand for any function that computes."""
    return number * number


def invert(number: int) -> float:
    """Fail for one of its inputs."""
    return 1 / number


def main() -> None:
    """Show the four forms that most programs need."""
    with mpsched.WorkStealingExecutor() as ex:
        print("one call:", ex.submit(sum, [1, 2, 3]).result())

        print("map, in order:", list(ex.map(square, range(10))))

        numbers: dict[Future[int], int] = {ex.submit(square, n): n for n in range(10)}
        finished = {numbers[future]: future.result() for future in as_completed(numbers)}
        print("as completed:", sorted(finished.items()) == [(n, n * n) for n in range(10)])

        offset = 100  # lambdas and closures travel by value
        print("a lambda:", ex.submit(lambda number: number + offset, 1).result())

        results: Iterable[float | BaseException]
        results = ex.map(invert, [4, 0, 5], return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                print("failed:", result, "|", *getattr(result, "__notes__", []))
            else:
                print("inverted:", result)


if __name__ == "__main__":
    main()
