"""Fork-join on real workers: values, errors, who ran what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched._base.settings import Settings
from mpsched._shm import layout as lay
from tests.support import forkcalls
from tests.support.pools import DEADLINE_S, pool, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PATIENT = Settings(park_first_s=DEADLINE_S, park_most_s=2 * DEADLINE_S)
"""So long that only a lost wake-up, and no slow machine, makes a rescue necessary."""


def run(ex: mpsched.WorkStealingExecutor, fn: Any, *args: Any) -> Any:
    return ex.submit(fn, *args).result(timeout=DEADLINE_S)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_fork_pool_fib_has_its_value(workers: int) -> None:
    """A recursion without a cut-off gives its value, however many workers there are."""
    with pool(workers, settings=PATIENT) as ex:
        for _ in range(5):
            assert run(ex, forkcalls.fib, 17) == 1597
        assert ex.stats().rescues == 0


def test_fork_pool_each_child_runs_once() -> None:
    """Ten thousand leaves, each marked once, with real steals."""
    leaves = 10_000
    table = mpsched.shared_array(leaves, "u1")
    with pool(4, settings=PATIENT) as ex:
        for _ in range(3):
            table[:] = 0
            assert run(ex, forkcalls.count_with_others, table, 0, leaves) == leaves
            assert (table == 1).all()
        stats = ex.stats()
        assert stats.child_steals > 0
        assert stats.children_run == stats.child_steals
        assert stats.rescues == 0


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_fork_pool_flat_children_are_shared_out(order: str, tmp_path: Path) -> None:
    """Children that wait for each other, four at a time, each find a worker: all four take part."""
    with pool(4) as ex:
        pids = run(ex, forkcalls.flat, 16, str(tmp_path / "log"), 4, order)
        assert [pids.count(pid) for pid in set(pids)] == [4] * 4, pids


@pytest.mark.parametrize("computes", [True, False], ids=["computes", "sleeps"])
def test_fork_pool_children_of_a_task_that_computes_or_sleeps_are_run_elsewhere(
    computes: bool,
) -> None:
    """A parent that spawns and then neither spawns nor joins is helped: its helper gives them away."""
    table = mpsched.shared_array(1, "i8")
    with pool(2) as ex:
        parent, pids = run(ex, forkcalls.busy_parent, 300, table, computes)
        assert pids - {parent}, "nobody helped"


def test_fork_pool_large_arguments_and_values_arrive() -> None:
    """What does not fit into an entry travels in memory files, both ways."""
    sizes = [0, 500, 1000, 5000, 100_000, 1_000_000, 3_000_000, 10]
    with pool(3) as ex:
        got, pids = run(ex, forkcalls.echoes, sizes)
        assert got == sizes
        assert len(pids) > 1


def test_fork_pool_errors_come_from_elsewhere_with_their_traceback() -> None:
    """A stolen child's error is raised at its join, each time the same object."""
    with pool(3) as ex:
        seen = run(ex, forkcalls.failures, 8)
        assert [text for text, _ in seen] == [str(i) for i in range(8)]
        assert any(remote for _, remote in seen)
        assert not all(remote for _, remote in seen)


def test_fork_pool_first_failure_in_spawn_order_wins_wherever_they_ran() -> None:
    """The order of the spawns, not the timing, says which failure is raised."""
    with pool(3) as ex:
        assert run(ex, forkcalls.failed_grandchildren, 5) == ("0", ["1", "2", "3", "4"])


def test_fork_pool_failures_that_nobody_joined_fail_the_task() -> None:
    """A root that leaves failing children open fails with the first of them."""
    with pool(2) as ex:
        with pytest.raises(ValueError, match="0") as caught:
            run(ex, forkcalls.careless, 3)
        assert [str(one) for one in caught.value.siblings] == ["1", "2"]  # type: ignore[attr-defined]
        assert run(ex, forkcalls.fib, 10) == 55


