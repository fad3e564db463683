"""Quicksort twice: by value, and in a shared array. What a child changes, and who sees it.

Prints whether each result is sorted. A list travels to a child as a copy, if another worker takes it:
so that version returns new lists. A shared array is the same memory everywhere: that version sorts
in place and returns nothing. Needs the extra `numpy`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

import mpsched

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRAIN = 5_000


def by_value(values: list[int]) -> list[int]:
    """Return the values sorted; the argument stays as it is."""
    if len(values) <= GRAIN:
        return sorted(values)
    pivot = values[len(values) // 2]
    small = mpsched.spawn(by_value, [v for v in values if v < pivot])
    large = by_value([v for v in values if v > pivot])
    return small.join() + [v for v in values if v == pivot] + large


def in_place(values: NDArray[np.int64]) -> None:
    """Sort a part of a shared array, where it lies."""
    if len(values) <= GRAIN:
        values.sort()
        return
    pivot = values[len(values) // 2]
    small, large = values[values < pivot], values[values > pivot]  # copies
    middle, end = len(small), len(values) - len(large)
    values[:middle], values[middle:end], values[end:] = small, pivot, large
    left = mpsched.spawn(in_place, values[:middle])  # a view: the child writes the same memory
    in_place(values[end:])
    left.join()


def main() -> None:
    """Sort the same numbers both ways, and with what the library has."""
    numbers = [random.randrange(1_000_000) for _ in range(100_000)]
    wanted = sorted(numbers)
    shared = mpsched.shared_copy(np.array(numbers))
    with mpsched.WorkStealingExecutor() as ex:
        print("by value:", ex.run(by_value, numbers) == wanted)
        ex.run(in_place, shared)
        print("in a shared array:", shared.tolist() == wanted)
        print("parallel.sort:", mpsched.parallel.sort(numbers) == wanted)


if __name__ == "__main__":
    main()
