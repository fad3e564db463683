"""`map` over inputs without a length, and maps that are not read to their end."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gates import Gate

HANG_S = 60.0


def test_map_of_a_sized_input_runs_everything_without_being_read(
    start_method: str, gate: Gate
) -> None:
    """The form of the tutorials: `with` waits for all items although nobody iterates."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        ex.map(gate.log, range(300))
    assert sorted(map(int, gate.arrivals())) == list(range(300))


def test_map_that_nobody_reads_logs_how_many_failed(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One record on leaving the block: the count, the first item and its traceback."""
    with (
        caplog.at_level(logging.ERROR, "mpsched"),
        WorkStealingExecutor(2, mp_context=start_method) as ex,
    ):
        ex.map(tasks.fail_odd, range(100))
    (record,) = [one for one in caplog.records if one.name.startswith("mpsched")]
    message = record.getMessage()
    assert "50 of 100" in message
    assert "first item 1" in message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_map_that_nobody_reads_and_that_works_logs_nothing(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No news is good news."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        ex.map(tasks.square, range(100))
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_map_that_was_read_logs_no_failure_again(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever iterated has seen the errors."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        errors = list(ex.map(tasks.fail_odd, range(100), return_exceptions=True))
        assert sum(isinstance(one, ValueError) for one in errors) == 50
        with pytest.raises(ValueError, match="1 is odd"):
            list(ex.map(tasks.fail_odd, range(100)))
    del errors
    gc.collect()
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_map_that_is_dropped_half_read_cancels_the_rest(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Nothing more is started once nobody can ask for it, and the pool goes on."""
    results = pool.map(functools.partial(hold_but_zero, gate), range(500), chunksize=1)
    assert next(results) == 0
    gate.wait_for(2)
    del results
    gc.collect()
    gate.open()
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9
    wait_until(lambda: not pool.stats().inflight and not pool.stats().ready, "an idle pool")
    assert len(gate.arrivals()) < 400


def hold_but_zero(gate: Gate, number: int) -> object:
    """Return zero at once; with any other number, note it and wait for the gate. In a worker."""
    return gate.hold(number) if number else number


def test_map_that_is_closed_half_read_cancels_the_rest(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """`close()` of the iterator does the same at once."""
    results: Any = pool.map(functools.partial(hold_but_zero, gate), range(1000), chunksize=1)
    assert next(results) == 0
    results.close()
    with pytest.raises(StopIteration):
        next(results)
    gate.open()
    wait_until(lambda: not pool.stats().inflight and not pool.stats().ready, "an idle pool")
    assert len(gate.arrivals()) < 500


def test_map_pulls_an_endless_input_only_so_far_ahead(pool: WorkStealingExecutor) -> None:
    """Over `itertools.count()` at most `buffersize` items are taken ahead of what was read."""
    pulled = [0]

    def inputs() -> Iterator[int]:
        for number in itertools.count():
            pulled[0] = number + 1
            yield number

    for ordered in (True, False):
        pulled[0] = 0
        results = pool.map(tasks.square, inputs(), buffersize=10, ordered=ordered)
        assert pulled[0] <= 10
        for read in range(1, 200):
            next(results)
            assert pulled[0] <= read + 10
        results.close()  # type: ignore[attr-defined]


def test_map_of_an_endless_input_is_bounded_by_default(pool: WorkStealingExecutor) -> None:
    """Without `buffersize` the bound is the pool's own."""
    source = itertools.count()
    results = pool.map(tasks.square, source)
    assert [next(results) for _ in range(1000)] == [n * n for n in range(1000)]
    assert next(source) < 250_000
    results.close()  # type: ignore[attr-defined]


def test_map_with_a_buffersize_bounds_sized_inputs_too(pool: WorkStealingExecutor) -> None:
    """A list of large things need not be sent whole."""
    taken: list[int] = []

    class Items:
        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[int]:
            for number in range(1000):
                taken.append(number)
                yield number

    results = pool.map(tasks.square, Items(), buffersize=7)
    assert len(taken) <= 7
    assert [next(results) for _ in range(10)] == [n * n for n in range(10)]
    assert len(taken) <= 17
    assert list(results) == [n * n for n in range(10, 1000)]


def test_map_pulls_the_input_in_the_callers_thread(pool: WorkStealingExecutor) -> None:
    """A generator over a database cursor may depend on its thread."""
    threads = set()

    def inputs() -> Iterator[int]:
        for number in range(2000):
            threads.add(threading.get_ident())
            yield number

    assert list(pool.map(tasks.square, inputs())) == [n * n for n in range(2000)]
    assert list(pool.options(rng=1).map(tasks.square, inputs())) == [n * n for n in range(2000)]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("position", [0, 1, 5, 500])
@pytest.mark.parametrize("ordered", [True, False])
def test_map_gives_the_error_of_the_input_to_the_consumer(
    default_pool: WorkStealingExecutor, position: int, ordered: bool
) -> None:
    """What came before it is delivered, then the error of the generator is raised as it is."""

    def inputs() -> Iterator[int]:
        yield from range(position)
        raise LookupError("in the input")

    results: list[int] = []
    with pytest.raises(LookupError, match="in the input"):
        results.extend(default_pool.map(tasks.square, inputs(), ordered=ordered))
    assert sorted(results) == [n * n for n in range(position)]
    assert default_pool.submit(tasks.square, 3).result(HANG_S) == 9


def test_map_closes_the_input_it_does_not_finish(pool: WorkStealingExecutor) -> None:
    """A generator that is left half pulled runs its `finally` when the map is dropped."""
    ended = threading.Event()

    def inputs() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            ended.set()

    results = pool.map(tasks.square, inputs(), buffersize=5)
    assert next(results) == 0
    del results
    gc.collect()
    assert ended.wait(HANG_S)


def test_map_over_an_iterator_that_is_not_read_says_so(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be run whole without being read: the block's end warns, and does not hang."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        ex.map(tasks.square, itertools.count(), buffersize=10)
    records = [one for one in caplog.records if one.name.startswith("mpsched")]
    assert len(records) == 1
    assert "first 10 items" in records[0].getMessage()


def test_map_lets_go_of_results_that_were_read(pool: WorkStealingExecutor) -> None:
    """The iterator keeps no result alive that the caller has dropped."""
    results = pool.map(tasks.Base, range(200))
    kept = []
    for result in results:
        kept.append(weakref.ref(result))
    del result
    wait_until(lambda: gc.collect() >= 0 and not any(one() for one in kept), "the results' end")
    assert len(kept) == 200


def test_map_lets_go_of_items_that_were_run(pool: WorkStealingExecutor) -> None:
    """A long map over a generator does not collect its inputs."""
    alive: list[weakref.ref[tasks.Base]] = []

    def inputs() -> Iterator[tasks.Base]:
        for number in range(3000):
            item = tasks.Base(number)
            alive.append(weakref.ref(item))
            yield item
            del item

    for _ in pool.map(tasks.nothing, inputs(), buffersize=50):
        pass
    wait_until(lambda: gc.collect() >= 0 and not any(one() for one in alive), "the items' end")
    assert len(alive) == 3000


def test_map_after_shutdown_is_refused(start_method: str) -> None:
    """At the call, not at the first `next`."""
    from mpsched.errors import SchedulerClosed

    ex = WorkStealingExecutor(2, mp_context=start_method)
    ex.shutdown()
    for options in ({}, {"retries": 1}):
        for source in ([1], iter([1])):
            with pytest.raises(SchedulerClosed):
                ex.options(**options).map(tasks.square, source)


def test_map_that_is_open_at_shutdown_is_finished(start_method: str) -> None:
    """Its results can be read after the pool has ended."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    results = ex.map(functools.partial(tasks.add, 1), range(5000))
    first = next(results)
    ex.shutdown()
    assert [first, *results] == [n + 1 for n in range(5000)]


@pytest.mark.parametrize("read", [True, False], ids=["read", "dropped"])
def test_map_that_ended_before_it_was_read_is_freed_with_its_iterator(
    pool: WorkStealingExecutor, *, read: bool
) -> None:
    """Its results, its items and what its function refers to; not only when the pool is closed."""
    np = pytest.importorskip("numpy")
    item = np.zeros(10)
    gone = weakref.ref(item)
    before = pool.stats().items
    results = pool.map(tasks.identity, [item] * 3)
    wait_until(lambda: pool.stats().items == before + 3, "the end of its items")
    wait_until(lambda: not pool.stats().inflight, "an idle pool")
    if read:
        assert len(list(results)) == 3
    del item, results
    wait_until(lambda: gc.collect() >= 0 and gone() is None, "the end of its items' life")


def test_failures_of_a_map_that_nobody_can_read_are_logged(
    pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Once its iterator is gone, not only when the pool is left."""
    pool.map(tasks.fail_odd, range(10))
    wait_until(lambda: caplog.records, "the log record")
    (record,) = caplog.records
    assert "5 of 10 items of an un-iterated map failed" in record.getMessage()
    assert record.exc_info is not None
