"""Many, large, uneven: each item exactly once, and memory that does not grow."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import WorkStealingExecutor
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    import random

    from tests.support.gates import Gate

np = pytest.importorskip("numpy")

HANG_S = 100.0


def test_scale_a_million_items_run_exactly_once(pool: WorkStealingExecutor) -> None:
    """A map of a million tiny items: each result in place, each item run once."""
    count = 1_000_000
    table = mpsched.shared_array((count,), "u1")  # a byte for each, which every process writes
    total = 0
    for index, result in enumerate(pool.map(functools.partial(tasks.mark, table), range(count))):
        assert result == index
        total += 1
    assert total == count
    assert int(table.sum()) == count
    assert int(table.max()) == int(table.min()) == 1


def test_scale_unordered_lazy_items_run_exactly_once(pool: WorkStealingExecutor) -> None:
    """The same from a generator, in any order."""
    count = 100_000
    table = mpsched.shared_array((2 * count,), "u1")
    mark = functools.partial(tasks.mark, table)
    found = np.fromiter(pool.map(mark, iter(range(count)), ordered=False), dtype=np.int64)
    assert len(found) == count
    assert np.array_equal(np.sort(found), np.arange(count))
    assert np.array_equal(table[:count], np.ones(count, "u1"))
    assert int(table[count:].sum()) == 0


def test_scale_tasks_run_exactly_once_under_stealing(start_method: str, rng: random.Random) -> None:
    """Uneven tasks on four workers: thieves, splits and give-backs lose and double nothing."""
    count = 3000
    table = mpsched.shared_array((count,), "u1")
    loops = [int(min(100_000, rng.paretovariate(1.1) * 200)) for _ in range(count)]
    with WorkStealingExecutor(4, mp_context=start_method) as ex:
        futures = [ex.submit(mark_and_work, table, n, loops[n]) for n in range(count)]
        results = ex.map(functools.partial(mark_item, table), list(enumerate(loops)))
        assert [future.result(HANG_S) for future in futures] == list(range(count))
        assert list(results) == list(range(count))
    assert int(table.min()) == int(table.max()) == 2
    del table, futures, results


def mark_and_work(table: Any, index: int, loops: int) -> int:
    """Count a visit and compute. In a worker."""
    tasks.cpu(loops)
    return tasks.mark(table, index)


def mark_item(table: Any, item: tuple[int, int]) -> int:
    """Count a visit and compute, for one item of a map. In a worker."""
    return mark_and_work(table, *item)


def test_scale_a_hundred_uneven_items_keep_every_worker_busy(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """One item that lasts does not hold back the 99 others, wherever it lies."""
    for slow in (0, 50, 99):
        inner = type(gate)(gate.folder / str(slow))
        results = pool.map(functools.partial(hold_one, inner, slow), range(100), ordered=False)
        found = [next(results) for _ in range(99)]
        assert sorted(found) == [n for n in range(100) if n != slow]
        inner.open()
        assert list(results) == [slow]


def hold_one(gate: Gate, slow: int, number: int) -> int:
    """Return the number after some work; one waits for the gate. In a worker."""
    tasks.cpu(20_000)
    if number == slow:
        gate.hold(number)
    return number


def test_scale_small_tasks_behind_a_long_one_are_run_by_others(
    start_method: str, gate: Gate
) -> None:
    """A worker that meets a long task gives back what it had claimed behind it."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        # Learns that tasks are tiny, so that many are claimed at once.
        for future in [ex.submit(tasks.nothing) for _ in range(3000)]:
            future.result(HANG_S)
        futures = [
            ex.submit(gate.hold, n) if n == 100 else ex.submit(tasks.identity, n)
            for n in range(2000)
        ]
        gate.wait_for(1)
        others = [future for n, future in enumerate(futures) if n != 100]
        assert cf.wait(others, HANG_S).not_done == set()
        gate.open()
        assert [int(str(future.result(HANG_S))) for future in futures] == list(range(2000))