def test_fork_pool_items_of_a_map_may_fork() -> None:
    """Each item of a map finishes its own children; a failing one is that item's."""
    with pool(2) as ex:
        assert list(ex.map(forkcalls.fib, range(15))) == [forkcalls.fib(n) for n in range(15)]
        got = list(ex.map(forkcalls.careless, [0, 2, 0, 1], return_exceptions=True))
        assert [str(one) for one in got] == ["None", "0", "None", "0"]


def test_fork_pool_shared_arrays_that_children_make_arrive() -> None:
    """What a result refers to lives until its home has it, and its entry is free then."""
    with pool(3) as ex:
        for _ in range(3):
            assert run(ex, forkcalls.shared_results, 40) == (8 * sum(range(40)), 0)
        assert ex.stats().child_steals > 0


def test_fork_pool_thieves_keep_shared_arrays_for_further_children() -> None:
    """An array of many children is mapped once; who has no more of them lets it go."""
    # So patient that nobody gives up while home has more of them.
    patient = Settings(patience_s=2.5, park_first_s=2.5)
    with pool(3, settings=patient) as ex:
        array = mpsched.shared_array(100)
        kept = run(ex, forkcalls.blocks_kept_elsewhere, array, 10)
        assert max(kept) == 1, kept
        # The first child of a thief has loaded what keeps them.
        assert kept.count(0) <= 2, kept
        wait_until(
            lambda: {kept for _, kept in ex.map(forkcalls.blocks_kept, range(6))} == {0},
            "all have let it go",
        )


def test_fork_pool_functions_by_value_are_given_away() -> None:
    """Lambdas run elsewhere, with what they close over."""
    with pool(3) as ex:
        values, pids = run(ex, forkcalls.lambdas, 8)
        assert values == list(range(5, 13))
        assert len(pids) > 1


def test_fork_pool_what_cannot_be_pickled_runs_at_home() -> None:
    """Children with a lock stay where it is, and are counted."""
    with pool(3) as ex:
        ok, pids = run(ex, forkcalls.unpicklable, 12)
        assert ok
        assert len(pids) == 1
        assert ex.stats().pinned > 0


def test_fork_pool_what_cannot_be_pickled_pins_its_function_alone() -> None:
    """Calls of other functions are given away, though all have keywords."""
    with pool(3) as ex:
        assert len(run(ex, forkcalls.unpicklable_among_keywords, 40)) > 1
        assert 0 < ex.stats().pinned < 40


def test_fork_pool_changed_argument_is_warned_about_once() -> None:
    """A child that sorts its list elsewhere is told about, once, and where the change was lost."""
    with pool(3) as ex:
        _, warned, is_sorted = run(ex, forkcalls.sort_lists, 6, 4)
        assert not all(is_sorted), "nothing was stolen"
        assert len(warned) == 1
        assert "sort_in_place changed its argument `part`; the change is lost" in warned[0]
        assert ex.stats().changed > 0


