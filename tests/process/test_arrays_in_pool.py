"""Large and shared arrays as the users of a pool meet them."""

from __future__ import annotations

import gc
import os
import resource
from concurrent.futures import wait
from typing import TYPE_CHECKING

import pytest

import mpsched
from tests.support import payload_calls as calls
from tests.support.pools import alive, pids, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

np = pytest.importorskip("numpy")

MIB = 1 << 20


@pytest.fixture(scope="module")
def pool() -> Iterator[mpsched.WorkStealingExecutor]:
    """One pool for the tests that do not look at its own end."""
    with mpsched.WorkStealingExecutor(2) as executor:
        wait_until(lambda: all(map(alive, pids(executor))), "all workers")
        yield executor


def shared_files() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += target.startswith(("/memfd:mpsched-payload", "/memfd:mpsched-shared"))
    return found


def submit_with_array_inside(pool: mpsched.WorkStealingExecutor) -> Future[float]:
    """Submit a function that has a shared array in its closure, and forget both."""
    inside = mpsched.shared_array(4, fill=3)
    return pool.submit(lambda: float(inside.sum()))


@pytest.mark.parametrize("size", [10, 5000, MIB // 8 - 1, MIB // 8, 3 * MIB // 8])
def test_pool_task_may_change_its_array(pool: mpsched.WorkStealingExecutor, size: int) -> None:
    """At every size, a task changes its own copy, and the caller changes the result."""
    array = np.zeros(size)
    result = pool.submit(calls.spoil, array).result()
    assert not array.any()
    assert result.sum() == size
    result += 1
    assert pool.submit(calls.total, result).result() == 2 * size


def test_pool_array_changed_between_two_submits_is_seen_changed(
    pool: mpsched.WorkStealingExecutor,
) -> None:
    """Each submit takes the array as it is, whatever happens to it before the task runs."""
    array = np.zeros(MIB)
    futures = []
    for value in range(20):
        array[value] = 1
        futures.append(pool.submit(calls.total, array))
    array[:] = -1
    assert [future.result() for future in futures] == [float(value + 1) for value in range(20)]


def test_pool_shared_array_is_written_by_tasks(pool: mpsched.WorkStealingExecutor) -> None:
    """Tasks write a shared array as an argument, through a slice, and as a global by value."""
    array = mpsched.shared_array(30)
    assert list(pool.map(calls.set_own, [array] * 10, range(10))) == [*range(10)]
    list(pool.map(calls.set_own, [array[10:]] * 10, range(10)))

    def write(index: int) -> None:
        array[index] = index + 1

    list(pool.map(write, range(20, 30)))
    assert array.tolist() == [*range(1, 11), *range(1, 11), *range(21, 31)]


def test_pool_shared_array_comes_back_as_itself(pool: mpsched.WorkStealingExecutor) -> None:
    """An array that a task returns is the caller's array."""
    array = mpsched.shared_array(5)
    back = pool.submit(calls.same, array[1:]).result()
    back[0] = 9
    assert array[1] == 9


def test_pool_what_is_shared_may_be_forgotten_after_submit(
    pool: mpsched.WorkStealingExecutor, tmp_path: Path
) -> None:
    """A waiting task keeps shared arrays and shared objects; afterwards they are freed."""
    before = shared_files()
    gate = tmp_path / "gate"
    blocked = [pool.submit(calls.wait_for, str(gate), None) for _ in range(2)]
    array = mpsched.shared_array(3, fill=2)
    handle = pool.share({"array": np.ones(MIB)})
    waiting = [
        pool.submit(calls.total, array),
        pool.submit(calls.total, handle),
        submit_with_array_inside(pool),
    ]
    handle.close()
    del array, handle
    gc.collect()
    gate.touch()
    assert [future.result() for future in waiting] == [6, MIB, 12]
    assert [future.result() for future in blocked] == [None, None]
    del waiting, blocked
    wait_until(lambda: gc.collect() >= 0 and shared_files() <= before, "the end of the files")


def test_pool_shared_object_gives_each_task_its_own(pool: mpsched.WorkStealingExecutor) -> None:
    """Tasks that change what they got through a handle do not see each other."""
    with pool.share(np.zeros(MIB)) as handle:
        sums = [pool.submit(calls.spoil, handle) for _ in range(4)]
        assert [float(future.result().sum()) for future in sums] == [MIB] * 4


def test_pool_many_waiting_arrays_and_results_fit_a_small_limit() -> None:
    """Hundreds of waiting arguments, and of results that are kept, need few descriptors."""
    with mpsched.WorkStealingExecutor(2) as pool:
        pool.submit(calls.same, 1).result()
        old = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, old[1]))
        try:
            futures = [pool.submit(calls.same, np.full(20_000, i)) for i in range(500)]
            results = [future.result() for future in futures]
            assert all((result == i).all() for i, result in enumerate(results))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_pool_leaves_no_file_open() -> None:
    """After a pool is closed and its results are gone, no memory file is open."""
    before = shared_files()
    array = np.zeros(MIB)
    with mpsched.WorkStealingExecutor(2) as pool:
        results = list(pool.map(calls.spoil, [array, array, array[:100]]))
        assert pool.submit(calls.total, array).result() == 0
    del pool, results, array
    wait_until(lambda: gc.collect() >= 0 and shared_files() <= before, "the end of the files")


def test_pool_shared_array_made_by_a_task_arrives(pool: mpsched.WorkStealingExecutor) -> None:
    """An array that a task makes and returns arrives, singly and from a map, and is shared on."""
    array = pool.submit(calls.filled_in_worker, 5, 7.0).result()
    assert array.tolist() == [7] * 5
    pool.submit(calls.set_own, array, 3).result()
    assert array[3] == 4
    many = list(pool.map(calls.filled_in_worker, range(1, 20), range(1, 20)))
    assert [one.tolist() for one in many] == [[float(n)] * n for n in range(1, 20)]


def test_pool_shared_array_that_only_its_result_refers_to_arrives(
    pool: mpsched.WorkStealingExecutor,
) -> None:
    """An array that the caller forgot arrives with the result that nobody has asked for yet."""
    array = mpsched.shared_array(5, fill=2)
    future = pool.submit(calls.same, array)
    wait([future])
    del array
    gc.collect()
    assert future.result().tolist() == [2] * 5
