"""Arguments and results of every size, and arrays that somebody changes."""

from __future__ import annotations

import array
import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._base.settings import Settings
from tests.support import gates, tasks

if TYPE_CHECKING:
    from pathlib import Path

    from mpsched import WorkStealingExecutor

HANG_S = 60.0

_S = Settings()
# Where the way of a value changes: into its entry, into the slab, into a memory file; what a record
# of the result ring takes, and the whole ring.
_STEPS = (
    _S.inline_bytes,
    4096,
    _S.payload_bytes,
    _S.slab_most_bytes // 2,
    _S.slab_most_bytes,
    _S.result_ring_bytes // 4,
    _S.result_ring_bytes,
)
SIZES = sorted({0, 1, *(step + by for step in _STEPS for by in (-64, -1, 0, 1))})


def pattern(size: int) -> bytes:
    """Return bytes that show it if any of them is lost or doubled."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def test_payload_of_every_size_goes_there_and_back(pool: WorkStealingExecutor) -> None:
    """Bytes, as argument and as result, around each size at which the way changes."""
    futures = [(size, pool.submit(tasks.identity, pattern(size))) for size in SIZES]
    for size, future in futures:
        assert future.result(HANG_S) == pattern(size)


def test_payload_of_every_size_inside_of_other_objects(pool: WorkStealingExecutor) -> None:
    """Text, mutable bytes, arrays and containers of them."""
    for size in SIZES:
        value = {
            "text": "x" * size,
            "buffer": bytearray(pattern(size)),
            "array": array.array("B", pattern(size)),
            "list": [pattern(size // 3)] * 3,
        }
        back = pool.submit(tasks.identity, value).result(HANG_S)
        assert back == value
        assert type(back["buffer"]) is bytearray


def test_payload_of_every_size_as_array(pool: WorkStealingExecutor) -> None:
    """NumPy arrays keep type, shape and order, and can be changed where they arrive."""
    np = pytest.importorskip("numpy")
    for size in SIZES:
        value = np.frombuffer(pattern(size), dtype="u1").copy()
        back = pool.submit(tasks.identity, value).result(HANG_S)
        assert np.array_equal(back, value)
        back[:] = 0  # a result is the caller's own
    for value in (
        np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
        np.arange(100_000)[::3],
        np.zeros((0, 5)),
        np.array(3.5),
        np.array(["a", None], dtype=object),
        np.zeros(1000, dtype=[("x", "f8"), ("y", "i4")]),
    ):
        back = pool.submit(tasks.identity, value).result(HANG_S)
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert np.array_equal(back, value)


def test_payload_items_and_results_of_a_map(pool: WorkStealingExecutor) -> None:
    """Each size among small neighbours."""
    items: list[Any] = []
    for size in SIZES:
        items += [len(items), pattern(size)]
    assert list(pool.map(tasks.identity, items)) == items


def test_payload_that_a_task_changes_is_the_tasks_own(pool: WorkStealingExecutor) -> None:
    """At every size: the caller's array stays as it is, the next task sees it as it was."""
    np = pytest.importorskip("numpy")
    for count in (10, 5000, 20_000, 300_000):
        value = np.zeros(count)
        futures = [pool.submit(tasks.increase, value) for _ in range(4)]
        assert [future.result(HANG_S) for future in futures] == [float(count)] * 4
        assert float(value.sum()) == 0.0
        assert list(pool.map(tasks.increase, [value] * 4)) == [float(count)] * 4


def test_payload_that_the_caller_changes_is_seen_changed(pool: WorkStealingExecutor) -> None:
    """The same array is sent again as it is now, whatever was kept of it."""
    np = pytest.importorskip("numpy")
    value = np.zeros(300_000)
    futures = []
    for number in range(8):
        value[number * 1000] = 1.0
        futures.append(pool.submit(total, value))
    # The last change before the tasks run must not reach those that were submitted before it.
    value[:] = 7.0
    assert [future.result(HANG_S) for future in futures] == [float(n + 1) for n in range(8)]
    assert pool.submit(total, value).result(HANG_S) == 7.0 * 300_000


def total(value: Any) -> float:
    """Return the sum of an array. In a worker."""
    return float(value.sum())


def test_payload_that_a_task_keeps_stays_as_it_was(
    pool: WorkStealingExecutor, tmp_path: Path
) -> None:
    """An argument in a global of the worker survives the payloads that come after it."""
    np = pytest.importorskip("numpy")
    futures = [pool.submit(keep, np.full(100_000, float(n))) for n in range(4)]
    for future in futures:
        future.result(HANG_S)
    for number in range(40):
        assert pool.submit(total, np.full(200_000, float(number))).result(HANG_S) == (
            200_000.0 * number
        )
    # One call held in each worker: an idle pool may give every call of a row to the same one.
    gate = gates.Gate(tmp_path / "asked")
    asked = [pool.submit(kept_values, gate) for _ in pool.stats().workers]
    gate.wait_for(len(asked))
    gate.open()
    found = dict(future.result(HANG_S) for future in asked)
    assert len(found) == len(asked)
    assert sorted(value for values in found.values() for value in values) == [0.0, 1.0, 2.0, 3.0]


def test_payload_that_the_caller_keeps_stays_as_it_was(pool: WorkStealingExecutor) -> None:
    """Results are kept while many others arrive and go."""
    np = pytest.importorskip("numpy")
    kept = [pool.submit(np.full, 100_000, float(n)).result(HANG_S) for n in range(5)]
    for number in range(40):
        pool.submit(np.full, 150_000, float(number)).result(HANG_S)
    gc.collect()
    for number, value in enumerate(kept):
        assert value.min() == value.max() == float(number)


_KEPT: list[Any] = []


def keep(value: Any) -> None:
    """Keep an argument. In a worker."""
    _KEPT.append(value)


def kept_values(gate: gates.Gate) -> tuple[int, list[float]]:
    """Return the process id, and what is in each kept array, which is one value. In a worker."""
    gate.hold()
    assert all(value.min() == value.max() for value in _KEPT)
    return os.getpid(), [float(value[0]) for value in _KEPT]


def test_share_sends_a_large_object_once(pool: WorkStealingExecutor) -> None:
    """The handle arrives as the object, in any number of tasks; each may change its own."""
    np = pytest.importorskip("numpy")
    value = {"table": np.arange(200_000.0), "name": "prices"}
    with pool.share(value) as handle:
        assert list(pool.map(table_sum, [handle] * 20)) == [float(value["table"].sum())] * 20
        assert pool.submit(spoil, handle).result(HANG_S) == "spoilt"
        assert pool.submit(table_sum, handle).result(HANG_S) == float(value["table"].sum())
        assert value["name"] == "prices"


def table_sum(value: dict[str, Any]) -> float:
    """Return the sum of a shared object's array. In a worker."""
    return float(value["table"].sum())


def spoil(value: dict[str, Any]) -> str:
    """Change a shared object. In a worker."""
    value["table"][:] = 0
    value["name"] = "spoilt"
    return str(value["name"])


@pytest.mark.slow
def test_payload_over_two_gigabytes(default_pool: WorkStealingExecutor) -> None:
    """Both ways, whole: needs some 8 GB."""
    size = 2**31 + 7
    value = bytearray(size)
    value[-1] = 7
    assert default_pool.submit(length_and_last, value).result(HANG_S * 5) == (size, 7)
    del value
    back = default_pool.submit(bytearray, size).result(HANG_S * 5)
    assert len(back) == size


def length_and_last(value: bytearray) -> tuple[int, int]:
    """Look at a large argument. In a worker."""
    return len(value), value[-1]
