"""`parallel.sort`: a shared array in place, anything else into something new.

An array is sorted by a quicksort whose every step all workers take part in (P. Tsigas and Y. Zhang, "A simple,
fast parallel implementation of Quicksort", 2003), but that each part is cut by rank, not by a pivot:

1. The array is to be cut into a low and a high side, of so many values as there are workers for it. From
   a sample, estimate how many of the low values lie in each of as many chunks as there are workers.
2. In each chunk bring that many of its least values to one end (`ndarray.partition`).
3. Now as many high values lie left of the cut as low ones lie right of it. Exchange them, segment by
   segment.
4. Sort both sides at the same time: with more than one worker again like this.
5. The estimate was off by a little: the last values of the low side may belong behind the first ones of
   the high side. What overlaps is sorted once more.

Every step is a loop in C over memory that all workers share, and nothing is copied. However wrong the
estimate is, step 5 makes the result right; it decides the time alone. Cutting by a pivot's value instead
needs no step 5, but a look at all values to count the low ones, which takes as long as half of step 2.

Types that NumPy neither sorts nor partitions by vector instructions (text, complex and long numbers,
records) are sorted in parts, which are then merged: by the stable sort, which finds the runs. It takes an eighth
of what sorting takes there. For numbers of a machine word it takes 8 ns a value where their sort takes 8 ns
a value, too, and a merge by `searchsorted` 25; steps 1 to 3 take 2.
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

_LEAST: Final = 1 << 18
"""Numbers of an array that are worth a child. Smaller: what steals cost is more than what they save."""

_LEAST_SPLIT: Final = 1 << 20
"""Numbers of an array that are worth a child which brings low ones to one end."""

_LEAST_MERGED: Final = 1 << 14
"""Values of other types that are worth a child."""

_LEAST_LISTED: Final = 1 << 12
"""The same for a list, whose items are pickled there and back."""

_SAMPLED_RUNS: Final = 64
_SAMPLED_RUN: Final = 64
"""A sample has so many runs of so many values: few places, for each may be a page of memory to open."""

_NUMBERS: Final = "biufmM"  # kinds that are cut by rank, up to a machine word each

_STRIDE: Final = 0.6180339887498949
"""Of the size, from one run of a sample to the next: the golden ratio, which no rhythm of values has."""

_CHANCE: Final = 1.5
"""Chunks whose samples differ by less than three standard deviations, which are at most so much divided by
the root of the sample's size, are taken for equal: then the estimate is off by a thousandth, not a hundredth."""

_PIECE: Final = 1 << 19
"""Values to exchange that are worth a child: it takes a millisecond to exchange them."""

_CACHED: Final = 1 << 13  # values exchanged at once, so that they are still in the cache


