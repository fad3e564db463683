"""Recursive code gives the same results and errors wherever it runs.

Without a pool, with `max_workers=0`, on 1, 2 and 4 workers, called in the main program inside the block
of a pool, and in the pool of `mpsched.testing` under several seeds.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mpsched
from mpsched import WorkStealingExecutor
from mpsched.errors import ArgumentChanged
from mpsched.testing import ForkPool
from tests.contract.conftest import settle
from tests.support import fork_calls as calls
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Where = Callable[..., Any]

HANG_S = 60.0
PLACES = ("no pool", "serial", "1 worker", "2 workers", "4 workers", "open pool", "test pool")
ORDERS = ("fifo", "lifo", "random")


@pytest.fixture(scope="module", params=PLACES)
def shared_where(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Where, WorkStealingExecutor | None]]:
    """A way to run a call; the pools live as long as the module's tests."""
    place: str = request.param
    if place == "no pool":
        yield (lambda fn, *args, **kwargs: fn(*args, **kwargs)), None
    elif place == "test pool":
        seeds = iter(range(10**6))
        yield (lambda fn, *args, **kwargs: ForkPool(next(seeds)).run(fn, *args, **kwargs)), None
    else:
        workers = {"serial": 0, "open pool": 2}.get(
            place, int(place[0]) if place[0].isdigit() else 0
        )
        with WorkStealingExecutor(workers) as ex:
            if workers:
                settle(ex)
            if place == "open pool":
                yield (lambda fn, *args, **kwargs: fn(*args, **kwargs)), ex
            else:
                yield (
                    (lambda fn, *args, **kwargs: ex.submit(fn, *args, **kwargs).result(HANG_S)),
                    ex if workers else None,
                )


@pytest.fixture
def where(shared_where: tuple[Where, WorkStealingExecutor | None]) -> Iterator[Where]:
    """A way to run a call; the test must leave the pool working, with nothing open."""
    run, pool = shared_where
    yield run
    if pool is not None:
        settle(pool)


def test_fork_recursion_gives_what_the_plain_one_does(where: Where) -> None:
    """A child for every call."""
    assert where(calls.fib, 15) == 610


@pytest.mark.parametrize("order", ORDERS)
def test_fork_joins_in_any_order(where: Where, order: str) -> None:
    """First to last, last to first, at random."""
    assert where(calls.joined_in_order, 50, order) == [n * n for n in range(50)]


@pytest.mark.parametrize("order", ["fifo", "lifo", "middle"])
def test_fork_joins_in_any_order_at_every_level(where: Where, order: str) -> None:
    """Three children each, five levels."""
    assert where(calls.tree, 5, order) == 3**5


def test_fork_takes_calls_of_every_form(where: Where) -> None:
    """No arguments, some, keywords, lambdas."""
    assert where(calls.calls_of_every_form) == [(), 9, 7, 8, 9, [3, 2, 1], 2]


def test_fork_join_again_gives_the_same(where: Where) -> None:
    """A value or an error, as often as it is asked for."""
    assert where(calls.joined_again) == (9, 9, True, ["twice", "twice"])


def test_fork_join_all_returns_values_in_order(where: Where) -> None:
    """Of calls given as tuples."""
    assert where(calls.all_of, 1, 2, 3) == (1, 4, 9, 3)


def test_fork_error_is_raised_at_the_join(where: Where) -> None:
    """With the class and text that it had."""
    assert where(calls.outcome, calls.unjoined_in_child) == "returned"
    with pytest.raises(ValueError, match="wanted"):
        where(calls.fail, "wanted")


def test_fork_unjoined_failures_fail_their_spawner(where: Where) -> None:
    """The first in spawn order is raised, whoever ran it when; the others are its siblings."""
    found = where(calls.outcome, calls.unjoined_in_child, "one", "two", "three")
    assert found == ("ValueError", "one", ["two", "three"])


