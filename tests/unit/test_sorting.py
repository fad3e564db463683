"""Sorting arrays: every step of it, with children that run here. On workers it is in tests/contract."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mpsched import sorting
from mpsched._worker import long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SMALL = {
    "_LEAST": 64, "_LEAST_SPLIT": 32, "_LEAST_MERGED": 32, "_PIECE": 50, "_CACHED": 32,
    "_SAMPLED_RUNS": 8, "_SAMPLED_RUN": 8,
}  # fmt: skip
"""Sizes with which a thousand values are enough for every step."""


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in SMALL.items():
            patch.setattr(sorting, name, size)
        yield


def sort(array: NDArray[Any], parts: int) -> None:
    """Sort as a worker would of a pool with `parts` workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long, "width", lambda: parts)
        sorting._sort_in_task(array)


def assert_sorts(values: NDArray[Any], parts: int) -> None:
    """It is what NumPy makes of it, byte by byte if no two equal values differ in their bits."""
    array, wanted = values.copy(), np.sort(values)
    sort(array, parts)
    if values.dtype.kind in "fc" and not np.all(abs(values) > 0):
        # NaN, and zeros with a sign: NumPy itself gives them other bits at times.
        assert np.array_equal(array, wanted, equal_nan=True)
    else:
        assert array.tobytes() == wanted.tobytes()


def organ_pipe(values: NDArray[Any]) -> NDArray[Any]:
    ordered = np.sort(values)
    return np.concatenate([ordered[::2], ordered[1::2][::-1]])


def sawtooth(values: NDArray[Any]) -> NDArray[Any]:
    ordered = np.sort(values)
    return np.concatenate([ordered[start::7] for start in range(7)])


ORDERS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "random": lambda values: values,
    "sorted": np.sort,
    "reversed": lambda values: np.sort(values)[::-1],
    "equal": lambda values: np.full_like(values, values[0]),
    "two": lambda values: np.resize(values[:2], len(values)),
    "few": lambda values: np.resize(values[:3], len(values)),
    "organ pipe": organ_pipe,
    "sawtooth": sawtooth,
    "sides exchanged": lambda values: np.roll(np.sort(values), len(values) // 2),
    "one high value first": lambda values: np.roll(np.sort(values), 1),
    "strided": lambda values: np.repeat(values, 2)[::2],
}
TYPES = [
    "f2", "f4", "f8", ">f8", "g", "c8", "i1", "i2", "i4", "i8", ">i8", "u1", "u8", "?", "U3", "S2", "M8[s]",
    ">M8[s]", "m8[s]", "i4,f8",
]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", TYPES)
def test_sort_with_several_parts_sorts(dtype: str, order: str) -> None:
    """Every type that can be shared, in every order: above, around and below zero."""
    rng = np.random.default_rng(1)
    for parts, middle in itertools.product((1, 2, 3, 7), (-5000, 0, 5000)):
        drawn = rng.normal(middle, 1000, 1000).astype("i8")
        kind = np.dtype(dtype)
        if kind.kind == "b":
            values: NDArray[Any] = drawn % 2 == 0
        elif kind.names:
            values = np.zeros(1000, kind)
            values["f0"], values["f1"] = drawn % 10, drawn
        else:
            values = drawn.astype(kind)
        values = ORDERS[order](values)
        array = values.copy() if order != "strided" else np.repeat(values, 2)[::2]
        sort(array, parts)
        assert array.tolist() == np.sort(values).tolist(), (parts, middle)


@pytest.mark.parametrize("size", [*range(20), *range(30, 200), 255, 256, 257, 447, 448, 449, 1023])
def test_sort_of_any_size_sorts(size: int) -> None:
    """Also where parts and chunks have just enough values, or one too few."""
    rng = np.random.default_rng(size)
    for parts in (2, 3, 4, 7):
        assert_sorts(rng.random(size), parts)
        assert_sorts(rng.integers(0, 5, size), parts)
        assert_sorts(rng.random(size) + 1j * rng.integers(0, 2, size), parts)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "g", "c16", "M8[s]", "m8[s]"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 1.0])
def test_sort_puts_every_nan_last(dtype: str, share: float) -> None:
    """As NumPy does, whatever the sign of the NaN; zeros with either sign are equal."""
    rng = np.random.default_rng(1)
    for parts, middle in itertools.product((2, 3, 7), (-3, 0, 3)):
        drawn = rng.normal(middle, 1, 1000)
        drawn[rng.random(1000) < 0.2] = 0.0
        missing = rng.random(1000) < share
        if dtype[0] in "mM":
            values = (drawn * 100).astype("i8").astype(dtype)
            values[missing] = "NaT"
        else:
            drawn[rng.random(1000) < 0.1] = -np.inf
            drawn[missing] = np.nan
            values = np.where(rng.random(1000) < 0.5, -drawn, drawn).astype(dtype)
        assert_sorts(values, parts)


FLOATS = st.one_of(
    st.floats(width=64),  # NaN and infinities among them
    st.sampled_from([0.0, -0.0, 1.0, -1.0, float("nan"), -float("nan"), float("inf")]),
)


@given(st.lists(FLOATS, max_size=400), st.integers(1, 5), st.integers(1, 4))
def test_sort_of_any_floats_sorts(some: list[float], repeated: int, parts: int) -> None:
    """Whatever hypothesis can think of."""
    assert_sorts(np.array(some * repeated, "f8"), parts)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=400), st.integers(1, 5), st.integers(1, 4)
)
def test_sort_of_any_integers_sorts(some: list[int], repeated: int, parts: int) -> None:
    """And of times, where the least integer is NaT."""
    values = np.array(some * repeated, "i8")
    assert_sorts(values, parts)
    assert_sorts(values.view("M8[ns]"), parts)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_sort_with_any_estimate_sorts(estimates: list[tuple[int, int]], cut: int) -> None:
    """However wrong the sample is, the result is right: what overlaps is sorted once more."""
    rng = random.Random(str(estimates))
    sizes = [size for _, size in estimates]
    low = cut * sum(sizes) // 1000
    if not 0 < low < sum(sizes):
        return
    ranks = sorting._ranks([share / 1000 for share, _ in estimates], sizes, low)
    assert sum(ranks) == low
    assert all(0 <= rank <= size for rank, size in zip(ranks, sizes, strict=True))
    array = np.array([rng.randrange(100) for _ in range(sum(sizes))])
    wanted = np.sort(array)
    array[:low].sort()
    array[low:].sort()
    sorting._mend(array, low)
    assert array.tolist() == wanted.tolist()


def test_sort_estimates_are_even_where_chance_is_the_reason() -> None:
    """For values in no order each chunk has its share; sorted ones lie in the first chunks alone."""
    values = np.random.default_rng(1).random(1000)
    for order, wanted in ((values, [200, 200]), (np.sort(values), [400, 0])):
        ranks, bits = sorting._estimate([order[:500], order[500:]], 400)
        assert ranks == wanted
        assert bits == "i8"
    assert sorting._estimate([-values], 400)[1] == "u8"
    assert sorting._estimate([values - 0.5], 500)[1] == ""


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
