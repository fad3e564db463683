"""Children of every kind at once: short, long, nested, failing and blocking ones, while a pool drains."""

from __future__ import annotations

import pytest

import mpsched
from tests.support import fork_stress as stress, pools

WORKERS = 3


def run(ex: mpsched.WorkStealingExecutor, seed: int, *, drain: bool) -> None:
    """One run; with `drain` the pool is shut down while its tasks spawn and steal."""
    table = mpsched.shared_array(WORKERS * stress.CHILDREN, "u1")
    barrier = mpsched.shared_array(WORKERS, "u1")
    futures = [ex.submit(stress.task, seed, barrier, n, table) for n in range(WORKERS)]
    pools.wait_until(barrier.all, "all tasks at the barrier")
    if drain:
        ex.shutdown(wait=False)
    places: list[int] = []
    for future in futures:
        good, bad = future.result(pools.DEADLINE_S)
        places += good + bad
    assert sorted(places) == list(range(len(table)))
    assert table.tolist() == [1] * len(table)


def runs(seeds: range) -> int:
    """Four runs in a pool, then one that it is shut down in; returns the steals."""
    stolen = 0
    for first in seeds[::5]:
        with pools.pool(WORKERS) as ex:
            for seed in range(first, first + 5):
                run(ex, seed, drain=seed == first + 4)
            ex.shutdown()
            stats = ex.stats()
            assert stats.deaths == stats.inflight == 0
            stolen += stats.children_run
    return stolen


def test_fork_stress_every_child_runs_once() -> None:
    """Twenty runs; in each, all outcomes are right, and children were really stolen over all."""
    assert runs(range(20)) > 20


@pytest.mark.slow
def test_fork_stress_every_child_runs_once_many_times() -> None:
    """The other 180 of 200 runs."""
    assert runs(range(20, 200)) > 180
