"""`Scheduler.schedule`: what may be said about when and what, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import Scheduler, WorkStealingExecutor
from mpsched._base.settings import Settings
from mpsched._schedule.handle import label
from mpsched.errors import (
    EncodeError,
    PendingLimitReached,
    PoolFailed,
    SchedulerClosed,
    TaskTimeout,
    WorkerDied,
)
from tests.support import tasks, timed
from tests.support.bombs import RaisesAtPickle
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from tests.support.gates import Gate

HANG_S = 60.0
FAR = 10_000.0


def test_schedule_takes_the_four_arguments_in_order(own: Scheduler) -> None:
    """`schedule(task_id, run_at, priority, fn)` runs at a number on the scheduler's clock."""
    at = own.now() + 0.05
    handle = own.schedule("four", at, 0, tasks.identity, args=(3,))
    assert handle.result(HANG_S) == 3
    assert own.now() >= at
    (run,) = own.history("four")
    assert run.due == at
    assert run.started is not None
    assert run.started >= at


@pytest.mark.parametrize(
    "when",
    [
        {"after": 0},
        {"after": 0.01},
        {"after": timedelta(milliseconds=10)},
        {"after": -5},
        {"run_at": timedelta(milliseconds=10)},
        {"run_at": timedelta(days=-400)},
    ],
)
def test_schedule_takes_times_of_every_kind(own: Scheduler, when: dict[str, Any]) -> None:
    """A span, a number from now, and the past, which is due now."""
    assert own.schedule("kind", fn=tasks.identity, args=(1,), **when).result(HANG_S) == 1


def test_schedule_takes_aware_datetimes(own: Scheduler) -> None:
    """`at=`, or in place of `run_at`; one that is past is due now."""
    soon = datetime.now(UTC) + timedelta(milliseconds=20)
    assert own.schedule("at", at=soon, fn=tasks.identity, args=(1,)).result(HANG_S) == 1
    assert datetime.now(UTC) >= soon
    assert own.schedule("at", soon, 0, tasks.identity, args=(2,)).result(HANG_S) == 2


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({}, "exactly one"),
        ({"after": 1, "run_at": 2}, "exactly one"),
        ({"after": float("nan")}, "nan"),
        ({"after": float("inf")}, "inf"),
        ({"run_at": True}, "True"),
        ({"after": "5"}, "'5'"),
        ({"after": 1 + 2j}, "1"),
        ({"run_at": time.time() + 5}, "after="),
        ({"at": datetime(2030, 1, 1)}, "naive"),
        ({"after": 1, "deadline": "late"}, "deadline"),
        ({"after": 1, "deadline": float("nan")}, "deadline"),
        ({"after": 1, "priority": 1.5}, "priority"),
        ({"after": 1, "if_exists": "skip"}, "if_exists.*'replace'"),
        ({"after": 1, "if_running": "stop"}, "if_running.*'let_finish'"),
        ({"after": 1, "where": "process"}, "where"),
        ({"after": 1, "timeout": -1}, "timeout"),
        ({"after": 1, "retries": -1}, "retries"),
        ({"after": 1, "group": "web"}, "web"),
        ({"after": 1, "where": "thread", "timeout": 1.0}, "thread cannot be ended"),
        ({"after": 1, "where": "thread", "on_cancel": "kill"}, "thread cannot be ended"),
    ],
)
def test_schedule_refuses_odd_input_and_schedules_nothing(
    own: Scheduler, when: dict[str, Any], message: str
) -> None:
    """The message has the value or the way out, and the id stays unknown."""
    with pytest.raises((TypeError, ValueError), match=message):
        own.schedule("odd", fn=tasks.nothing, **when)
    assert own.status("odd") is None
    assert own.cancel("odd") is mpsched.CancelResult.UNKNOWN


