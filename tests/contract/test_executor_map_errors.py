"""`map` when items fail, and its time-out."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import pytest

from mpsched.errors import DecodeError, EncodeError, ResultEncodeError
from tests.support import faults, tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from mpsched import WorkStealingExecutor
    from tests.support.gates import Gate

HANG_S = 60.0
EACH = [{}, {"retries": 1, "retry_on": KeyError}]
"""Options with which a map goes in pieces, and with which each item is a task of its own."""


@pytest.mark.parametrize("options", EACH, ids=["pieces", "tasks"])
def test_map_raises_the_first_failure_in_its_place(
    pool: WorkStealingExecutor, options: dict[str, Any]
) -> None:
    """What comes before it is delivered, whatever fails earlier in time behind it."""
    results = pool.options(**options).map(functools.partial(tasks.fail_if, 7), range(100))
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(ValueError, match="bad value 7"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


def test_map_cancels_what_has_not_started_after_a_failure(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """The rest of a long input does not run for nobody."""
    with pytest.raises(ValueError, match="bad value 0"):
        list(pool.map(functools.partial(fail_zero, gate), range(1000), chunksize=1))
    gate.open()
    wait_until(lambda: not pool.stats().inflight and not pool.stats().ready, "an idle pool")
    assert len(gate.arrivals()) < 500


def fail_zero(gate: Gate, number: int) -> object:
    """Fail for zero; else note the number, and wait for the gate. In a worker."""
    if not number:
        raise ValueError("bad value 0")
    return gate.hold(number)


@pytest.mark.parametrize("options", EACH, ids=["pieces", "tasks"])
@pytest.mark.parametrize("ordered", [True, False])
def test_map_with_return_exceptions_goes_on(
    pool: WorkStealingExecutor, options: dict[str, Any], ordered: bool
) -> None:
    """Each failed item's exception stands in its place, an object of its own."""
    found: list[Any] = list(
        pool.options(**options).map(
            tasks.fail_odd, range(300), return_exceptions=True, ordered=ordered
        )
    )
    errors = [one for one in found if not isinstance(one, int)]
    assert all(type(one) is ValueError for one in errors)
    assert len(errors) == 150
    assert len({id(one) for one in errors}) == 150
    assert sorted(one for one in found if isinstance(one, int)) == list(range(0, 300, 2))
    if ordered:
        for number, one in enumerate(found):
            assert str(one) == (f"{number} is odd" if number % 2 else str(number))


@pytest.mark.parametrize("options", EACH, ids=["pieces", "tasks"])
def test_map_errors_name_their_item(pool: WorkStealingExecutor, options: dict[str, Any]) -> None:
    """A note has the index and the arguments; the cause is the remote traceback."""
    found: list[Any] = list(
        pool.options(**options).map(tasks.fail_odd, range(20), return_exceptions=True)
    )
    for number in range(1, 20, 2):
        error = found[number]
        assert isinstance(error, ValueError)
        notes = "\n".join(error.__notes__)
        assert f"fail_odd({number})" in notes
        assert f"index {number}" in notes
        assert "in fail_odd" in str(error.__cause__)


def test_map_items_that_cannot_be_sent_fail_alone(pool: WorkStealingExecutor) -> None:
    """Their neighbours are not their victims, whatever the chunks."""
    items: list[Any] = list(range(40))
    for bad in (0, 1, 17, 39):
        items[bad] = faults.Bomb("pickle", "raise")
    for chunksize in (None, 1, 8, 100):
        found = list(pool.map(tasks.identity, items, return_exceptions=True, chunksize=chunksize))
        assert len(found) == 40
        for number, one in enumerate(found):
            if number in {0, 1, 17, 39}:
                assert isinstance(one, EncodeError)
            else:
                assert one == number


def test_map_items_that_cannot_be_unpickled_fail(pool: WorkStealingExecutor) -> None:
    """An item whose unpickling raises in the worker is an error of the map; the pool goes on."""
    items = [0, faults.Bomb("unpickle", "raise"), 2]
    found = list(pool.map(tasks.identity, items, return_exceptions=True, chunksize=1))
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], Exception)
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