def test_fork_unjoined_failure_comes_after_the_tasks_own(where: Where) -> None:
    """What the function raised is raised."""
    with pytest.raises(KeyError, match="own") as caught:
        where(calls.unjoined_in_child_own)
    assert [str(one) for one in caught.value.siblings] == ["one"]  # type: ignore[attr-defined]


def test_fork_unjoined_children_are_finished_with_their_root(where: Where) -> None:
    """Nobody joins them, and all have run, each once, when the result is there."""
    table = mpsched.shared_array(40, "u1")
    where(calls.in_child, calls.unjoined_write, table)
    assert table.tolist() == [1] * 40


def test_fork_scope_gives_results_after_it(where: Where) -> None:
    """Every handle has its value once the block is left."""
    assert where(calls.scoped, 1, 2, 3, 4) == [1, 4, 9, 16]


def test_fork_scope_raises_the_first_failure(where: Where) -> None:
    """In spawn order, and of its class; a group only if one was asked for."""
    assert where(calls.outcome, calls.scope_of_failures) == "no error"
    assert where(calls.outcome, calls.scope_of_failures, "only") == ("ValueError", "only", [])
    with pytest.raises(ExceptionGroup) as caught:
        where(calls.scope_of_failures, "only", group=True)
    assert [str(one) for one in caught.value.exceptions] == ["only"]


def test_fork_scope_whose_body_fails_raises_that(where: Where) -> None:
    """Its children are waited for."""
    with pytest.raises(KeyError, match="body"):
        where(calls.scope_whose_body_fails)


def test_fork_by_value_quicksort_sorts(where: Where) -> None:
    """What returns its results needs no shared memory."""
    values = random.Random(1).sample(range(10_000), 2_000)
    assert where(calls.sort_by_value, values) == sorted(values)


def test_fork_resumable_recursion_gives_what_the_plain_one_does(where: Where) -> None:
    """Where there is no worker each child runs at its spawn, nested as any other."""
    assert where(calls.chain, 300) == 300


def test_fork_resumable_errors_pass_through_all_that_wait(where: Where) -> None:
    """As through nested calls; who catches one goes on."""
    assert where(calls.outcome, calls.failing_chain, 50, 0) == ("ValueError", "the end", [])
    assert where(calls.failing_chain, 50, 20) == "caught at 20"


@pytest.mark.parametrize("workers", [None, 0, 1, 2])
def test_fork_blocking_changes_no_result(workers: int | None) -> None:
    """Around children, in children, nested; pools of their own, because spares come and go."""
    if workers is None:
        # In a program of its own: here a pool that the module's tests share may be open.
        result = run_script(
            "from tests.support import fork_calls\nprint(fork_calls.blocking_tree(3))"
        )
        assert (result.rc, result.err, result.out) == (0, "", "8\n")
        return
    with WorkStealingExecutor(workers) as ex:
        assert ex.submit(calls.blocking_tree, 3).result(HANG_S) == 8


def test_fork_run_blocking_calls_in_threads(default_pool: WorkStealingExecutor) -> None:
    """Of the worker, or of the program where there is no pool; the futures have the results."""
    squares = [n * n for n in range(20)]
    assert default_pool.submit(calls.waits_in_threads, 20).result(HANG_S) == squares
    result = run_script(
        "from tests.support import fork_calls\nprint(fork_calls.waits_in_threads(20))"
    )
    assert (result.rc, result.err, result.out) == (0, "", f"{squares}\n")


@pytest.mark.parametrize("order", ["fifo", "lifo", "scope"])
def test_fork_tree_is_counted_exactly_once(where: Where, order: str) -> None:
    """A run table with one byte for each node, and the count, say that each ran once."""
    nodes = calls.root(42, 3)
    keys = mpsched.shared_copy(np.array(calls.uts_keys(nodes), dtype="u8"))
    table = mpsched.shared_array(len(keys), "u1")
    assert where(calls.uts_all, 3, order, keys, table) == len(keys)
    assert table.tolist() == [1] * len(keys)


