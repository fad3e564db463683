"""Regressions of the pool alone, for pytest-benchmark; a change means what suite_pool.py says.

Run by `pytest benchmarks`, and compared with an earlier run by its `--benchmark-compare`. `make
test` does not collect this folder: a time is no test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mpsched

from . import work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

TASKS = 5_000
ITEMS = 50_000


@pytest.fixture(scope="module")
def pool() -> Iterator[mpsched.WorkStealingExecutor]:
    """A pool whose two workers are up."""
    with mpsched.WorkStealingExecutor(2) as executor:
        assert list(executor.map(work.nap, [0.05] * 4)) == [0.05] * 4
        yield executor


def test_round_trip(benchmark: BenchmarkFixture, pool: mpsched.WorkStealingExecutor) -> None:
    """One no-op, back to back."""
    assert benchmark(lambda: pool.submit(work.noop, 1).result()) == 1


def test_submit_to_result(benchmark: BenchmarkFixture, pool: mpsched.WorkStealingExecutor) -> None:
    """5,000 no-ops, all submitted, then all read."""

    def through() -> int:
        futures = [pool.submit(work.noop, number) for number in range(TASKS)]
        return sum(future.result() for future in futures)

    assert benchmark(through) == TASKS * (TASKS - 1) // 2


def test_map_no_ops(benchmark: BenchmarkFixture, pool: mpsched.WorkStealingExecutor) -> None:
    """50,000 no-op items."""
    assert benchmark(lambda: sum(pool.map(work.noop, range(ITEMS)))) == ITEMS * (ITEMS - 1) // 2


def test_map_items_of_100_us(
    benchmark: BenchmarkFixture, pool: mpsched.WorkStealingExecutor
) -> None:
    """1,000 items of 100 us: 50 ms on two workers, and what is lost."""
    assert len(benchmark(lambda: list(pool.map(work.spin, [100] * 1_000)))) == 1_000


def test_array_of_8_mb(benchmark: BenchmarkFixture, pool: mpsched.WorkStealingExecutor) -> None:
    """The same array to 8 tasks."""
    array = pytest.importorskip("numpy").ones(1_000_000)

    def through() -> list[float]:
        return [f.result() for f in [pool.submit(work.sum_pages, array) for _ in range(8)]]

    assert len(set(benchmark(through))) == 1