def sort(items: Any, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> Any:
    """Sort on all workers; where, is said at `for_each`. An array of numbers by a parallel quicksort.

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
    kind = array.dtype
    if kind.kind in _NUMBERS and kind.itemsize <= 8:
        _sort(array, long.width())
    else:
        _merge_sort(array, long.width())


def _merge_sort(array: NDArray[Any], parts: int) -> None:
    """Sort an array, as many workers as `parts` at it; then one alone merges."""
    parts = min(parts, len(array) // _LEAST_MERGED)
    if parts < 2:
        array.sort()
        return
    _in_two(_merge_sort, array, _middle(array, parts), parts)
    array.sort(kind="stable")


def _sort(array: NDArray[Any], parts: int) -> None:
    """Sort an array, as many workers as `parts` at it."""
    parts = min(parts, len(array) // _LEAST)
    if parts < 2:
        array.sort()
        return
    low = _middle(array, parts)
    _split(array, low, max(min(parts, len(array) // _LEAST_SPLIT), 1))
    _in_two(_sort, array, low, parts)
    _mend(array, low)


def _middle(array: NDArray[Any], parts: int) -> int:
    """Return where an array is cut, so that each of `parts` workers has as much."""
    return len(array) * (parts // 2) // parts


def _in_two(
    sort: Callable[[NDArray[Any], int], None], array: NDArray[Any], middle: int, parts: int
) -> None:
    """Sort both sides of `middle`, the first one here: a part of it this worker has just had in its hands."""
    with Scope() as scope:
        scope.spawn(sort, array[middle:], parts - parts // 2)
        sort(array[:middle], parts // 2)


def _split(array: NDArray[Any], low: int, chunks: int) -> None:
    """Bring the `low` least values, or nearly those, to the front."""
    size = len(array)
    places = list(pairwise(size * number // chunks for number in range(chunks + 1)))
    ranks, bits = _estimate([array[start:end] for start, end in places], low)
    with Scope() as scope:
        for (start, end), rank in zip(places[1:], ranks[1:], strict=True):
            scope.spawn(_split_chunk, array[start:end], rank, bits)
        _split_chunk(array[: places[0][1]], ranks[0], bits)
    if chunks == 1:
        return
    # Segments of high values that lie left of the cut, and of low ones that lie right of it.
    highs, lows = [], []
    for (start, end), rank in zip(places, ranks, strict=True):
        if _is_flipped(bits):
            border = end - rank
            highs.append((start, min(border, low)))
            lows.append((max(border, low), end))
        else:
            border = start + rank
            highs.append((border, min(end, low)))
            lows.append((max(start, low), border))
    # So short that each worker gets some, if there is enough.
    most = max(-(-sum(end - start for start, end in highs if end > start) // chunks), _PIECE)
    pairs = _pairs(highs, lows, most)
    with Scope() as scope:
        for pair in pairs[1:]:
            scope.spawn(_exchange, *_segments(array, *pair))
        if pairs:
            _exchange(*_segments(array, *pairs[0]))


def _estimate(chunks: list[NDArray[Any]], low: int) -> tuple[list[int], str]:
    """Estimate from samples how many of the `low` least values of all chunks lie in each.

    Returns:
        The numbers, `low` in sum; and by which bits to partition (`_bits`).
    """
    import numpy as np

    count = max(_SAMPLED_RUNS // len(chunks), 1)
    # Always the same places, so that a failure happens again.
    places = np.arange(count)[:, None], np.arange(_SAMPLED_RUN)
    samples = []
    for chunk in chunks:
        values = np.asarray(chunk)
        firsts = places[0] * int(len(values) * _STRIDE) % (len(values) - _SAMPLED_RUN)
        sample = values[(firsts + places[1]).ravel()]
        sample.sort()
        samples.append(sample)
    whole = np.concatenate(samples)
    whole.sort()
    share = low / sum(map(len, chunks))
    wanted = share * len(whole)
    middle = int(wanted)
    # Of values that equal the one at the cut each chunk has the same share below it.
    below = [int(sample.searchsorted(whole[middle], "left")) for sample in samples]
    upto = [int(sample.searchsorted(whole[middle], "right")) for sample in samples]
    equal = (wanted - sum(below)) / (sum(upto) - sum(below))
    each = len(samples[0])
    shares = [(b + (u - b) * equal) / each for b, u in zip(below, upto, strict=True)]
    if all(abs(one - share) <= _CHANCE / each**0.5 for one in shares):
        shares = [share] * len(chunks)
    ranks = _ranks(shares, [len(chunk) for chunk in chunks], low)
    near = len(whole) // 8
    return ranks, _bits(whole[max(middle - near, 0)], whole[min(middle + near, len(whole) - 1)])


def _ranks(shares: list[float], sizes: list[int], total: int) -> list[int]:
    """Return whole numbers near to shares of sizes; their sum is `total`, and none exceeds its size."""
    ranks = []
    exact, left, rest = 0.0, total, sum(sizes)
    for share, size in zip(shares, sizes, strict=True):
        rest -= size
        exact += share * size
        rank = max(min(round(exact) - (total - left), left, size), left - rest)
        ranks.append(rank)
        left -= rank
    return ranks


def _bits(one: Any, other: Any) -> str:
    """Return the type of integers by which values between two others can be partitioned; "" if by none.

    The bits of floats order like integers, and NumPy partitions those in half the time. The order of those
    below zero is the other way round; so the values at the cut have to have one sign. Times are integers,
    and NumPy partitions them as such in a hundredth of the time.
    """
    import numpy as np

    kind = one.dtype
    if kind.kind not in "fmM" or not kind.isnative:
        return ""
    if kind.kind != "f":
        return "i8"
    if np.signbit(one) != np.signbit(other):
        return ""
    return f"{'u' if np.signbit(one) else 'i'}{kind.itemsize}"


def _is_flipped(bits: str) -> bool:
    """Whether low values are those with the higher bits."""
    return bits[:1] == "u"


def _split_chunk(chunk: NDArray[Any], rank: int, bits: str) -> None:
    """Bring the `rank` least values of a chunk to its front; by flipped bits, to its end."""
    import numpy as np

    keys = np.asarray(chunk)
    if bits:
        keys = keys.view(bits)
    at = len(keys) - rank if _is_flipped(bits) else rank
    if 0 < at < len(keys):
        keys.partition(at)


def _mend(array: NDArray[Any], low: int) -> None:
    """Make one sorted array of two, which overlap a little."""
    last = array[low - 1]
    if last != last:  # noqa: PLR0124 - so it is NaN or NaT
        low = _move_nan(array, low)
    if low and not array[low - 1] <= array[low]:
        start = int(array[:low].searchsorted(array[low], "right"))
        end = low + int(array[low:].searchsorted(array[low - 1], "left"))
        array[start:end].sort()


def _move_nan(array: NDArray[Any], low: int) -> int:
    """Move NaN and NaT to the end: some are low by their bits. Return how many values stay low."""
    first = int(array[:low].searchsorted(array[low - 1]))
    strays = array[first:low].copy()
    array[first : len(array) - len(strays)] = array[low:]  # NumPy sees that they overlap
    array[len(array) - len(strays) :] = strays
    return first


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
    import numpy as np

    ones, others = np.asarray(one), np.asarray(other)
    # One hand for all: to make a large one each time costs as much as to fill it.
    hand = np.empty(min(_CACHED, len(ones)), ones.dtype)
    for start in range(0, len(ones), _CACHED):
        left, right = ones[start : start + _CACHED], others[start : start + _CACHED]
        kept = hand[: len(left)]
        kept[:] = left
        left[:] = right
        right[:] = kept


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