@pytest.mark.parametrize(
    ("size", "grain"), [(1, None), (7, None), (1000, None), (1000, 64), (5, 9)]
)
def test_fork_loops_give_what_plain_loops_do(where: Where, size: int, grain: int | None) -> None:
    """Over ranges, lists, dicts, generators; results in order, with associative functions."""
    assert where(calls.loops, size, grain) == calls.loops_plain(size)


def test_fork_loops_take_nothing(where: Where) -> None:
    """No items: the initial value, an empty list, or a TypeError where there is no answer."""
    parallel = mpsched.parallel
    assert where(parallel.map, calls.square, []) == []
    assert where(parallel.for_each, calls.square, []) is None
    assert where(parallel.reduce, calls.add, [], initial=3) == 3
    with pytest.raises(TypeError, match="initial"):
        where(parallel.reduce, calls.add, [])
    with pytest.raises(ValueError, match="grain"):
        where(parallel.map, calls.square, [1], grain=0)


def test_fork_loop_raises_the_failure_with_the_lowest_index(where: Where) -> None:
    """And says which item it was."""
    with pytest.raises(ValueError, match="item 30") as caught:
        where(calls.failing_map, 100, (30,))
    assert any("index 30 of parallel.map" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_fork_sort_of_a_list_is_the_built_in_one(where: Where, size: int) -> None:
    """A new list; stable, with key and reverse."""
    values = random.Random(size).choices(range(1000), k=size)
    before = values[:]
    assert where(mpsched.parallel.sort, values) == sorted(values)
    down = where(mpsched.parallel.sort, values, key=calls.last_digit, reverse=True)
    assert down == sorted(values, key=calls.last_digit, reverse=True)
    assert values == before


@pytest.mark.parametrize("kind", ["f8", "i4", "i2", "U5"])
def test_fork_sort_of_a_shared_array_is_in_place(where: Where, kind: str) -> None:
    """Whatever is in it: few values, NaN, order, none at all."""
    rng = np.random.default_rng(1)
    # So many are brought to their sides by several workers; text is merged.
    values = rng.integers(-1000, 1000, 40_000 if kind == "U5" else 2_200_000).astype(kind)
    if kind == "f8":
        values[rng.integers(0, len(values), 1000)] = np.nan
    for sample in (values, np.sort(values)[::-1], values[:0], np.zeros_like(values)):
        array = mpsched.shared_copy(sample)
        where(mpsched.parallel.sort, array)
        assert np.array_equal(array, np.sort(sample), equal_nan=kind == "f8")


def test_fork_in_place_sort_of_a_list_is_never_silently_wrong() -> None:
    """Whoever steals a part of it: sorted, or an error or a warning that says what was lost."""
    values = random.Random(3).sample(range(10_000), 300)
    told: set[str] = set()
    for seed in range(30):
        try:
            found = ForkPool(seed).run(calls.sort_in_place, values[:])
        except ArgumentChanged as error:
            told.add(str(error))
        else:
            assert found == sorted(values)
    (text,) = told
    assert text.startswith("sort_in_place changed its argument `values`; the change is lost")


def test_fork_resumable_recursion_needs_no_stack_in_a_worker(
    default_pool: WorkStealingExecutor,
) -> None:
    """A hundred thousand nested, which no stack would hold."""
    assert default_pool.submit(calls.chain, 100_000).result(HANG_S) == 100_000


def test_fork_test_pool_repeats_its_schedule() -> None:
    """The same seed steals the same children; 0 steals none, 1 all that can be sent."""

    def stolen(seed: int, **options: float) -> tuple[int, int]:
        pool = ForkPool(seed, **options)
        assert pool.run(calls.fib, 10) == 55
        return pool.stolen, pool.spawned

    assert stolen(5) == stolen(5)
    assert len({stolen(seed) for seed in range(20)}) > 1
    assert stolen(0, steals=0)[0] == 0
    assert stolen(0, steals=1)[0] > 20
    with pytest.raises(ValueError, match="probability"):
        ForkPool(steals=2)
