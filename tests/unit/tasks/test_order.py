"""The order in which the parts of a bundle are loaded."""

from __future__ import annotations

import random

from mpsched._tasks.order import needed_first


def test_order_is_behind_what_is_needed() -> None:
    """In random graphs without cycles every part follows all that it needs."""
    for seed in range(50):
        rng = random.Random(seed)
        parts = list(range(30))
        rng.shuffle(parts)
        needs = {
            one: rng.sample(parts[:at], rng.randrange(min(at, 4) + 1))
            for at, one in enumerate(parts)
        }
        ordered = needed_first(rng.sample(parts, 30), needs)
        places = {one: at for at, one in enumerate(ordered)}
        assert len(ordered) == len(places) == 30, seed
        assert all(places[two] < places[one] for one in parts for two in needs[one]), seed


def test_order_of_parts_that_need_each_other() -> None:
    """Each comes once; the one that was met first comes last."""
    needs = {"a": ["b", "a"], "b": ["c"], "c": ["a"], "x": ["c"]}
    assert needed_first(["a", "x"], needs) == ["c", "b", "a", "x"]


def test_order_of_a_long_chain_needs_no_stack() -> None:
    """A hundred thousand functions that name each other one after the other."""
    needs = {n: [n + 1] for n in range(100_000)}
    assert needed_first([0], needs) == list(range(100_000, -1, -1))
