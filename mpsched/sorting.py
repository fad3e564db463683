"""`parallel.sort`: a shared array in place, anything else into something new.

An array is sorted as quicksort does it, with all workers at each step:

1. Choose a pivot: the median of a sample.
2. In each of as many chunks as there are workers, bring what is below the pivot to the front.
3. Now as many high values lie left of the place where the low ones are to end as low ones lie right of
   it. Exchange them, segment by segment.
4. Go on with both sides at the same time, until there is a part for each worker; that one NumPy sorts.

Every step is a loop in C over memory that all workers share, and nothing is copied. Merging sorted
parts instead would cost as much again as sorting them: NumPy has no merge, only a sort that finds runs.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from mpsched import forkjoin
from mpsched._worker import hot, long
from mpsched._worker.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_LEAST: Final = 1 << 16
"""Values of an array that are worth a child. Smaller: more steals of less than a millisecond."""

_LEAST_LISTED: Final = 1 << 12
"""The same for a list, whose items are pickled there and back."""

_SAMPLE: Final = 1024  # values whose median is the pivot: off the middle by three per cent or so

_ORDERED: Final = "biufmMSU"  # kinds whose `<` agrees with the order that NumPy sorts by


def sort(items: Any, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> Any:
    """Sort on all workers; where, is said at `for_each`.

    Args:
        items: A `mpsched.shared_array` with one dimension is sorted in place; any other array with one
            dimension, and any iterable, stays as it is.
        key: As for `sorted`; not for arrays. It may be called twice for an item.
        reverse: As for `sorted`; not for arrays.

    Returns:
        The shared array itself; a new shared array with the values of another one; else a new list,
        sorted like `sorted` does it (equal items in their order; items may be copies).

    Raises:
        TypeError: `key` or `reverse` for an array.
        ValueError: An array with more dimensions.
    """
    if hasattr(items, "__array_interface__"):
        if key is not None or reverse:
            raise TypeError("an array is sorted by its values, ascending: no key and no reverse")
        return _sorted_array(items)
    return _sorted_list(items if isinstance(items, list) else list(items), key, reverse)


# --- arrays ---------------------------------------------------------------------------------------


def _sorted_array(array: Any) -> Any:
    from mpsched._shm.ndarray import SharedArray
    from mpsched.arrays import shared_copy

    if array.ndim != 1:
        raise ValueError(
            f"sort takes an array with one dimension, not with {array.ndim}; for its rows use "
            "parallel.for_each(numpy.ndarray.sort, array)"
        )
    if not isinstance(array, SharedArray) or array.block is None:
        array = shared_copy(array)
    if not hot.in_task():
        pool = forkjoin.open_pool()
        if pool is not None:
            forkjoin.run_in(pool, _sort_in_task, array)
            return array
    _sort_in_task(array)
    return array


def _sort_in_task(array: NDArray[Any]) -> None:
    _sort(array, long.width() if array.dtype.kind in _ORDERED else 1)


def _sort(array: NDArray[Any], parts: int) -> None:
    """Sort an array, as many workers as `parts` at it."""
    parts = min(parts, len(array) // _LEAST)
    low = _split(array, parts) if parts > 1 else 0
    if not low:
        array.sort()
        return
    below = min(max(round(parts * low / len(array)), 1), parts - 1)
    with Scope() as scope:
        scope.spawn(_sort, array[:low], below)
        _sort(array[low:], parts - below)


def _split(array: NDArray[Any], chunks: int) -> int:
    """Bring what is below a pivot to the front; return how many that are, 0 if all are equal or so."""
    import numpy as np

    size = len(array)
    # Always the same places, so that a failure happens again; not every n-th, which may be a rhythm.
    sample = array[np.random.default_rng(0).integers(0, size, _SAMPLE)]
    sample = np.sort(sample[sample == sample])  # noqa: PLR0124 - NaN is no pivot
    if not len(sample):
        return 0
    pivot = sample[len(sample) // 2]
    edges = [size * number // chunks for number in range(chunks + 1)]
    places = list(pairwise(edges))
    with Scope() as scope:
        tasks = [scope.spawn(_split_chunk, array[start:end], pivot) for start, end in places[1:]]
        first = _split_chunk(array[: edges[1]], pivot)
    lows = [first, *(task.result() for task in tasks)]
    low = sum(lows)
    # Segments of high values that lie left of `low`, and of low ones that lie right of it.
    high = [(start + n, min(end, low)) for (start, end), n in zip(places, lows, strict=True)]
    small = [(max(start, low), start + n) for (start, _), n in zip(places, lows, strict=True)]
    # So short that each worker gets some.
    most = -(-sum(end - start for start, end in high if end > start) // chunks)
    with Scope() as scope:
        for one, other, n in _pairs(high, small, most):
            scope.spawn(_exchange, array[one : one + n], array[other : other + n])
    return low


def _split_chunk(chunk: NDArray[Any], pivot: Any) -> int:
    """Bring what is below the pivot to the front of a chunk; return how many that are."""
    import numpy as np

    low = int(np.count_nonzero(chunk < pivot))
    if 0 < low < len(chunk):
        chunk.partition(low)
    return low


def _pairs(
    ones: list[tuple[int, int]], others: list[tuple[int, int]], most: int
) -> list[tuple[int, int, int]]:
    """Cut two lists of segments, which are as long in sum, into pairs (start, start, length).

    No pair is longer than `most`.
    """
    found = []
    left = [segment for segment in reversed(others) if segment[0] < segment[1]]
    for start, end in ones:
        while start < end:
            other, other_end = left.pop()
            length = min(end - start, other_end - other, most)
            found.append((start, other, length))
            start += length  # noqa: PLW2901 - the rest of the segment
            if other + length < other_end:
                left.append((other + length, other_end))
    return found


def _exchange(one: NDArray[Any], other: NDArray[Any]) -> None:
    kept = one.copy()
    one[...] = other
    other[...] = kept


# --- lists ----------------------------------------------------------------------------------------


def _sorted_list(items: list[Any], key: Callable[[Any], Any] | None, reverse: bool) -> list[Any]:
    from mpsched import parallel

    in_pool = hot.in_task() or forkjoin.open_pool() is not None
    if not in_pool or len(items) < 2 * _LEAST_LISTED:
        return sorted(items, key=key, reverse=reverse)
    count = min(len(items) // _LEAST_LISTED, 16)
    edges = [len(items) * number // count for number in range(count + 1)]
    slices = [items[start:end] for start, end in pairwise(edges)]
    found: list[Any] = []
    for run in parallel.map(partial(sorted, key=key, reverse=reverse), slices, grain=1):
        found += run
    # Sorted runs one after the other: the list's own sort finds them and merges.
    found.sort(key=key, reverse=reverse)
    return found