def test_scale_many_threads_mix_everything(pool: WorkStealingExecutor, rng: random.Random) -> None:
    """Submits, maps, cancels and callbacks from six threads at once."""
    seeds = [rng.getrandbits(32) for _ in range(6)]

    def job(seed: int) -> int:
        import random as random_module

        own = random_module.Random(seed)
        checked = 0
        for _ in range(30):
            what = own.randrange(4)
            if what == 0:
                futures = [pool.submit(tasks.square, n) for n in range(own.randrange(200))]
                assert [f.result(HANG_S) for f in futures] == [n * n for n in range(len(futures))]
            elif what == 1:
                count = own.randrange(300)
                assert list(pool.map(tasks.square, range(count))) == [n * n for n in range(count)]
            elif what == 2:
                futures = [pool.submit(tasks.square, n) for n in range(50)]
                cancelled = {n for n in range(0, 50, 3) if futures[n].cancel()}
                cf.wait(futures, HANG_S)
                for n, future in enumerate(futures):
                    assert future.cancelled() == (n in cancelled)
                    assert future.cancelled() or future.result(HANG_S) == n * n
            else:
                results = pool.map(tasks.fail_odd, range(own.randrange(1, 100)))
                assert next(results) == 0
                del results
            checked += 1
        return checked

    with cf.ThreadPoolExecutor(6) as threads:
        assert list(threads.map(job, seeds)) == [30] * 6


def test_scale_distinct_lambdas_leave_memory_flat(pool: WorkStealingExecutor) -> None:
    """Functions that are used once are forgotten, here and in the workers."""

    def batch(first: int, count: int) -> None:
        futures = []
        for number in range(first, first + count):
            # A code object of its own for each, as in a notebook whose cell is run again.
            fn = eval(f"lambda x: x + {number}")
            futures.append(pool.submit(fn, 1))
        for number, future in enumerate(futures, first):
            assert future.result(HANG_S) == number + 1

    batch(0, 1500)
    before = memory(pool)
    for part in range(4):
        batch(1500 + part * 1000, 1000)
    after = memory(pool)
    for name, pages in after.items():
        grown = (pages - before[name]) * os.sysconf("SC_PAGESIZE") / 4000
        assert grown < 1000, f"{name} grew by {grown:.0f} bytes per function"


@pytest.mark.slow
def test_scale_200_000_distinct_lambdas_leave_memory_flat(pool: WorkStealingExecutor) -> None:
    """The whole measure: less than 20 MB more in any process after 200,000 functions."""
    done = 0
    before: dict[str, int] = {}
    while done < 200_000:
        futures = [pool.submit(eval(f"lambda x: x + {n}"), 1) for n in range(done, done + 2000)]
        assert [f.result(HANG_S) for f in futures] == [n + 1 for n in range(done, done + 2000)]
        del futures
        done += 2000
        if done == 20_000:
            before = memory(pool)
    for name, pages in memory(pool).items():
        grown = (pages - before[name]) * os.sysconf("SC_PAGESIZE")
        assert grown < 20e6, f"{name} grew by {grown / 1e6:.0f} MB"


def memory(ex: WorkStealingExecutor) -> dict[str, int]:
    """Return the private pages of this process and of each worker."""
    gc.collect()
    found = {}
    for name, pid in [("parent", os.getpid())] + [
        (f"worker {worker.index}", worker.pid) for worker in ex.stats().workers
    ]:
        try:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except FileNotFoundError:
            pytest.skip("memory can only be read in /proc")
        found[name] = resident - shared
    return found


def test_scale_parent_forgets_finished_tasks(pool: WorkStealingExecutor) -> None:
    """After 60,000 tasks the parent holds no more objects than after 20,000."""

    def batch() -> int:
        for _ in range(4):
            futures = [pool.submit(tasks.identity, n) for n in range(5000)]
            assert sum(future.result(HANG_S) for future in futures) == 5000 * 4999 // 2
            del futures
        wait_until(lambda: not pool.stats().inflight, "an idle pool")
        gc.collect()
        return len(gc.get_objects())

    first = batch()
    assert batch() < first + 2000
    assert batch() < first + 2000
