"""Cancelling: what is prevented, what is only asked, and what the task sees."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import threading
from typing import TYPE_CHECKING

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import TaskCancelled
from tests.contract.conftest import settle
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.support.gates import Gate

HANG_S = 60.0


def test_cancel_prevents_what_waits_in_the_parent(pool: WorkStealingExecutor, gate: Gate) -> None:
    """A pending task is cancelled, never runs, and counts as done."""
    held = [pool.submit(gate.hold) for _ in range(2)]
    gate.wait_for(2)
    waiting = [pool.submit(gate.log, number) for number in range(500)]
    assert all(future.cancel() for future in waiting)
    assert all(future.cancelled() and future.done() for future in waiting)
    with pytest.raises(cf.CancelledError):
        waiting[0].result()
    with pytest.raises(cf.CancelledError):
        waiting[0].exception()
    gate.open()
    cf.wait(held, HANG_S)
    assert pool.submit(gate.log, "after").result(HANG_S) == "after"
    assert gate.arrivals() == ["task", "task", "after"]


def test_cancel_takes_back_what_a_worker_has_claimed(
    pool: WorkStealingExecutor, gate: Gate, tmp_path: Path
) -> None:
    """Tasks that lie behind a long one, in the worker's own hands, can still be prevented."""
    # Tiny tasks make the workers claim many at once; the long ones come amid them.
    for round_ in range(5):
        inner = type(gate)(tmp_path / f"round{round_}")
        for future in [pool.submit(tasks.nothing) for _ in range(2000)]:
            future.result()
        futures = [pool.submit(inner.hold if n in {0, 40} else inner.log, n) for n in range(200)]
        inner.wait_for(2)
        prevented = {n for n, future in enumerate(futures) if future.cancel()}
        inner.open()
        cf.wait(futures, HANG_S)
        ran = {int(name) for name in inner.arrivals()}
        assert not prevented & ran
        assert prevented | ran == set(range(200))
        assert {n for n, future in enumerate(futures) if future.cancelled()} == prevented


