"""Loops and sorting where no pool is open; on workers they are in tests/contract."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import mpsched
from mpsched import parallel


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