def test_schedule_refuses_what_is_no_function(own: Scheduler) -> None:
    """Nothing, a value, and a call that was made already."""
    with pytest.raises(TypeError, match="needs a function"):
        own.schedule("none", after=1)
    with pytest.raises(TypeError, match="not int"):
        own.schedule("none", after=1, fn=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="hash"):
        own.schedule(["list"], after=1, fn=tasks.nothing)  # type: ignore[arg-type]


def test_schedule_number_from_before_the_scheduler_warns_once(default_pool: Any) -> None:
    """It is due now, as any past time; the warning says what the number means."""
    with Scheduler(executor=default_pool) as s:
        with pytest.warns(RuntimeWarning, match="after=") as seen:
            assert s.schedule("five", 5, 0, tasks.identity, args=(1,)).result(HANG_S) == 1
        assert seen[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert s.schedule("five", 6, 0, tasks.identity, args=(2,)).result(HANG_S) == 2


def test_schedule_centuries_ahead_waits(own: Scheduler) -> None:
    """No wait overflows, and nothing runs early: 25 days, 50 days, 400 years."""
    days = (24.8, 24.9, 25, 49.7, 49.8, 400, 36_500, 146_000)
    handles = [own.schedule(f"d{d}", after=timedelta(days=d), fn=tasks.nothing) for d in days]
    last = own.schedule("year 9999", at=datetime(9999, 12, 31, tzinfo=UTC), fn=tasks.nothing)
    assert own.schedule("now", after=0, fn=tasks.identity, args=(1,)).result(HANG_S) == 1
    assert not any(handle.done() for handle in (*handles, last))
    for handle in (*handles, last):
        assert handle.cancel()


def test_schedule_takes_ids_of_any_hashable_type(own: Scheduler) -> None:
    """Ids at the same time with the same priority are never compared."""
    ids: list[Any] = [None, 1, "1", ("id", 1), 1.5, frozenset({1}), object(), b"1", len]
    at = own.now() + 0.05
    handles = [own.schedule(one, at, 0, tasks.identity, args=(n,)) for n, one in enumerate(ids)]
    assert [handle.result(HANG_S) for handle in handles] == [*range(len(ids))]


def test_schedule_takes_arguments_when_it_is_called(own: Scheduler) -> None:
    """What is changed later is not seen by the job."""
    values = [1, 2]
    handle = own.schedule(
        "args", after=0.05, fn=tasks.everything, args=(values,), kwargs={"more": values}
    )
    values.append(3)
    assert handle.result(HANG_S) == (([1, 2],), {"more": [1, 2]})


def test_schedule_runs_functions_by_value(own: Scheduler) -> None:
    """Lambdas and closures work as in `submit`, large arguments too."""
    base = 40
    assert own.schedule("value", after=0, fn=lambda x: base + x, args=(2,)).result(HANG_S) == 42
    blob = bytes(300_000)
    assert own.schedule("large", after=0, fn=len, args=(blob,)).result(HANG_S) == 300_000


def test_schedule_refuses_what_cannot_be_sent_and_names_the_remedy(sched: Scheduler) -> None:
    """At the call, not at the time: a lock, an object that does not pickle, the scheduler itself."""
    for bad in (threading.Lock(), RaisesAtPickle(ValueError), sched):
        with pytest.raises(EncodeError, match=r"'bad'.*where='thread'") as caught:
            sched.schedule("bad", after=0, fn=tasks.identity, args=(bad,))
        assert caught.value.__cause__ is not None
    assert sched.status("bad") is None

    class Service:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.ran = threading.Event()

        def nightly(self) -> str:
            self.ran.set()
            return "done"

    service = Service()
    with pytest.raises(EncodeError, match="where='thread'"):
        sched.schedule("nightly", after=0, fn=service.nightly)
    handle = sched.schedule("nightly", after=0, fn=service.nightly, where="thread")
    assert handle.result(HANG_S) == "done"
    assert service.ran.is_set()


def test_schedule_in_a_task_is_refused_clearly(own: Scheduler) -> None:
    """A job that refers to its scheduler cannot be sent; the message says what to do."""
    with pytest.raises(EncodeError, match="stays in the process"):
        own.schedule("self", after=0, fn=lambda: own.now() + 1)
    with pytest.raises(EncodeError, match="stays in the process"):
        own.schedule("self", after=0, fn=own.now)


def test_schedule_tells_the_task_its_version_and_attempt(sched: Scheduler) -> None:
    """`current_task()` has both, in a worker and in a thread."""
    first = sched.schedule("who", after=0, fn=timed.version_and_attempt)
    assert first.result(HANG_S) == (first.version, 1)
    second = sched.schedule("who", after=0, fn=timed.version_and_attempt, where="thread")
    assert second.result(HANG_S) == (second.version, 1)
    assert second.version > first.version


@pytest.mark.parametrize("task_id", ["report", 17, ("daily", 3, None), b"x", 2.5])
def test_schedule_tells_the_task_its_id(sched: Scheduler, gate: Gate, task_id: Any) -> None:
    """`current_task()` has the id that it was scheduled under; in a child elsewhere, too."""
    assert sched.schedule(task_id, after=0, fn=timed.own_id).result(HANG_S) == task_id
    assert (
        sched.schedule(task_id, after=0, fn=timed.own_id, where="thread").result(HANG_S) == task_id
    )
    above = sched.schedule(task_id, after=0, fn=timed.elsewhere, args=(gate, timed.id_and_version))
    assert above.result(HANG_S) == (task_id, above.version)


def test_schedule_tells_the_task_the_repr_of_an_odd_id(sched: Scheduler) -> None:
    """An object of the program stays here; a thread sees it as it is."""
    for odd in (object(), ("x" * 2000,), 10**400):
        told = sched.schedule(odd, after=0, fn=timed.own_id).result(HANG_S)
        assert told == label(odd)
        assert sched.schedule(odd, after=0, fn=timed.is_own_id, args=(odd,), where="thread").result(
            HANG_S
        )


def test_failures_name_the_scheduled_task(sched: Scheduler, gate: Gate) -> None:
    """In messages, notes and fields stands the id that it was scheduled under, not a number of the pool."""
    failed: Any = sched.schedule("one", after=0, fn=timed.fail_before, args=(2, OSError))
    assert any(note.startswith("task 'one': fail_before(2") for note in notes(failed))
    below: Any = sched.schedule("two", after=0, fn=timed.elsewhere, args=(gate, timed.fail_there))
    assert any(note.startswith("child of task 'two': fail_there(") for note in notes(below))
    lost: Any = sched.schedule("three", after=0, fn=timed.die, args=(None,))
    error = lost.exception(HANG_S)
    assert isinstance(error, WorkerDied)
    assert error.task_id == "three"
    assert f"ran task 'three', version {lost.version} (pid" in str(error)
    slow: Any = sched.schedule(("four", 4), after=0, fn=timed.sleep, args=(60,), timeout=0.05)
    late = slow.exception(HANG_S)
    assert isinstance(late, TaskTimeout)
    assert late.task_id == ("four", 4)
    assert str(late).startswith(f"task ('four', 4), version {slow.version} ran longer")
    lock: Any = sched.schedule("five", after=0, fn=threading.Lock)
    assert any(note == "task 'five': its result" for note in notes(lock))


def notes(handle: Any) -> list[str]:
    """Return the notes of a failure; there must be some."""
    found: list[str] = handle.exception(HANG_S).__notes__
    assert found
    return found


def test_schedule_beyond_max_pending_is_refused(default_pool: Any) -> None:
    """A replacement is no growth, and what was cancelled makes room."""
    with Scheduler(executor=default_pool, max_pending=3) as s:
        for n in range(3):
            s.schedule(n, after=FAR, fn=tasks.nothing)
        with pytest.raises(PendingLimitReached):
            s.schedule(3, after=FAR, fn=tasks.nothing)
        s.schedule(1, after=2 * FAR, fn=tasks.nothing)
        assert s.cancel(2)
        s.schedule(3, after=FAR, fn=tasks.nothing)
        assert s.metrics().pending == 3


def test_max_pending_of_an_executor_is_for_its_own_submits(gate: Gate) -> None:
    """Timers are not in it, and what is due is not refused by it."""
    with (
        WorkStealingExecutor(1, max_pending=1, on_full="raise") as ex,
        Scheduler(executor=ex) as s,
    ):
        held = ex.submit(gate.hold)
        gate.wait_for(1)
        later = [s.schedule(n, after=FAR, fn=tasks.nothing) for n in range(5)]
        handles = [s.schedule(10 + n, after=0, fn=tasks.square, args=(n,)) for n in range(5)]
        with pytest.raises(PendingLimitReached):
            ex.submit(tasks.nothing)
        gate.open()
        assert held.result(HANG_S) == "task"
        assert [handle.result(HANG_S) for handle in handles] == [n * n for n in range(5)]
        assert ex.submit(tasks.square, 7).result(HANG_S) == 49
        assert all(s.cancel(n) for n in range(len(later)))


def test_schedule_on_a_pool_that_has_failed_says_so() -> None:
    """PoolFailed for workers, now and at its time; the state says it; threads go on."""
    with Scheduler(1, initializer=tasks.fail, initargs=("no model",)) as s:
        handles = []
        if s.state == "accepting":
            with contextlib.suppress(PoolFailed):
                handles.append(s.schedule("early", after=FAR, fn=tasks.nothing))
        wait_until(lambda: s.state == "failed", "the pool's failure")
        with pytest.raises(PoolFailed, match="no model"):
            s.schedule("late", after=FAR, fn=tasks.nothing)
        for handle in handles:
            assert s.reschedule("early", after=0)
            assert isinstance(handle.exception(HANG_S), PoolFailed)
        assert (
            s.schedule("here", after=0, fn=tasks.pid, where="thread").result(HANG_S) == tasks.pid()
        )
    assert s.state == "closed"


def test_schedule_after_close_is_refused(default_pool: Any) -> None:
    """SchedulerClosed, for everything that would add or move."""
    s = Scheduler(executor=default_pool)
    s.close()
    with pytest.raises(SchedulerClosed):
        s.schedule("late", after=0, fn=tasks.nothing)
    with pytest.raises(SchedulerClosed):
        s.reschedule("late", after=1)
    assert s.cancel("late") is mpsched.CancelResult.UNKNOWN
    assert s.state == "closed"


def test_scheduler_refuses_arguments_that_exclude_each_other(default_pool: Any) -> None:
    """The message says which, and nothing is left running."""
    for wrong, message in (
        ({"workers": 2, "executor": default_pool}, "either workers or executor"),
        ({"executor": 3}, "WorkStealingExecutor"),
        ({"executor": default_pool, "ready_order": "priority"}, "its own order"),
        ({"executor": default_pool, "groups": {"a": 1}}, "its own order"),
        ({"executor": mpsched.WorkStealingExecutor(0)}, "max_workers=0"),
        ({"workers": 0, "ready_order": "random"}, "ready_order"),
        ({"workers": 0, "aging": 1.0}, "aging"),
        ({"workers": 0, "history": 0}, "history"),
        ({"workers": 0, "threads": 0}, "threads"),
        ({"workers": 0, "on_error": "log"}, "on_error"),
        ({"workers": True}, "True"),
        ({"workers": -1}, "-1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            Scheduler(**wrong)


def test_handle_is_a_future_that_can_be_awaited(own: Scheduler) -> None:
    """`await`, `as_completed` and callbacks work."""
    import concurrent.futures as cf

    async def main() -> int:
        return await own.schedule("await", after=0.01, fn=tasks.square, args=(7,))

    assert asyncio.run(main()) == 49
    handles = [own.schedule(n, after=0.01 * n, fn=tasks.square, args=(n,)) for n in range(3)]
    assert sorted(h.result() for h in cf.as_completed(handles, HANG_S)) == [0, 1, 4]
    assert all(isinstance(handle, cf.Future) for handle in handles)
    seen = threading.Event()
    own.schedule("back", after=0, fn=tasks.nothing).add_done_callback(lambda _: seen.set())
    assert seen.wait(HANG_S)


def test_handle_result_in_a_callback_goes_on(own: Scheduler) -> None:
    """A callback may schedule and wait: the pool's own thread goes on meanwhile."""
    results: list[int] = []
    done = threading.Event()

    def then(first: Any) -> None:
        later = own.schedule("second", after=0.01, fn=tasks.square, args=(first.result(),))
        results.append(later.result(HANG_S))
        done.set()

    own.schedule("first", after=0, fn=tasks.square, args=(3,)).add_done_callback(then)
    assert done.wait(HANG_S)
    assert results == [81]


def test_scheduler_on_an_executor_leaves_it_open(default_pool: WorkStealingExecutor) -> None:
    """Closing the scheduler closes nothing else, and both share the workers."""
    with Scheduler(executor=default_pool) as s:
        handle = s.schedule("one", after=0, fn=tasks.pid)
        pids = {worker.pid for worker in default_pool.stats().workers}
        assert handle.result(HANG_S) in pids
        assert default_pool.submit(tasks.square, 4).result() == 16
    assert default_pool.state == "accepting"
    assert default_pool.submit(tasks.square, 5).result() == 25


def test_scheduler_on_an_executor_takes_its_order(gate: Gate) -> None:
    """Highest priority first, among what both have given it."""
    # So that most of what waits is in the queue, and not with a worker.
    settings = Settings(window=2)
    with (
        WorkStealingExecutor(2, settings=settings) as ex,
        Scheduler(executor=ex) as s,
    ):
        held = [ex.submit(gate.hold, n) for n in range(12)]
        gate.wait_for(2)
        low = s.schedule("low", after=-5, fn=gate.arrive, args=("low",), priority=-1)
        high = s.schedule("high", after=0, fn=gate.arrive, args=("high",), priority=7)
        gate.open()
        for future in held:
            future.result(HANG_S)
        low.result(HANG_S)
        high.result(HANG_S)
        order = gate.arrivals()
        assert order.index("high") < order.index("low")


def test_scheduler_on_an_executor_keeps_the_place_of_what_finds_no_room(gate: Gate) -> None:
    """Taken from the queue, and put back for want of an entry, a job is before those of lower priority."""
    settings = Settings(entries_per_worker=2)
    with WorkStealingExecutor(1, settings=settings) as ex, Scheduler(executor=ex) as s:
        for n in range(50):  # short ones, so that many are given ahead
            assert ex.submit(tasks.square, n).result(HANG_S) == n * n
        held = ex.submit(gate.hold, "held")
        gate.wait_for(1)
        handles = [
            s.schedule(name, after=0, fn=gate.arrive, args=(name,), priority=priority)
            for name, priority in (("first", 7), ("second", 7), ("third", 7), ("last", 3))
        ]
        gate.open()
        held.result(HANG_S)
        for handle in handles:
            handle.result(HANG_S)
        assert gate.arrivals() == ["held", "first", "second", "third", "last"]


def test_failures_of_jobs_are_logged_with_their_traceback(
    sched: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """At ERROR, when it happens, once, read or not: of most jobs nobody keeps the handle."""
    with caplog.at_level(logging.ERROR, logger="mpsched"):
        handle = sched.schedule("bad job", after=0, fn=timed.fail_before, args=(2, KeyError))
        assert isinstance(handle.exception(HANG_S), KeyError)
        del handle
        sched.close()
        wait_until(lambda: caplog.records, "the log record")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "bad job" in record.getMessage()
    assert record.exc_info is not None
    assert "fail_before" in str(record.exc_info[1].__cause__)  # type: ignore[union-attr]