def test_cancel_of_a_running_task_answers_false_and_asks_it_to_stop(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """The task sees `cancelled`; what it returns then is its result."""
    future = pool.submit(gate.hold_until_cancelled)
    gate.wait_for(1)
    wait_until(future.running, "running")
    assert not future.cancel()
    assert future.result(HANG_S) == "cancelled"
    assert not future.cancelled()
    assert future.done()


def test_cancel_of_a_finished_task_answers_false(pool: WorkStealingExecutor) -> None:
    """Nothing changes."""
    future = pool.submit(tasks.square, 3)
    assert future.result() == 9
    assert not future.cancel()
    assert not future.cancelled()
    assert future.result() == 9


def test_cancel_asks_one_task_only(pool: WorkStealingExecutor, gate: Gate) -> None:
    """The signal is the task's own: another one that runs, and the next one, do not see it."""
    futures = [pool.submit(gate.hold_until_cancelled, number) for number in range(2)]
    gate.wait_for(2)
    assert not futures[0].cancel()
    assert futures[0].result(HANG_S) == "cancelled"
    following = pool.submit(gate.hold_until_cancelled, 2)
    gate.wait_for(3)
    gate.open()
    assert futures[1].result(HANG_S) == "opened"
    assert following.result(HANG_S) == "opened"


def test_cancelled_task_may_raise_task_cancelled(pool: WorkStealingExecutor, gate: Gate) -> None:
    """`raise_if_cancelled` ends it with TaskCancelled, which is no CancelledError."""
    future = pool.submit(stop_when_asked, gate)
    gate.wait_for(1)
    assert not future.cancel()
    error = future.exception(HANG_S)
    assert isinstance(error, TaskCancelled)
    assert not isinstance(error, cf.CancelledError | asyncio.CancelledError)
    assert not future.cancelled()


def stop_when_asked(gate: Gate) -> None:
    """Raise TaskCancelled once asked to stop. In a worker."""
    import mpsched

    task = mpsched.current_task()
    assert task is not None
    task.raise_if_cancelled()
    gate.arrive()
    wait_until(lambda: task.cancelled or gate.is_open, "the cancellation")
    task.raise_if_cancelled()


def test_cancelled_future_wakes_whoever_waits(pool: WorkStealingExecutor, gate: Gate) -> None:
    """`result`, `wait` and `as_completed` end when another thread cancels."""
    held = [pool.submit(gate.hold) for _ in range(2)]
    gate.wait_for(2)
    future = pool.submit(tasks.nothing)
    with cf.ThreadPoolExecutor(3) as threads:
        reader = threads.submit(future.exception, HANG_S)
        waiter = threads.submit(cf.wait, [future], HANG_S)
        stream = threads.submit(lambda: list(cf.as_completed([future], HANG_S)))
        assert future.cancel()
        assert isinstance(reader.exception(HANG_S), cf.CancelledError)
        assert waiter.result(HANG_S).done == {future}
        assert stream.result(HANG_S) == [future]
    gate.open()
    cf.wait(held, HANG_S)


def test_cancel_and_run_exclude_each_other(
    pool: WorkStealingExecutor, gate: Gate, rng: random.Random
) -> None:
    """Of many cancelled at random moments, from four threads, none that was prevented runs."""
    futures = [pool.submit(gate.log, number) for number in range(600)]
    order = list(range(600))
    rng.shuffle(order)
    answers: dict[int, bool] = {}

    def cancel(part: int) -> None:
        for number in order[part::4]:
            answers[number] = futures[number].cancel()

    threads = [threading.Thread(target=cancel, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    cf.wait(futures, HANG_S)
    ran = [int(name) for name in gate.arrivals()]
    assert len(ran) == len(set(ran)), "a task ran twice"
    prevented = {number for number, answer in answers.items() if answer}
    assert not prevented & set(ran)
    assert prevented | set(ran) == set(range(600))
    for number, future in enumerate(futures):
        assert future.cancelled() == (number in prevented)
        if number not in prevented:
            assert future.result(HANG_S) == number


def test_on_cancel_kill_ends_the_worker_of_a_running_task(start_method: str, gate: Gate) -> None:
    """The task that never looks is ended, its future is final, the pool has its width again."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        settle(ex)
        before = {worker.pid for worker in ex.stats().workers}
        future = ex.options(on_cancel="kill").submit(gate.hold)
        gate.wait_for(1)
        assert not future.cancel()
        assert isinstance(future.exception(HANG_S), cf.CancelledError)
        assert future.done()
        wait_until(lambda: {worker.pid for worker in ex.stats().workers} != before, "a new worker")
        assert len({worker.pid for worker in ex.stats().workers} - before) == 1
        assert ex.stats().deaths == 1
        assert list(ex.map(tasks.square, range(10))) == [n * n for n in range(10)]


def test_on_cancel_kill_prevents_what_has_not_started(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Then nothing has to be ended."""
    held = [pool.submit(gate.hold) for _ in range(2)]
    gate.wait_for(2)
    before = [worker.pid for worker in pool.stats().workers]
    future = pool.options(on_cancel="kill").submit(gate.log, "never")
    assert future.cancel()
    assert future.cancelled()
    gate.open()
    cf.wait(held, HANG_S)
    assert [worker.pid for worker in pool.stats().workers] == before
    assert "never" not in gate.arrivals()


def test_cancel_and_run_exclude_each_other_with_callbacks(
    pool: WorkStealingExecutor, gate: Gate, rng: random.Random
) -> None:
    """The same while others wait on the futures: what has run is never told to be prevented."""
    futures = [pool.submit(gate.log, number) for number in range(400)]
    called: list[object] = []
    for future in futures:
        future.add_done_callback(called.append)
    order = list(range(400))
    rng.shuffle(order)
    prevented = {number for number in order if futures[number].cancel()}
    cf.wait(futures, HANG_S)
    assert not prevented & {int(name) for name in gate.arrivals()}
    assert {n for n, future in enumerate(futures) if future.cancelled()} == prevented
    wait_until(lambda: len(called) >= 400, "all callbacks")
    assert set(called) == set(futures)
    assert len(called) == 400
