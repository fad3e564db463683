"""Futures with `concurrent.futures`: wait, as_completed, callbacks."""

from __future__ import annotations

import concurrent.futures as cf
import logging
import pickle
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import WorkerDied
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.gates import Gate

HANG_S = 60.0


def test_wait_returns_when_all_are_done(pool: WorkStealingExecutor) -> None:
    """`wait` sees the end of each of many futures."""
    futures = {pool.submit(tasks.square, number) for number in range(2000)}
    done, not_done = cf.wait(futures, HANG_S)
    assert done == futures
    assert not not_done
    assert sum(future.result() for future in done) == sum(n * n for n in range(2000))


def test_wait_returns_at_the_first_that_is_done(pool: WorkStealingExecutor, gate: Gate) -> None:
    """FIRST_COMPLETED does not wait for those that still run."""
    held: cf.Future[Any] = pool.submit(gate.hold)
    quick: cf.Future[Any] = pool.submit(tasks.square, 3)
    done, not_done = cf.wait({held, quick}, HANG_S, cf.FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {held})
    gate.open()
    assert cf.wait({held, quick}, HANG_S).done == {held, quick}


def test_wait_returns_at_the_first_failure(pool: WorkStealingExecutor, gate: Gate) -> None:
    """FIRST_EXCEPTION ends the waiting at a task that raised."""
    held = pool.submit(gate.hold)
    bad = pool.submit(tasks.fail)
    done, not_done = cf.wait({held, bad}, HANG_S, cf.FIRST_EXCEPTION)
    assert (done, not_done) == ({bad}, {held})
    gate.open()
    assert held.result() == "task"
    assert isinstance(bad.exception(), ValueError)


def test_wait_gives_up_at_its_timeout(pool: WorkStealingExecutor, gate: Gate) -> None:
    """A future that is not done in time is in the second set."""
    held = pool.submit(gate.hold)
    assert cf.wait({held}, 0.01) == (set(), {held})
    gate.open()
    assert cf.wait({held}, HANG_S) == ({held}, set())


def test_wait_takes_futures_of_other_executors_too(pool: WorkStealingExecutor) -> None:
    """Ours and the standard library's can be mixed."""
    with cf.ThreadPoolExecutor(1) as threads:
        futures = [pool.submit(tasks.square, 3), threads.submit(tasks.square, 4)]
        assert cf.wait(futures, HANG_S).done == set(futures)
        assert sorted(f.result() for f in cf.as_completed(futures, HANG_S)) == [9, 16]


def test_as_completed_with_a_dict_gives_each_once(pool: WorkStealingExecutor) -> None:
    """The form of the tutorials: a dict from future to input."""
    jobs: dict[cf.Future[int], int] = {
        pool.submit(tasks.fail_odd, number): number for number in range(500)
    }
    seen = []
    for job in cf.as_completed(jobs, HANG_S):
        seen.append(jobs[job])
        if jobs[job] % 2:
            assert isinstance(job.exception(), ValueError)
        else:
            assert job.result() == jobs[job]
    assert sorted(seen) == list(range(500))


