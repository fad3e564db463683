"""The pool whose schedule a seed decides; that it does what pools do is in tests/contract."""

from __future__ import annotations

import random
from typing import Any

import pytest

import mpsched
from mpsched.testing import ForkPool, forkpool

RAN: list[int] = []
"""What has run; a global, because children that are stolen get copies of all else."""


def note(number: int) -> int:
    RAN.append(number)
    return number


def same(value: Any) -> Any:
    return value


def flat(count: int, newest_first: bool) -> int:
    handles = [mpsched.spawn(same, number) for number in range(count)]
    if newest_first:
        handles.reverse()
    return sum(handle.join() for handle in handles)


@pytest.mark.parametrize("newest_first", [False, True])
def test_test_pool_takes_a_hundred_thousand_children(newest_first: bool) -> None:
    """Whoever leaves does not look through those that wait: else this would take minutes."""
    pool = ForkPool(1, steals=0.01)
    assert pool.run(flat, 100_000, newest_first) == sum(range(100_000))
    assert pool.spawned == 100_000
    assert 500 < pool.stolen < 100_000


@pytest.mark.parametrize("seed", range(5))
def test_waiting_children_leave_from_anywhere(seed: int) -> None:
    """As a list would do it; the oldest is the oldest, and every one can be drawn."""
    rng = random.Random(seed)
    pool = ForkPool()
    waiting = pool._waiting
    model: list[forkpool._Child] = []
    for _ in range(2000):
        if not model or rng.random() < 0.5:
            child = forkpool._Child(pool, same, (), {})
            waiting.append(child)
            model.append(child)
        else:
            child = model.pop(rng.choice((0, -1, rng.randrange(len(model)))))
            child._enter(forkpool._Phase.RUNNING)
        assert len(waiting) == len(model)
        assert len(waiting._children) <= max(2 * len(model), 1)
        if model:
            assert waiting.oldest() is model[0]
            assert waiting.any_of(rng) in model
    few = model[-3:]
    for child in model[:-3]:
        child._enter(forkpool._Phase.RUNNING)
    assert {waiting.any_of(rng) for _ in range(100)} == set(few)


class SpawnsWhenPickled:
    """Something that uses fork-join to be pickled."""

    def __reduce__(self) -> Any:
        mpsched.spawn(note, 1)
        mpsched.spawn(note, 2).join()
        return same, (7,)


def pass_on(seen: list[int], value: Any) -> int:
    handles = [mpsched.spawn(type, value) for _ in range(5)]
    seen.extend(handle.join() is int for handle in handles)
    return len(handles)


def test_test_pool_lets_children_be_spawned_in_pickling() -> None:
    """They are children of the task that runs, whatever the schedule."""
    pickled = 0
    for seed in range(50):
        RAN.clear()
        seen: list[int] = []
        pool = ForkPool(seed, steals=0.5)
        assert pool.run(pass_on, seen, SpawnsWhenPickled()) == 5
        assert RAN.count(1) == RAN.count(2) >= sum(seen)
        assert pool.spawned == 5 + len(RAN)
        pickled += len(RAN)
    assert pickled


class JoinsItself:
    """Something whose pickling joins the child that it is pickled for."""

    def __init__(self) -> None:
        self.handle: Any = None

    def __reduce__(self) -> Any:
        if self.handle is not None:
            self.handle.join()
        return same, (7,)


def note_three(_thing: object) -> int:
    return note(3)


def join_in_pickling() -> int:
    thing = JoinsItself()
    other = mpsched.spawn(same, 1)
    thing.handle = mpsched.spawn(note_three, thing)
    return int(other.join()) + int(thing.handle.join())


def test_test_pool_runs_a_child_once_that_is_joined_while_it_is_copied() -> None:
    """The join comes first; the thief finds nothing more to do."""
    for seed in range(50):
        RAN.clear()
        assert ForkPool(seed, steals=0.7).run(join_in_pickling) == 4
        assert RAN == [3]


class SpawnsAtItsEnd:
    """Something whose finalizer uses fork-join."""

    def __del__(self) -> None:
        mpsched.spawn(note, 1)


def drop_things() -> Any:
    for _ in range(3):
        mpsched.spawn(same, SpawnsAtItsEnd()).join()
    mpsched.spawn(same, SpawnsAtItsEnd())  # left open
    return SpawnsAtItsEnd()


def test_test_pool_runs_what_finalizers_spawn() -> None:
    """In a task they are its children; before or after the run they run at once."""
    for seed in range(50):
        RAN.clear()
        pool = ForkPool(seed, steals=0.0 if seed % 2 else 0.3)
        result = pool.run(drop_things)
        before = len(RAN)
        assert before >= pool.spawned - 4
        del result
        assert len(RAN) == before + 1 >= 5  # a copy that a thief got has a finalizer, too


def test_test_pool_runs_one_thing_at_a_time() -> None:
    """A pool that is used inside its own run would lose the run's children."""
    pool = ForkPool()
    with pytest.raises(RuntimeError, match="already"):
        pool.run(pool.run, same, 1)
    assert pool.run(same, 1) == 1
    assert pool.run(ForkPool(2).run, flat, 10, True) == 45
