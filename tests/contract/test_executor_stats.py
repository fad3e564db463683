"""`stats()` and `state`: counters that agree with what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mpsched
from mpsched import PoolStats, WorkStealingExecutor
from mpsched._base.settings import Settings
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from tests.support.gates import Gate

HANG_S = 60.0


def test_stats_is_a_frozen_picture(pool: WorkStealingExecutor) -> None:
    """Of the documented class, which nobody can change."""
    stats = pool.stats()
    assert isinstance(stats, PoolStats)
    assert isinstance(stats, mpsched.PoolStats)
    assert [type(worker) for worker in stats.workers] == [mpsched.WorkerStats] * 2
    with pytest.raises(AttributeError):
        stats.executed = 3  # type: ignore[misc]


def test_stats_totals_are_the_sums_of_the_workers(pool: WorkStealingExecutor) -> None:
    """By the same names."""
    list(pool.map(tasks.square, range(500)))
    stats = pool.stats()
    no_sums = {"pid", "index", "incarnation", "deepest"}
    for name in {*mpsched.WorkerStats.__match_args__} - no_sums:
        assert getattr(stats, name) == pytest.approx(
            sum(getattr(worker, name) for worker in stats.workers)
        ), name
    assert stats.deepest == max(worker.deepest for worker in stats.workers)


def test_stats_count_every_task_once(pool: WorkStealingExecutor) -> None:
    """`executed` grows by exactly what was submitted, failures included."""
    before = pool.stats().executed
    futures = [pool.submit(tasks.fail_odd, number) for number in range(500)]
    assert sum(future.exception() is None for future in futures) == 250
    wait_until(lambda: pool.stats().executed >= before + 500, "500 more tasks")
    assert pool.stats().executed == before + 500


def test_stats_only_grow(pool: WorkStealingExecutor) -> None:
    """Read again and again while work goes on."""
    results = pool.map(tasks.square, range(20_000))
    last = pool.stats()
    for number, _ in enumerate(results):
        if number % 500 == 0:
            stats = pool.stats()
            for name in ("executed", "items", "steals", "stolen", "parks", "locks", "splits"):
                assert getattr(stats, name) >= getattr(last, name), name
            assert stats.busy_seconds >= last.busy_seconds
            assert stats.steals <= stats.steal_attempts
            last = stats


def test_stats_show_what_waits_and_what_is_dispatched(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Together they are what is open."""
    futures = [pool.submit(gate.hold) for _ in range(50)]
    gate.wait_for(2)

    def settled() -> bool:
        # One that is just being dispatched may be in both counts, or in neither.
        stats = pool.stats()
        return stats.ready + stats.inflight == 50 and stats.inflight >= 2

    wait_until(settled, "fifty that are open")
    gate.open()
    for future in futures:
        future.result(HANG_S)
    wait_until(lambda: pool.stats().inflight == 0, "nothing open")
    assert pool.stats().ready == 0


def test_stats_measure_the_time_in_user_code(pool: WorkStealingExecutor) -> None:
    """`busy_seconds` grows by about what the futures say."""
    before = pool.stats().busy_seconds
    futures = [pool.submit(tasks.cpu, 50_000) for _ in range(20)]
    spent = 0.0
    for future in futures:
        future.result(HANG_S)
        assert future.seconds is not None
        spent += future.seconds
    wait_until(lambda: pool.stats().busy_seconds >= before + spent * 0.99, "the time they took")
    assert pool.stats().busy_seconds <= before + spent * 1.01 + 0.001


def test_stats_go_on_across_a_death(start_method: str) -> None:
    """A replacement continues the counters of its index."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        for _ in range(10):
            ex.submit(tasks.nothing).result(HANG_S)
        wait_until(lambda: ex.stats().executed == 10, "ten tasks")
        ex.submit(tasks.kill_process).exception(HANG_S)
        for _ in range(5):
            ex.submit(tasks.nothing).result(HANG_S)
        wait_until(lambda: ex.stats().executed >= 15, "five more")
        stats = ex.stats()
        assert stats.executed in {15, 16}  # the one that died may count
        assert stats.deaths == 1
        assert stats.workers[0].incarnation == 1


def test_stats_needed_no_rescue(start_method: str) -> None:
    """No worker was ever woken by its safety time-out with work there: no wake-up was lost."""
    # So long that neither a slow machine nor anything but a lost wake-up makes one necessary.
    settings = Settings(park_first_s=HANG_S, park_most_s=2 * HANG_S)
    with WorkStealingExecutor(3, mp_context=start_method, settings=settings) as ex:
        for _ in range(30):
            assert [f.result(HANG_S) for f in [ex.submit(tasks.square, n) for n in range(50)]] == [
                n * n for n in range(50)
            ]
            assert sum(ex.map(tasks.identity, range(200))) == 19_900
            assert ex.submit(tasks.square, 3).result(HANG_S) == 9
        assert ex.stats().rescues == 0


def test_state_and_repr_say_where_the_pool_is(start_method: str, gate: Gate) -> None:
    """accepting, draining, terminated; in the representation too."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    assert ex.state == "accepting"
    assert "accepting" in repr(ex)
    assert "workers=1" in repr(ex)
    future = ex.submit(gate.hold)
    assert "pending" in repr(future)
    ex.shutdown(wait=False)
    assert (ex.state, future.done()) == ("draining", False)
    gate.open()
    future.result(HANG_S)
    assert ex.await_termination(HANG_S)
    assert ex.state == "terminated"
    assert "terminated" in repr(ex)
    with pytest.raises(AttributeError):
        ex.state = "accepting"  # type: ignore[misc]