def test_fork_pool_changed_large_argument_is_warned_about() -> None:
    """A list of 100,000 numbers that changes is noticed as well."""
    with pool(3) as ex:
        _, warned, is_sorted = run(ex, forkcalls.sort_lists, 6, 100_000)
        assert not all(is_sorted)
        assert len(warned) == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("object", "change changed its argument `value`"),
        ("array", "change changed its argument `value`"),
        ("method", "Account.add changed the object that it is a method of"),
        ("partial", "partial changed what it was made with"),
        ("closure", "<lambda> changed what it was made with"),
        ("shared", None),
    ],
)
def test_fork_pool_any_change_is_noticed(
    kind: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects, arrays, what a method, a partial or a closure brings along; not what is shared."""
    with pool(3) as ex:
        warned = run(ex, forkcalls.change_things, kind)
    if words is None:
        assert warned == []
    else:
        assert len(warned) == 1
        assert words in warned[0]
    monkeypatch.setenv("MPSCHED_DEBUG", "copy")
    with pool(1) as ex:
        if words is None:
            assert run(ex, forkcalls.change_things, kind, 0) == []
        else:
            with pytest.raises(mpsched.errors.ArgumentChanged):
                run(ex, forkcalls.change_things, kind, 0)


def test_fork_pool_arguments_that_stay_warn_nobody() -> None:
    """A child that only looks at its lists, sets and dicts is no cause for a warning."""
    with pool(3) as ex:
        assert run(ex, forkcalls.look_at_lists, 12) == []
        assert ex.stats().child_steals > 0
        assert ex.stats().changed == 0


def test_fork_pool_copies_make_a_change_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPSCHED_DEBUG=copy raises where an argument is changed, on one worker too."""
    monkeypatch.setenv("MPSCHED_DEBUG", "copy")
    with pool(1) as ex:
        with pytest.raises(mpsched.errors.ArgumentChanged, match="`part`"):
            run(ex, forkcalls.sort_lists, 2, 4, 0)
        assert run(ex, forkcalls.look_at_lists, 3, 0) == []
        assert run(ex, forkcalls.fib, 10) == 55


def test_fork_pool_every_child_runs_elsewhere_if_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPSCHED_DEBUG=steal gives each child away, so that what depends on it shows."""
    monkeypatch.setenv("MPSCHED_DEBUG", "steal")
    with pool(3) as ex:
        _, warned, is_sorted = run(ex, forkcalls.sort_lists, 4, 4, 4)
        assert len(warned) == 1
        assert not any(is_sorted), is_sorted
        assert run(ex, forkcalls.fib, 6) == 8
    with pool(1) as ex:
        assert run(ex, forkcalls.fib, 6) == 8


def test_fork_pool_stand_in_for_an_error_names_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root's number, whoever ran the child."""
    monkeypatch.setenv("MPSCHED_DEBUG", "steal")
    with pool(2) as ex:
        number, texts = run(ex, forkcalls.errors_elsewhere, 4)
        assert texts == {f"task {number} raised {forkcalls.__name__}.LockedError: locked"}


def test_fork_pool_unknown_debug_mode_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that there is not fails the task that spawns first, by name."""
    monkeypatch.setenv("MPSCHED_DEBUG", "stael")
    with pool(1) as ex, pytest.raises(ValueError, match="'stael'"):
        run(ex, forkcalls.fib, 6)


def test_fork_pool_ten_thousand_nested_joins_give_their_value() -> None:
    """A chain of 10,000 plain joins fits into a worker's stack."""
    with pool(1) as ex:
        assert run(ex, forkcalls.deep, 10_000) == 10_000
        assert run(ex, forkcalls.deep_by_keyword, 10_000) == 10_000


@pytest.mark.parametrize("nest", [forkcalls.deep, forkcalls.deep_together])
def test_fork_pool_a_million_nested_joins_are_an_error(nest: Callable[[int], int]) -> None:
    """What is nested too deep raises RecursionTooDeep, which names remedies; the worker lives on."""
    with pool(1) as ex:
        assert run(ex, forkcalls.fib, 5) == 5  # it has started
        before = [worker.pid for worker in ex.stats().workers]
        kind, text = run(ex, forkcalls.too_deep, 1_000_000, nest)
        assert kind == "RecursionTooDeep"
        assert "grain" in text
        assert "resumable" in text
        assert run(ex, forkcalls.fib, 10) == 55
        assert [worker.pid for worker in ex.stats().workers] == before


def test_fork_pool_a_chain_left_open_is_too_deep_as_well() -> None:
    """Children that nobody joins nest too, at their tasks' ends; the error comes soon."""
    with pool(1) as ex:
        with pytest.raises(mpsched.errors.RecursionTooDeep, match="grain"):
            run(ex, forkcalls.leave_open, 300_000)
        assert run(ex, forkcalls.fib, 10) == 55


def test_fork_pool_root_that_was_asked_to_stop_starts_no_more_children(tmp_path: Path) -> None:
    """After its own TaskCancelled the children that it leaves open are dropped."""
    started = tmp_path / "started"
    with pool(1) as ex:
        future = ex.submit(forkcalls.asked_to_stop, str(started), 20)
        wait_until(started.exists, "the first child has started")
        assert not future.cancel()
        with pytest.raises(mpsched.errors.TaskCancelled):
            future.result(timeout=DEADLINE_S)
        assert len(started.read_text()) == 1


def test_fork_pool_block_that_is_left_open_ends_with_its_task() -> None:
    """A worker does not count as blocked when the task is over that said so."""
    with pool(1) as ex:
        assert run(ex, forkcalls.block_for_ever) == "ended"
        inner: Any = ex._pool
        blocked = inner.layout.block(0) + lay.B_BLOCKED
        assert inner.segment.words[blocked] == 0
        assert run(ex, forkcalls.block_for_ever) == "ended"
        assert inner.segment.words[blocked] == 0


def test_fork_pool_fork_of_a_task_runs_its_children_itself() -> None:
    """A process that a task forks off spawns and joins by itself; the task's children are unharmed."""
    with pool(2) as ex:
        assert run(ex, forkcalls.in_a_fork) == (0, 34 + 55, 4 * 55)


def test_fork_pool_thread_of_a_task_runs_its_children_itself() -> None:
    """A thread that a task starts may spawn; its children run in it, and the task's are unharmed."""
    with pool(2) as ex:
        assert run(ex, forkcalls.in_a_thread) == (233, 144)
        assert run(ex, forkcalls.fib, 12) == 144


@pytest.mark.parametrize("workers", [1, 2])
def test_fork_pool_threads_and_event_loops_of_a_task_may_wait_for_its_children(
    workers: int,
) -> None:
    """Whoever waits in a task, in whichever way, is served: on one worker too."""
    with pool(workers) as ex:
        assert run(ex, forkcalls.joined_in_threads, 7) == list(range(7))
        assert run(ex, forkcalls.left_to_a_thread)
        assert run(ex, forkcalls.in_an_event_loop, ex, 5) == list(range(5))
        assert run(ex, forkcalls.futures_in_threads, ex, 5) == list(range(5))
        assert run(ex, forkcalls.polled, ex) == 7


def test_fork_pool_endless_recursion_in_a_thread_is_an_error() -> None:
    """The recursion limit of a root that forks is not more than its threads' stacks hold."""
    with pool(1) as ex:
        assert run(ex, forkcalls.endless_in_a_thread) == "RecursionError"


def test_fork_pool_scope_that_fails_cancels(tmp_path: Path) -> None:
    """What has not started never does, what runs is asked to stop, and all is waited for."""
    started = tmp_path / "started"
    with pool(2) as ex:
        assert run(ex, forkcalls.cancelled_scope, str(started), 10) < DEADLINE_S
        assert run(ex, forkcalls.fib, 10) == 55
    assert len(started.read_text()) < 10


def test_fork_pool_cancelled_root_reaches_its_stolen_children() -> None:
    """Future.cancel on a running root is seen by its children, wherever they run."""
    with pool(3) as ex:
        future = ex.submit(forkcalls.naps, 6, 10 * DEADLINE_S)
        while not ex.stats().child_steals:
            assert not future.done()
        assert not future.cancel()
        assert all(future.result(timeout=DEADLINE_S))


def test_fork_pool_lock_held_across_a_join_meets_no_other_root(tmp_path: Path) -> None:
    """While a task waits in a join its worker starts no unrelated root."""
    with pool(1) as ex:
        futures = [
            ex.submit(forkcalls.locked_join, str(tmp_path / "lock"), 0.002) for _ in range(10)
        ]
        assert all(future.result(timeout=DEADLINE_S) for future in futures)
