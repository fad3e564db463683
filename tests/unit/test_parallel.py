"""Loops and sorting where no pool is open; on workers they are in tests/contract."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import mpsched
from mpsched import parallel, sorting

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def square(n: int) -> int:
    return n * n


def test_parallel_runs_in_order_here() -> None:
    """Without a pool it is the plain loop, in this thread."""
    seen: list[int] = []
    parallel.for_each(seen.append, range(10))
    assert seen == list(range(10))


@pytest.mark.parametrize(
    "items",
    [range(5), [0, 1, 2, 3, 4], (0, 1, 2, 3, 4), deque(range(5)), dict.fromkeys(range(5)), iter(range(5)),
     bytes(range(5)), np.arange(5)],
    ids=lambda items: type(items).__name__,
)  # fmt: skip
def test_parallel_takes_every_iterable(items: Any) -> None:
    """What cannot be sliced is made a list."""
    assert [int(n) for n in parallel.map(square, items)] == [0, 1, 4, 9, 16]


def test_parallel_error_says_which_item() -> None:
    """As a note; the exception is the function's own."""

    def fail(n: int) -> None:
        if n == 7:
            raise KeyError(n)

    for loop in (parallel.for_each, parallel.map):
        with pytest.raises(KeyError) as caught:
            loop(fail, range(10))
        (note,) = caught.value.__notes__
        assert note.startswith(f"index 7 of parallel.{loop.__name__}(")


def test_parallel_stop_iteration_of_the_function_is_an_error() -> None:
    """It must not end the loop in silence, as it does in `list(map(f, items))`."""

    def stop(n: int) -> int:
        if n == 3:
            raise StopIteration(n)
        return n

    for loop in (parallel.for_each, parallel.map):
        with pytest.raises(StopIteration):
            loop(stop, range(10))


@pytest.mark.parametrize("grain", [0, -1])
def test_parallel_refuses_a_grain_below_one(grain: int) -> None:
    """With a message that has the value."""
    with pytest.raises(ValueError, match=str(grain)):
        parallel.for_each(square, range(3), grain=grain)


def test_parallel_refuses_what_cannot_be_called() -> None:
    """Also the combining function; whatever the items are."""
    with pytest.raises(TypeError, match="first argument"):
        parallel.map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="second argument"):
        parallel.map_reduce(square, 3, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        parallel.map(square, [1], grain="x")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 30)), st.booleans())
def test_sort_of_a_list_is_stable(values: list[int], reverse: bool) -> None:
    """As `sorted`, whatever the key."""
    pairs = list(enumerate(values))

    def key(pair: tuple[int, int]) -> int:
        return pair[1]

    assert parallel.sort(pairs, key=key, reverse=reverse) == sorted(pairs, key=key, reverse=reverse)


def test_sort_of_arrays() -> None:
    """A shared one in place, another one into a new one; nothing else."""
    values = np.random.default_rng(1).random(1000)
    before = values.copy()
    new = parallel.sort(values)
    assert np.array_equal(new, np.sort(values))
    assert np.array_equal(values, before)
    shared = mpsched.shared_copy(values)
    assert parallel.sort(shared) is shared
    assert np.array_equal(shared, new)
    part = mpsched.shared_copy(values)
    parallel.sort(part[100:200])
    assert np.array_equal(part[100:200], np.sort(values[100:200]))
    assert np.array_equal(part[:100], values[:100])
    with pytest.raises(ValueError, match="2"):
        parallel.sort(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="key"):
        parallel.sort(values, reverse=True)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(1, 30),
)
def test_sort_pairs_cover_both_sides_once(lengths: list[tuple[int, int]], most: int) -> None:
    """The segments that are exchanged: each place of both lists is in exactly one pair."""
    rng = random.Random(str(lengths))
    total = sum(length for length, _ in lengths)
    ones, others, at = [], [], 0
    for length, gap in lengths:
        ones.append((at, at + length))
        at += length + gap
    while total:
        length = rng.randint(1, total)
        others.append((at, at + length))
        at += length + rng.randint(0, 3)
        total -= length
    pairs = sorting._pairs(ones, others, most)
    assert all(0 < length <= most for _, _, length in pairs)
    for which, segments in ((0, ones), (1, others)):
        covered = sorted(
            place for pair in pairs for place in range(pair[which], pair[which] + pair[2])
        )
        assert covered == [place for start, end in segments for place in range(start, end)]


ORDERS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "random": lambda values: values,
    "sorted": np.sort,
    "reversed": lambda values: np.sort(values)[::-1],
    "equal": lambda values: np.full_like(values, values[0]),
    "few": lambda values: np.resize(values[:3], len(values)),
    "strided": lambda values: np.repeat(values, 2)[::2],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", ">f8", "g", "i1", "i2", "i8", "u1", "u8", "?", "U3", "S2", "M8[s]"]
)
def test_sort_with_several_parts_sorts(
    dtype: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of the parallel sort, with children that run here: above, around and below zero."""
    for name, size in {"_LEAST": 64, "_PIECE": 50, "_CACHED": 32, "_SAMPLED_RUNS": 8}.items():
        monkeypatch.setattr(sorting, name, size)
    rng = np.random.default_rng(1)
    for parts, middle in itertools.product((2, 3, 7), (-5000, 0, 5000)):
        drawn = rng.normal(middle, 1000, 1000).astype("i8")
        values = ORDERS[order](drawn % 2 == 0 if dtype == "?" else drawn.astype(dtype))
        array = values.copy() if order != "strided" else np.repeat(values, 2)[::2]
        sorting._sort(array, parts)
        assert array.tolist() == np.sort(values).tolist(), (parts, middle)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 1.0])
def test_sort_puts_every_nan_last(
    dtype: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NumPy does, whatever the sign of the NaN; zeros with either sign are equal."""
    monkeypatch.setattr(sorting, "_LEAST", 64)
    monkeypatch.setattr(sorting, "_SAMPLED_RUNS", 8)
    rng = np.random.default_rng(1)
    for parts, middle in itertools.product((2, 3, 7), (-3, 0, 3)):
        values = rng.normal(middle, 1, 1000).astype(dtype)
        values[rng.random(1000) < 0.2] = 0.0
        values[rng.random(1000) < 0.1] = -np.inf
        values[rng.random(1000) < share] = np.nan
        values = np.where(rng.random(1000) < 0.5, -values, values).astype(dtype)
        array = values.copy()
        sorting._sort(array, parts)
        assert np.array_equal(array, np.sort(values), equal_nan=True), (parts, middle)


def test_loops_in_loops_note_the_innermost_indices() -> None:
    """Each would note its own; thousands of notes were too much for the error to be sent."""

    def nested(depth: int) -> int:
        if not depth:
            raise KeyError(depth)
        return parallel.map(nested, [depth - 1])[0]

    with pytest.raises(KeyError) as caught:
        nested(50)
    assert len(caught.value.__notes__) == 20
    assert all(note.startswith("index 0 of parallel.map(") for note in caught.value.__notes__)