def test_map_items_that_cannot_be_unpickled_spare_their_neighbours(
    pool: WorkStealingExecutor,
) -> None:
    """Also when they travel in the same piece."""
    items: list[Any] = [*range(20)]
    items[13] = faults.Bomb("unpickle", "raise")
    found = list(pool.map(tasks.identity, items, return_exceptions=True, chunksize=20))
    assert [one for n, one in enumerate(found) if n != 13] == [n for n in range(20) if n != 13]
    assert isinstance(found[13], Exception)


def test_map_function_that_cannot_be_unpickled_fails_every_item(
    pool: WorkStealingExecutor,
) -> None:
    """There is nothing to run them with; but the map ends."""
    fn = functools.partial(tasks.everything, faults.Bomb("unpickle", "raise"))
    for chunksize in (None, 1, 7):
        found = list(pool.map(fn, range(20), return_exceptions=True, chunksize=chunksize))
        assert len(found) == 20
        assert all(isinstance(one, DecodeError) for one in found)
    with pytest.raises(DecodeError):
        next(pool.map(fn, range(20)))
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


def test_map_function_that_cannot_be_pickled_fails_at_the_call(
    pool: WorkStealingExecutor,
) -> None:
    """No item could ever run."""
    with pytest.raises(EncodeError):
        pool.map(functools.partial(tasks.add, faults.Bomb("pickle", "raise")), range(20))
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


def test_map_results_that_cannot_be_sent_fail_alone(pool: WorkStealingExecutor) -> None:
    """Their neighbours arrive."""
    for how in ("pickle", "unpickle"):
        make = functools.partial(bomb_if, {3, 4, 11}, how)
        for chunksize in (None, 1, 20):
            found = list(pool.map(make, range(20), return_exceptions=True, chunksize=chunksize))
            for number, one in enumerate(found):
                if number in {3, 4, 11}:
                    assert isinstance(one, ResultEncodeError)
                else:
                    assert one == number


def bomb_if(bad: set[int], when: str, number: int) -> Any:
    """Return a bomb for bad numbers. In a worker."""
    return faults.Bomb(when, "raise") if number in bad else number


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_map_keeps_exceptions_of_unusual_kinds(
    default_pool: WorkStealingExecutor, kind: type[BaseException]
) -> None:
    """Also those that would end a loop or a process."""
    found: list[Any] = list(
        default_pool.map(
            functools.partial(faults.raise_if, kind, 5), range(10), return_exceptions=True
        )
    )
    assert [one for n, one in enumerate(found) if n != 5] == [n for n in range(10) if n != 5]
    assert type(found[5]) is kind
    results = default_pool.map(functools.partial(faults.raise_if, kind, 5), range(10))
    assert [next(results) for _ in range(5)] == list(range(5))
    if kind is StopIteration:
        # As in any generator: a StopIteration inside would end it silently.
        with pytest.raises((RuntimeError, StopIteration)):
            next(results)
    else:
        with pytest.raises(kind):
            next(results)


@pytest.mark.parametrize("options", EACH, ids=["pieces", "tasks"])
@pytest.mark.parametrize("ordered", [True, False])
def test_map_timeout_counts_from_the_call(
    pool: WorkStealingExecutor, gate: Gate, options: dict[str, Any], ordered: bool
) -> None:
    """When it is over, iterating raises TimeoutError, and what has not started is cancelled."""
    results = pool.options(**options).map(
        gate.hold, range(100), timeout=0.2, ordered=ordered, chunksize=1
    )
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        next(results)
    gate.open()
    wait_until(lambda: not pool.stats().inflight and not pool.stats().ready, "an idle pool")
    assert len(gate.arrivals()) < 60


def test_map_timeout_is_not_raised_for_what_is_there(pool: WorkStealingExecutor) -> None:
    """A map that is done in time is given out, however late it is read."""
    results = pool.map(tasks.square, range(100), timeout=HANG_S)
    assert list(results) == [n * n for n in range(100)]


def test_map_errors_do_not_keep_the_map_alive(pool: WorkStealingExecutor) -> None:
    """No cycle from the exception to the frames of the iterator."""
    import weakref

    results: Any = pool.map(tasks.fail_odd, range(10))
    seen = weakref.ref(results)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="is odd"):
            list(results)
        del results
        wait_until(lambda: seen() is None, "the end of the map")
    finally:
        gc.enable()