def test_done_and_open_futures_can_be_waited_for_by_many_threads(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """`wait` and `as_completed` over the same futures in any order: each thread sees the end of all."""
    done = [pool.submit(tasks.square, number) for number in range(50)]
    assert [future.result(HANG_S) for future in done] == [number * number for number in range(50)]
    held: cf.Future[Any] = pool.submit(gate.hold)
    for future in done[:10]:
        assert cf.wait([future], HANG_S).done == {future}  # its condition is there by now
    found: queue.SimpleQueue[int] = queue.SimpleQueue()

    def look(futures: list[cf.Future[Any]]) -> None:
        found.put(sum(1 for _ in cf.as_completed(futures, HANG_S)))
        found.put(len(cf.wait(futures, HANG_S).done))

    threads = [
        threading.Thread(target=look, args=(order,))
        for order in ([*done, held], [held, *done], [*done[25:], held, *done[:25]])
    ]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(HANG_S)
    assert [found.get(timeout=HANG_S) for _ in range(6)] == [51] * 6


def test_as_completed_gives_what_is_done_first_first(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """The order is that of the ends, not that of the submits."""
    held = pool.submit(gate.hold, "held")
    others = [pool.submit(tasks.square, number) for number in range(20)]
    order: list[cf.Future[Any]] = []
    everything: list[cf.Future[Any]] = [held, *others]
    for future in cf.as_completed(everything, HANG_S):
        order.append(future)
        if len(order) == 20:
            assert held not in order
            gate.open()
    assert order[-1] is held
    assert set(order[:-1]) == set(others)


def test_as_completed_raises_at_its_timeout(pool: WorkStealingExecutor, gate: Gate) -> None:
    """The message of the standard library counts what is not done."""
    held = pool.submit(gate.hold)
    with pytest.raises(TimeoutError, match=r"1 \(of 1\) futures unfinished"):
        list(cf.as_completed([held], 0.01))
    gate.open()
    held.result()


def test_callback_gets_the_finished_future(pool: WorkStealingExecutor) -> None:
    """A callback is called once, with the future, after it is done."""
    seen: queue.SimpleQueue[tuple[Any, bool]] = queue.SimpleQueue()
    future = pool.submit(tasks.square, 3)
    future.add_done_callback(lambda one: seen.put((one, one.done())))
    assert seen.get(timeout=HANG_S) == (future, True)
    assert future.result() == 9
    assert seen.empty()


def test_callback_on_a_finished_future_is_called_at_once(pool: WorkStealingExecutor) -> None:
    """It is called in the thread that adds it, before `add_done_callback` returns."""
    future = pool.submit(tasks.square, 3)
    future.result()
    seen: list[int] = []
    future.add_done_callback(lambda _future: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_callbacks_are_called_in_the_order_they_were_added(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Ten callbacks of one future, and none is missed."""
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    future = pool.submit(gate.hold)

    def noting(number: int) -> Callable[[object], None]:
        return lambda _future: seen.put(number)

    for number in range(10):
        future.add_done_callback(noting(number))
    assert seen.empty()
    gate.open()
    assert [seen.get(timeout=HANG_S) for _ in range(10)] == list(range(10))


def test_callback_that_raises_is_logged_and_hurts_nobody(
    pool: WorkStealingExecutor, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """The callbacks after it are called, and the pool goes on."""
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()

    def bad(_future: object) -> None:
        raise LookupError("in the callback")

    future = pool.submit(gate.hold, "value")
    future.add_done_callback(bad)
    future.add_done_callback(lambda one: seen.put(str(one.result())))
    gate.open()
    assert seen.get(timeout=HANG_S) == "value"
    assert future.result() == "value"
    assert pool.submit(tasks.square, 3).result() == 9
    (record,) = [one for one in caplog.records if one.exc_info]
    assert record.levelno == logging.ERROR
    assert isinstance(record.exc_info[1], LookupError)  # type: ignore[index]


def test_callback_that_raises_on_a_finished_future_is_logged(
    pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the standard library, its exception does not reach who adds it."""

    def bad(_future: object) -> None:
        raise LookupError("in the callback")

    future = pool.submit(tasks.square, 3)
    future.result()
    future.add_done_callback(bad)
    assert any(one.exc_info and isinstance(one.exc_info[1], LookupError) for one in caplog.records)


def test_callback_may_submit(pool: WorkStealingExecutor) -> None:
    """A chain of tasks, each submitted by the callback of the one before."""
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()

    def again(future: cf.Future[int]) -> None:
        number = future.result()
        if number < 200:
            pool.submit(tasks.add, number, 1).add_done_callback(again)
        else:
            finished.put(number)

    pool.submit(tasks.identity, 0).add_done_callback(again)
    assert finished.get(timeout=HANG_S) == 200


def test_callback_may_wait_for_another_future(pool: WorkStealingExecutor) -> None:
    """Reading a result inside a callback does not hang the thread that brings results."""
    found: queue.SimpleQueue[int] = queue.SimpleQueue()

    def more(future: cf.Future[int]) -> None:
        found.put(pool.submit(tasks.add, future.result(), 1).result(HANG_S))

    pool.submit(tasks.identity, 1).add_done_callback(more)
    assert found.get(timeout=HANG_S) == 2


def test_callbacks_of_many_futures_are_all_called(pool: WorkStealingExecutor) -> None:
    """Nobody waits in `result`: the pool brings the results by itself."""
    count = 5000
    seen: list[int] = []
    finished = threading.Event()

    def note(future: cf.Future[int]) -> None:
        seen.append(future.result())
        if len(seen) == count:
            finished.set()

    for number in range(count):
        pool.submit(tasks.identity, number).add_done_callback(note)
    assert finished.wait(HANG_S), len(seen)
    assert sorted(seen) == list(range(count))


def test_callback_of_a_cancelled_future_is_called(pool: WorkStealingExecutor, gate: Gate) -> None:
    """Once, in the thread that cancels."""
    held = [pool.submit(gate.hold) for _ in range(2)]
    gate.wait_for(2)
    future = pool.submit(tasks.nothing)
    seen: list[bool] = []
    future.add_done_callback(lambda one: seen.append(one.cancelled()))
    assert future.cancel()
    assert future.cancel()
    assert seen == [True]
    gate.open()
    cf.wait(held, HANG_S)


def test_result_may_be_waited_for_by_many_threads(pool: WorkStealingExecutor, gate: Gate) -> None:
    """Eight threads wait for one future and all get its result."""
    future = pool.submit(gate.hold, "seen by all")
    with cf.ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(future.result) for _ in range(8)]
        gate.wait_for(1)
        gate.open()
        assert [one.result(HANG_S) for one in waiting] == ["seen by all"] * 8


def test_result_is_delivered_while_another_thread_waits_for_a_long_task(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """The thread that reads for all serves the others although its own task goes on."""
    long = pool.submit(gate.hold, "long")
    gate.wait_for(1)
    with cf.ThreadPoolExecutor(1) as threads:
        leader = threads.submit(long.result)
        for number in range(200):
            assert pool.submit(tasks.square, number).result(HANG_S) == number * number
        assert not leader.done()
        gate.open()
        assert leader.result(HANG_S) == "long"


def test_done_becomes_true_without_anybody_waiting(pool: WorkStealingExecutor) -> None:
    """Polling `done()` ends although nobody asks for a result."""
    futures = [pool.submit(tasks.square, number) for number in range(100)]
    wait_until(lambda: all(future.done() for future in futures), "the end of all")


def test_future_is_no_value(pool: WorkStealingExecutor) -> None:
    """A future cannot be pickled or be an argument; the error says what to pass."""
    future = pool.submit(tasks.square, 3)
    with pytest.raises(TypeError, match="pass its result"):
        pickle.dumps(future)
    error = pool.submit(tasks.identity, future).exception()
    assert "pass its result" in str(error) or "pass its result" in str(error.__cause__)  # type: ignore[union-attr]
    assert future.result() == 9


def test_callback_may_wait_for_another_future_whoever_leads(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """Also while another thread waits for a long task, and reads all results meanwhile."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def more(_future: object) -> None:
        jobs: list[Callable[[], object]] = [
            lambda: pool.submit(tasks.square, 5).result(HANG_S),
            lambda: list(pool.map(tasks.square, range(50))),
            lambda: type(pool.submit(tasks.fail).exception(HANG_S)),
            lambda: pool.submit(gate.hold).result(0.01),
        ]
        for job in jobs:
            try:
                found.put(job())
            except TimeoutError:
                found.put("too late")

    long = pool.submit(gate.hold)
    gate.wait_for(1)
    with cf.ThreadPoolExecutor(1) as threads:
        leader = threads.submit(long.result)
        pool.submit(tasks.nothing).add_done_callback(more)
        assert found.get(timeout=HANG_S) == 25
        assert found.get(timeout=HANG_S) == [n * n for n in range(50)]
        assert found.get(timeout=HANG_S) is ValueError
        assert found.get(timeout=HANG_S) == "too late"
        assert not leader.done()
        gate.open()
        assert leader.result(HANG_S) == "task"


def test_callback_that_waits_does_not_stop_burials(start_method: str, gate: Gate) -> None:
    """The task that it waits for dies with its worker: it is told so, and the pool goes on."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        ex.submit(tasks.nothing).add_done_callback(
            lambda _future: found.put(ex.submit(tasks.kill_process).exception(HANG_S))
        )
        assert isinstance(found.get(timeout=HANG_S), WorkerDied)
        assert ex.submit(tasks.square, 3).result(HANG_S) == 9


def test_callback_that_waits_does_not_stop_an_end(start_method: str, gate: Gate) -> None:
    """`close` with a limit ends the pool although a callback waits for a task of it."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ex = WorkStealingExecutor(1, mp_context=start_method)
    ex.submit(tasks.nothing).add_done_callback(
        lambda _future: found.put(ex.submit(gate.hold).exception(HANG_S))
    )
    gate.wait_for(1)
    assert ex.close(timeout=0, kill_after=0).seconds < HANG_S
    assert found.get(timeout=HANG_S) is not None
    assert ex.state == "terminated"


def test_callback_that_exits_is_logged(
    pool: WorkStealingExecutor, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit()` in a callback ends neither the pool nor the program."""
    future = pool.submit(gate.hold)
    future.add_done_callback(lambda _future: sys.exit(3))
    gate.open()
    assert future.result(HANG_S) == "task"
    wait_until(lambda: any(one.exc_info for one in caplog.records), "the log record")
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9
    assert pool.state == "accepting"
