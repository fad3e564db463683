"""`max_pending`: a bound on what is accepted and not final."""

from __future__ import annotations

import concurrent.futures as cf
import queue
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import PendingLimitReached, SchedulerClosed
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from tests.support.gates import Gate

HANG_S = 60.0


def test_max_pending_makes_submit_wait(start_method: str, gate: Gate) -> None:
    """The submit beyond the bound returns when a task is done, and not before."""
    with WorkStealingExecutor(1, mp_context=start_method, max_pending=3) as ex:
        held = [ex.submit(gate.hold, n) for n in range(3)]
        with cf.ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ex.submit, tasks.square, 3)
            gate.wait_for(1)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            gate.open()
            assert waiting.result(HANG_S).result(HANG_S) == 9
        assert [future.result(HANG_S) for future in held] == [0, 1, 2]


def test_max_pending_bounds_a_long_run_of_submits(start_method: str) -> None:
    """Ten times as many as the bound, all done, never more than it at once."""
    with WorkStealingExecutor(2, mp_context=start_method, max_pending=50) as ex:
        futures: list[cf.Future[int]] = []
        most = 0
        for number in range(2000):
            futures.append(ex.submit(tasks.square, number))
            # Those before have their results. (Two counters of a pool that works are of two moments.)
            most = max(most, sum(not future.done() for future in futures[-300:]))
        assert [future.result(HANG_S) for future in futures] == [n * n for n in range(2000)]
        assert most <= 50


def test_max_pending_may_raise_instead(start_method: str, gate: Gate) -> None:
    """`on_full="raise"`: a `queue.Full` that tells the bound; later there is room again."""
    with WorkStealingExecutor(1, mp_context=start_method, max_pending=2, on_full="raise") as ex:
        held = [ex.submit(gate.hold) for _ in range(2)]
        with pytest.raises(PendingLimitReached, match="2 tasks") as caught:
            ex.submit(tasks.square, 3)
        assert isinstance(caught.value, queue.Full)
        assert caught.value.limit == 2
        gate.open()
        cf.wait(held, HANG_S)
        assert ex.submit(tasks.square, 3).result(HANG_S) == 9


def test_max_pending_raises_in_a_callback(start_method: str, gate: Gate) -> None:
    """The pool's own thread must not wait for itself."""
    outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with WorkStealingExecutor(1, mp_context=start_method, max_pending=2) as ex:

        def more(_future: object) -> None:
            try:
                for _ in range(5):
                    ex.submit(tasks.nothing)
            except PendingLimitReached as problem:
                outcome.put(problem)
            else:
                outcome.put(None)

        first = ex.submit(gate.hold)
        first.add_done_callback(more)
        second = ex.submit(gate.hold)
        gate.open()
        assert isinstance(outcome.get(timeout=HANG_S), PendingLimitReached)
        cf.wait([first, second], HANG_S)


def test_max_pending_makes_room_for_cancelled_and_failed_tasks(
    start_method: str, gate: Gate
) -> None:
    """Every end counts: done, failed, cancelled, refused by the encoder."""
    import threading

    with WorkStealingExecutor(1, mp_context=start_method, max_pending=2, on_full="raise") as ex:
        held = ex.submit(gate.hold)
        gate.wait_for(1)
        for _ in range(5):
            assert ex.submit(tasks.nothing).cancel()
        for _ in range(5):
            assert ex.submit(tasks.nothing, threading.Lock()).exception(HANG_S) is not None
        gate.open()
        assert held.result(HANG_S) == "task"
        for _ in range(5):
            assert ex.submit(tasks.fail).exception(HANG_S) is not None
        assert ex.submit(tasks.square, 3).result(HANG_S) == 9


def test_max_pending_waiter_is_released_by_shutdown(start_method: str, gate: Gate) -> None:
    """Whoever waits for room gets SchedulerClosed and does not hang."""
    ex = WorkStealingExecutor(1, mp_context=start_method, max_pending=1)
    held = ex.submit(gate.hold)
    gate.wait_for(1)
    with cf.ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(ex.submit, tasks.square, 3) for _ in range(3)]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.05)
        ex.shutdown(wait=False)
        for one in waiting:
            assert isinstance(one.exception(HANG_S), SchedulerClosed)
    gate.open()
    assert held.result(HANG_S) == "task"
    assert ex.await_termination(HANG_S)


def test_max_pending_waiters_of_several_threads_all_get_in(start_method: str) -> None:
    """Eight threads share a bound of four."""
    with WorkStealingExecutor(2, mp_context=start_method, max_pending=4) as ex:

        def job(base: int) -> list[int]:
            futures = [ex.submit(tasks.square, base + n) for n in range(50)]
            return [future.result(HANG_S) for future in futures]

        with cf.ThreadPoolExecutor(8) as threads:
            found = list(threads.map(job, range(0, 800, 100)))
    assert found == [[(base + n) ** 2 for n in range(50)] for base in range(0, 800, 100)]


def test_max_pending_does_not_stop_a_map(start_method: str) -> None:
    """A map is one entry, however many items it has; with a limit per item it waits its turn."""
    with WorkStealingExecutor(2, mp_context=start_method, max_pending=3) as ex:
        assert list(ex.map(tasks.square, range(500))) == [n * n for n in range(500)]
        each = ex.options(retries=1)
        assert list(each.map(tasks.square, range(100))) == [n * n for n in range(100)]
        wait_until(lambda: not ex.stats().inflight, "an idle pool")


@pytest.mark.parametrize(
    "bad",
    [
        {"max_pending": 0},
        {"max_pending": -1},
        {"max_pending": 1.5},
        {"max_pending": True},
        {"on_full": "drop"},
    ],
    ids=str,
)
def test_max_pending_refuses_values_that_make_no_sense(bad: dict[str, Any]) -> None:
    """At construction, naming the parameter."""
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        WorkStealingExecutor(1, **bad)
