"""A task whose children are of every kind, started together with others of its like."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import mpsched

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

CHILDREN = 24
HANG_S = 60.0
KINDS = ("short", "short", "long", "computing", "nested", "failing", "blocking")


def mark(table: Bytes, place: int) -> None:
    """Note that a child ran: each has a byte of its own."""
    table[place] += 1


def child(kind: str, table: Bytes, place: int) -> int:
    mark(table, place)
    if kind == "long":
        time.sleep(0.003)
    elif kind == "computing":
        return sum(range(20_000)) and place
    elif kind == "nested":
        left = mpsched.spawn(tree, 4)
        return (left.join() == 16) and place
    elif kind == "blocking":
        with mpsched.blocking():
            time.sleep(0.002)
    elif kind == "failing":
        raise ValueError(place)
    return place


def tree(depth: int) -> int:
    if depth == 0:
        return 1
    left = mpsched.spawn(tree, depth - 1)
    return tree(depth - 1) + left.join()


def task(seed: int, barrier: Bytes, index: int, table: Bytes) -> tuple[list[int], list[int]]:
    """Wait for the others, spawn, join in any order; return (places of good children, of failed ones)."""
    barrier[index] = 1
    until = time.monotonic() + HANG_S
    while not barrier.all():
        assert time.monotonic() < until, "the other tasks have not come"
        time.sleep(0.0002)
    rng = random.Random(f"{seed} {index}")
    kinds = [rng.choice(KINDS) for _ in range(CHILDREN)]
    handles: list[mpsched.Handle[Any]] = []
    for place, kind in enumerate(kinds):
        handles.append(mpsched.spawn(child, kind, table, index * CHILDREN + place))
        if rng.random() < 0.1:
            time.sleep(0.001)
    order = list(range(CHILDREN))
    how = rng.choice(["fifo", "lifo", "random"])
    if how == "lifo":
        order.reverse()
    elif how == "random":
        rng.shuffle(order)
    good, bad = [], []
    for place in order:
        try:
            good.append(handles[place].join())
        except ValueError as error:
            bad.append(error.args[0])
    expected = [index * CHILDREN + place for place in range(CHILDREN) if kinds[place] == "failing"]
    assert sorted(bad) == expected
    return good, bad
