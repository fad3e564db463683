"""Fibonacci numbers by plain recursion: what `spawn` and `join` look like, and what they cost.

Prints fib(25) three times, with the time: as a plain function, with a child for every call (121,393
of them) on all cores, and with small subproblems as plain calls, as real programs would do it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable

N = 25


def plain(n: int) -> int:
    """The function without a pool."""
    return n if n < 2 else plain(n - 1) + plain(n - 2)


def fib(n: int) -> int:
    """A child for each call; an idle worker takes the oldest, which are the largest."""
    if n < 2:
        return n
    first = mpsched.spawn(fib, n - 1)
    return fib(n - 2) + first.join()


def fib_with_grain(n: int) -> int:
    """The same, but what takes less than a millisecond is a plain call."""
    if n < 15:
        return plain(n)
    first = mpsched.spawn(fib_with_grain, n - 1)
    return fib_with_grain(n - 2) + first.join()


def timed(function: Callable[[int], int]) -> str:
    """Return the result, and the seconds that it took, as text."""
    begun = time.perf_counter()
    result = function(N)
    return f"{result} in {time.perf_counter() - begun:.3f} s"


def main() -> None:
    """Run the three."""
    with mpsched.WorkStealingExecutor() as ex:
        print("plain:           ", ex.run(timed, plain))
        print("a child per call:", ex.run(timed, fib))
        print("with a grain:    ", ex.run(timed, fib_with_grain))


if __name__ == "__main__":
    main()
