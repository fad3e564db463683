"""`max_workers=0`: the same results and errors, in this process."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import WorkStealingExecutor
from mpsched.errors import SchedulerClosed
from tests.support import faults, tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HANG_S = 60.0


@pytest.fixture
def serial() -> Iterator[WorkStealingExecutor]:
    """A pool without workers."""
    with WorkStealingExecutor(0) as ex:
        yield ex


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (tasks.square, (3,)),
    (tasks.everything, (1, "a")),
    (abs, (-3,)),
    (tasks.Base(3), (4,)),
    (lambda n: n + 1, (1,)),
    (tasks.fail, ("wanted",)),
    (tasks.outer_fail, (1,)),
    (tasks.exit_with, (3,)),
    (faults.raise_kind, (GeneratorExit,)),
    (faults.raise_kind, (StopIteration, 3)),
    (faults.raise_kind, (BaseException, "base")),
    (tasks.attempt, ()),
]


@pytest.mark.parametrize(("fn", "args"), CALLS, ids=range(len(CALLS)))
def test_serial_outcome_is_that_of_a_worker(
    default_pool: WorkStealingExecutor,
    serial: WorkStealingExecutor,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """The same value, or an error of the same type with the same arguments and a note."""

    def outcome(ex: WorkStealingExecutor) -> tuple[Any, ...]:
        future = ex.submit(fn, *args)
        error = future.exception(HANG_S)
        if error is None:
            return (future.result(), future.attempts, future.worker in {0, 1})
        notes = [note.partition(": ")[2] for note in error.__notes__]
        return type(error), error.args, notes, future.attempts

    assert outcome(serial) == outcome(default_pool)


def test_serial_runs_at_the_call_in_the_callers_thread(serial: WorkStealingExecutor) -> None:
    """For a debugger: the future is finished when it is returned."""
    assert serial.submit(os.getpid).result() == os.getpid()
    assert serial.submit(threading.get_ident).result() == threading.get_ident()
    future = serial.submit(tasks.square, 3)
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert future.seconds is not None
    assert "workers=0" in repr(serial)


def test_serial_futures_work_with_the_standard_library(serial: WorkStealingExecutor) -> None:
    """wait, as_completed, callbacks, asyncio."""
    futures = [serial.submit(tasks.square, n) for n in range(5)]
    assert cf.wait(futures, 0).done == set(futures)
    assert sorted(one.result() for one in cf.as_completed(futures)) == [0, 1, 4, 9, 16]
    seen: list[Any] = []
    futures[0].add_done_callback(seen.append)
    assert seen == [futures[0]]

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        return list(
            await asyncio.gather(
                loop.run_in_executor(serial, tasks.square, 5),
                asyncio.wrap_future(serial.submit(tasks.square, 6)),
            )
        )

    assert asyncio.run(main()) == [25, 36]


def test_serial_map_is_that_of_workers(
    default_pool: WorkStealingExecutor, serial: WorkStealingExecutor
) -> None:
    """Sized and not, several inputs, errors, unordered."""
    for ex in (default_pool, serial):
        assert list(ex.map(tasks.square, range(10))) == [n * n for n in range(10)]
        assert list(ex.map(tasks.add, [1, 2], itertools.count())) == [1, 3]
        assert list(ex.starmap(pow, [(2, 3), (3, 2)])) == [8, 9]
        assert sorted(ex.map(tasks.square, range(10), ordered=False)) == [n * n for n in range(10)]
        results = ex.map(tasks.fail_odd, range(10))
        assert next(results) == 0
        with pytest.raises(ValueError, match="1 is odd") as caught:
            next(results)
        assert "index 1 of the map" in caught.value.__notes__
        found = list(ex.map(tasks.fail_odd, range(4), return_exceptions=True))
        assert [type(one) for one in found] == [int, ValueError, int, ValueError]


def test_serial_map_runs_sized_inputs_at_the_call(serial: WorkStealingExecutor) -> None:
    """Iterated or not, as with workers."""
    seen: list[int] = []
    serial.map(seen.append, range(10))
    assert seen == list(range(10))


def test_serial_map_pulls_endless_inputs_as_they_are_read(serial: WorkStealingExecutor) -> None:
    """One by one."""
    source = itertools.count()
    results = serial.map(tasks.square, source)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert next(source) <= 6


def test_serial_task_sees_its_context(serial: WorkStealingExecutor) -> None:
    """`current_task` and `current_worker` are there inside, and only there."""
    task_id, attempt, index, incarnation, pid = serial.submit(tasks.task_and_worker).result()
    assert task_id > 0
    assert (attempt, index, incarnation, pid) == (1, 0, 0, os.getpid())
    assert mpsched.current_task() is None
    assert mpsched.current_worker() is None
    assert serial.submit(nested, serial).result() == (True, True)


def nested(ex: WorkStealingExecutor) -> tuple[bool, bool]:
    """Run a task in a task: each sees its own context."""
    outer = mpsched.current_task()
    inner = ex.submit(mpsched.current_task).result()
    assert outer is not None
    assert inner is not None
    return outer.task_id != inner.task_id, mpsched.current_task() is outer


def test_serial_options_work(serial: WorkStealingExecutor) -> None:
    """Retries and random streams as with workers; unknown keys are refused."""
    assert serial.options(retries=2, retry_on=ValueError).submit(tasks.fail_before, 3).result() == 3
    with pytest.raises(TypeError, match="timeuot"):
        serial.options(timeuot=3)
    draws = list(serial.options(rng=7).map(tasks.draw, range(5)))
    assert len(set(draws)) == 5


def test_serial_initializer_runs_at_construction() -> None:
    """Once, in this process."""
    tasks.set_global("unset")
    with WorkStealingExecutor(0, initializer=tasks.set_global, initargs=("set",)) as ex:
        assert ex.submit(tasks.get_global).result() == "set"
    tasks.set_global("unset")


def test_serial_pool_ends_like_the_others() -> None:
    """States, refusals, reports."""
    ex = WorkStealingExecutor(0)
    assert ex.state == "accepting"
    assert ex.submit(tasks.square, 3).result() == 9
    ex.shutdown()
    ex.shutdown(wait=False, cancel_futures=True)
    assert ex.state == "terminated"
    assert ex.await_termination(0)
    assert ex.close().complete
    with pytest.raises(SchedulerClosed):
        ex.submit(tasks.square, 3)
    with pytest.raises(SchedulerClosed):
        ex.map(tasks.square, [3])
    assert ex.stats().executed == 1


def test_serial_keyboard_interrupt_is_the_users(serial: WorkStealingExecutor) -> None:
    """Ctrl-C in a task is Ctrl-C in the program: it is this very thread."""
    with pytest.raises(KeyboardInterrupt):
        serial.submit(faults.raise_kind, KeyboardInterrupt)
    assert mpsched.current_task() is None
    assert serial.submit(tasks.square, 3).result() == 9


def test_serial_failure_that_nobody_reads_is_logged(
    serial: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with its traceback."""
    serial.submit(tasks.fail, "unseen")
    import gc

    gc.collect()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "unseen"
