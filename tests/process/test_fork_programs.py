"""Programs as users write them: what a pool makes of them is what the serial run does."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from tests.support.pools import DEADLINE_S, pool

if TYPE_CHECKING:
    from collections.abc import Callable


class LeafFailed(Exception):
    """What a leaf raises, or a node at its end; its argument is the path."""


def node(path: str, seed: int, depth: int) -> int:
    """Spawn children and join them, each node in one of several ways; seed and path choose all."""
    rng = random.Random(f"{seed} {path}")
    if depth == 0:
        if rng.random() < 0.1:
            time.sleep(0.0005)
        if rng.random() < 0.04:
            raise LeafFailed(path)
        return 1
    way = rng.choice(["lifo", "fifo", "shuffled", "left open", "caught", "inline"])
    paths = [path + chr(97 + i) for i in range(rng.randrange(1, 5))]
    here = [paths.pop(0)] if way == "inline" else []
    handles = [mpsched.spawn(node, one, seed, depth=depth - 1) for one in paths]
    total = sum(node(one, seed, depth - 1) for one in here)
    if way == "lifo":
        handles.reverse()
    elif way == "shuffled":
        rng.shuffle(handles)
    elif way == "left open":
        del handles[1:]
    for handle in handles:
        try:
            total += handle.join()
        except LeafFailed:
            if way != "caught":
                raise
            total += 1000
    if rng.random() < 0.03:
        raise LeafFailed(f"{path} at its end")
    return total


@mpsched.resumable
def suspended(path: str, seed: int, depth: int) -> Any:
    """As `node`, by generators that may wait for plain functions."""
    rng = random.Random(f"{seed} {path}")
    if depth == 0:
        if rng.random() < 0.04:
            raise LeafFailed(path)
        return 1
    function = rng.choice([suspended, node])
    handles = [
        mpsched.spawn(function, path + chr(97 + i), seed, depth - 1)
        for i in range(rng.randrange(1, 5))
    ]
    if rng.random() < 0.5:
        rng.shuffle(handles)
    caught = rng.random() < 0.2
    total = 0
    for handle in handles:
        try:
            total += yield handle
        except LeafFailed:
            if not caught:
                raise
            total += 1000
    return total


def grouped(path: str, seed: int, depth: int) -> int:
    """As `node`, by what cancels siblings of a failed child, or may."""
    rng = random.Random(f"{seed} {path}")
    if depth == 0:
        return node(path, seed, 0)
    paths = [path + chr(97 + i) for i in range(rng.randrange(1, 6))]
    child = partial(grouped, seed=seed, depth=depth - 1)
    way = rng.choice(["scope", "join_all", "map", "map_reduce"])
    if way == "scope":
        with mpsched.scope() as s:
            handles = [s.spawn(child, one) for one in paths]
        return sum(handle.result() for handle in handles)
    if way == "join_all":
        return sum(mpsched.join_all(*((child, one) for one in paths)))
    if way == "map":
        return sum(mpsched.parallel.map(child, paths))
    return int(mpsched.parallel.map_reduce(child, int.__add__, paths))


def outcome_of(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the value of a call, or its error with all that failed beside it."""
    try:
        return "value", call()
    except LeafFailed as error:
        siblings = getattr(error, "siblings", ())
        return "error", str(error), sorted(str(one) for one in siblings)


def serially(fn: Any, seed: int) -> tuple[Any, ...]:
    return outcome_of(lambda: mpsched.spawn(fn, "", seed, 4).join())


def elsewhere(ex: mpsched.WorkStealingExecutor, fn: Any, seed: int) -> tuple[Any, ...]:
    future = ex.submit(fn, "", seed, 4)
    return outcome_of(partial(future.result, timeout=DEADLINE_S))


@pytest.mark.parametrize("fn", [node, suspended])
@pytest.mark.parametrize("workers", [1, 3])
def test_fork_programs_fail_as_they_do_serially(workers: int, fn: Any) -> None:
    """Value, first error and all its siblings are the same, whoever ran which child."""
    expected = {seed: serially(fn, seed) for seed in range(60)}
    assert {one[0] for one in expected.values()} == {"value", "error"}
    assert any(one[0] == "error" and one[2] for one in expected.values())
    with pool(workers) as ex:
        got = {seed: elsewhere(ex, fn, seed) for seed in expected}
        assert got == expected


@pytest.mark.parametrize("workers", [1, 3])
def test_fork_programs_that_cancel_fail_with_the_same_error(workers: int) -> None:
    """Which failure is raised depends on no schedule, where others are prevented by it, too."""
    expected = {seed: serially(grouped, seed)[:2] for seed in range(60)}
    assert {one[0] for one in expected.values()} == {"value", "error"}
    with pool(workers) as ex:
        for _ in range(3):
            got = {seed: elsewhere(ex, grouped, seed)[:2] for seed in expected}
            assert got == expected
