"""`parallel.sort`: a shared array in place, anything else into something new.

An array is sorted as quicksort does it, with all workers at each step:

1. Choose a pivot: the median of a sample.
2. In each of as many chunks as there are workers, bring what is below the pivot to the front.
3. Now as many high values lie left of the place where the low ones are to end as low ones lie right of
   it. Exchange them, segment by segment.
4. Go on with both sides at the same time, until there is a part for each worker; that one NumPy sorts.

Every step is a loop in C over memory that all workers share, and nothing is copied.

Merging sorted parts instead was measured: NumPy has no merge. Its stable sort finds the runs and merges
them, at 8 ns a value where its vector sort of a million values takes 8 ns a value too; a merge by
`searchsorted` takes 25. Steps 1 to 3 take 3.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

from mpsched import forkjoin
from mpsched._worker import hot, long
from mpsched._worker.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

_LEAST: Final = 1 << 16
"""Values of an array that are worth a child. Smaller: more steals of less than a millisecond."""

_LEAST_LISTED: Final = 1 << 12
"""The same for a list, whose items are pickled there and back."""

_SAMPLED_RUNS: Final = 256
_SAMPLED_RUN: Final = 16
"""The pivot is the median of so many runs of so many values: off the middle by one per cent or so."""

_ORDERED: Final = "biufmMSU"  # kinds whose `<` agrees with the order that NumPy sorts by

_STRIDE: Final = 0.6180339887498949
"""Of the size, from one value of a sample to the next: the golden ratio, which no rhythm of values has."""

_PIECE: Final = 1 << 19
"""Values to exchange that are worth a child: it takes half a millisecond to exchange them."""

_CACHED: Final = 1 << 15  # values exchanged at once, so that they are still in the cache


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
        # The low values lie here already, most of them where this worker has put them.
        scope.spawn(_sort, array[low:], parts - below)
        _sort(array[:low], below)
    _move_nan(array, low)


def _move_nan(array: NDArray[Any], low: int) -> None:
    """Move NaN to the end: those with a sign are low by their bits (`_Keys`)."""
    last = array[low - 1]
    if last == last:  # noqa: PLR0124 - so it is no NaN
        return
    first = int(array[:low].searchsorted(last))
    strays = array[first:low].copy()
    array[first : len(array) - len(strays)] = array[low:]  # NumPy sees that they overlap
    array[len(array) - len(strays) :] = strays


@final
class _Keys:
    """What tells low from high values: the values themselves, or their bits.

    The bits of floats order like integers, and NumPy needs half the time for those; the order of those
    below zero is the other way round.

    Attributes:
        flipped: Low values are those with the higher keys.
    """

    __slots__ = ("_bits", "_edge", "flipped")

    def __init__(self, pivot: Any, kind: np.dtype[Any]) -> None:
        """Tell by `pivot`, which is native, in arrays of the type `kind`."""
        self._bits = ""
        self._edge = pivot
        self.flipped = False
        if kind.kind == "f" and kind.isnative and kind.itemsize <= 8:
            self.flipped = bool(pivot < 0)
            self._bits = f"{'u' if self.flipped else 'i'}{kind.itemsize}"
            self._edge = (pivot + kind.type(0)).view(self._bits)  # the sum is never -0.0

    def split(self, chunk: NDArray[Any]) -> int:
        """Bring the low values of a chunk to its front, if `flipped` to its end; return their number."""
        import numpy as np

        keys = np.asarray(chunk)
        if self._bits:
            keys = keys.view(self._bits)
        size, left = len(keys), 0
        for start in range(0, size, _CACHED):
            part = keys[start : start + _CACHED]
            left += int(np.count_nonzero(part <= self._edge if self.flipped else part < self._edge))
        if 0 < left < size:
            keys.partition(left)
        return size - left if self.flipped else left


def _split(array: NDArray[Any], chunks: int) -> int:
    """Bring what is below a pivot to the front; return how many that are, 0 if all are equal or so."""
    pivot = _pivot(array)
    if pivot is None:
        return 0
    keys = _Keys(pivot, array.dtype)
    size = len(array)
    edges = [size * number // chunks for number in range(chunks + 1)]
    places = list(pairwise(edges))
    with Scope() as scope:
        tasks = [scope.spawn(_split_chunk, array[start:end], pivot) for start, end in places[1:]]
        first = _split_chunk(array[: edges[1]], pivot)
    lows = [first, *(task.result() for task in tasks)]
    low = sum(lows)
    found = list(zip(places, lows, strict=True))
    if keys.flipped:
        high = [(start, end - n) for (start, end), n in found]
        small = [(end - n, end) for (_, end), n in found]
    else:
        high = [(start + n, end) for (start, end), n in found]
        small = [(start, start + n) for (start, _), n in found]
    # Segments of high values that lie left of `low`, and of low ones that lie right of it.
    high = [(start, min(end, low)) for start, end in high]
    small = [(max(start, low), end) for start, end in small]
    # So short that each worker gets some, if there is enough.
    most = max(-(-sum(end - start for start, end in high if end > start) // chunks), _PIECE)
    pairs = _pairs(high, small, most)
    with Scope() as scope:
        for pair in pairs[1:]:
            scope.spawn(_exchange, *_segments(array, *pair))
        if pairs:  # a child that nobody shares is not worth the way to another worker
            _exchange(*_segments(array, *pairs[0]))
    return low


def _pivot(array: NDArray[Any]) -> Any:
    """Return the median of a sample, None if there is none (of NaN alone)."""
    import numpy as np

    # Always the same places, so that a failure happens again; a few runs of neighbours, because each
    # place is another page of memory to open. Not every n-th, which may be a rhythm.
    places = np.arange(_SAMPLED_RUNS) * int(len(array) * _STRIDE) % (len(array) - _SAMPLED_RUN)
    sample = array[(places[:, None] + np.arange(_SAMPLED_RUN)).ravel()]
    sample = np.sort(sample[sample == sample])  # noqa: PLR0124 - NaN is no pivot
    return sample[len(sample) // 2] if len(sample) else None


def _split_chunk(chunk: NDArray[Any], pivot: Any) -> int:
    """Bring what is below the pivot to one end of a chunk; return how many that are."""
    return _Keys(pivot, chunk.dtype).split(chunk)


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


def _segments(
    array: NDArray[Any], one: int, other: int, length: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    return array[one : one + length], array[other : other + length]


def _exchange(one: NDArray[Any], other: NDArray[Any]) -> None:
    for start in range(0, len(one), _CACHED):
        end = start + _CACHED
        kept = one[start:end].copy()
        one[start:end] = other[start:end]
        other[start:end] = kept


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
