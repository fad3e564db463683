"""How jobs are run: places, limits, retries, deadlines, and what is said about them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import Scheduler, TaskHandle, WorkStealingExecutor
from mpsched.errors import DeadlineMissed, TaskTimeout, WorkerDied
from mpsched.scheduler import Backoff, Run
from tests.support import tasks, timed
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gates import Gate

HANG_S = 60.0
FAR = 10_000.0


def outcomes(s: Scheduler, task_id: object) -> list[str]:
    """Return the outcomes of an id's records."""
    return [run.outcome for run in s.history(task_id)]


def test_thread_jobs_change_the_programs_own_state(sched: Scheduler) -> None:
    """They run in this process, with the very objects, and are tasks there."""
    cache: dict[str, object] = {}

    def warm() -> None:
        task = mpsched.current_task()
        assert task is not None
        cache["thread"] = threading.current_thread()
        cache["cancelled"] = task.cancelled

    sched.schedule("warm", after=0, fn=warm, where="thread").result(HANG_S)
    assert cache["thread"] is not threading.current_thread()
    assert cache["cancelled"] is False
    assert mpsched.current_task() is None


def test_thread_jobs_do_not_wait_for_workers(gate: Gate) -> None:
    """The worker is busy and many jobs wait for it; one in a thread starts all the same."""
    with Scheduler(1) as s:
        held = [s.schedule(n, after=0, fn=gate.hold, args=(n,)) for n in range(50)]
        gate.wait_for(1)
        job = s.schedule("thread", after=0.01, fn=tasks.pid, where="thread")
        assert job.result(HANG_S) == tasks.pid()
        assert not any(handle.done() for handle in held)
        gate.open()
        for handle in held:
            handle.result(HANG_S)


def test_thread_jobs_are_bounded_and_taken_back(default_pool: WorkStealingExecutor) -> None:
    """At most `threads` run at once; one that waits for a thread can be cancelled."""
    free = threading.Event()
    with Scheduler(executor=default_pool, threads=2) as s:
        held = [s.schedule(n, after=0, fn=free.wait, args=(60,), where="thread") for n in range(2)]
        wait_until(lambda: all(handle.running() for handle in held), "two jobs")
        last = s.schedule("last", after=0, fn=tasks.nothing, where="thread")
        other = s.schedule("other", after=0, fn=tasks.identity, args=(1,), where="thread")
        assert s.cancel("last")
        assert not other.done()
        free.set()
        assert other.result(HANG_S) == 1
        assert last.cancelled()
        assert all(handle.result(HANG_S) for handle in held)


def test_thread_job_that_raises_anything_is_a_failure(sched: Scheduler) -> None:
    """SystemExit ends no thread, and a child that nobody joined fails its job."""

    def spawns() -> None:
        mpsched.spawn(int, "x")

    left = sched.schedule("exit", after=0, fn=timed.leave, where="thread")
    assert isinstance(left.exception(HANG_S), SystemExit)
    assert isinstance(
        sched.schedule("child", after=0, fn=spawns, where="thread").exception(HANG_S), ValueError
    )
    assert sched.schedule("on", after=0, fn=tasks.pid, where="thread").result(HANG_S) == tasks.pid()


def test_timeout_ends_the_worker() -> None:
    """TaskTimeout after the limit; the record says so, and the scheduler goes on."""
    with Scheduler(1) as s:
        handle = s.schedule("slow", after=0, fn=timed.sleep, args=(60.0,), timeout=0.1)
        assert isinstance(handle.exception(HANG_S), TaskTimeout)
        assert outcomes(s, "slow") == ["timed_out"]
        assert s.schedule("next", after=0, fn=tasks.square, args=(3,)).result(HANG_S) == 9


def test_timeout_with_grace_asks_first(own: Scheduler, gate: Gate) -> None:
    """With `grace` the signal comes first, and who obeys it keeps its worker."""
    handle = own.schedule(
        "polite", after=0, fn=gate.hold_until_cancelled, args=("p",), timeout=0.05, grace=60.0
    )
    assert handle.result(HANG_S) == "cancelled"
    raises = own.schedule(
        "raises", after=0, fn=gate.hold_until_raised, args=("r",), timeout=0.05, grace=60.0
    )
    assert raises.exception(HANG_S) is not None
    assert outcomes(own, "raises") == ["timed_out"]


def test_retries_count_attempts_with_a_record_each(own: Scheduler) -> None:
    """The handle has the last outcome; what raises is retried only if it is listed."""
    handle = own.schedule(
        "third",
        after=0,
        fn=timed.fail_before,
        args=(3, ValueError),
        retries=5,
        retry_on=(ValueError,),
        backoff=0.01,
    )
    assert handle.result(HANG_S) == 3
    assert handle.attempts == 3
    runs = own.history("third")
    assert [(run.attempt, run.outcome) for run in runs] == [
        (1, "failed"),
        (2, "failed"),
        (3, "completed"),
    ]
    assert {run.version for run in runs} == {handle.version}
    assert "attempt 2 after 0.0" in runs[0].why
    unlisted = own.schedule(
        "unlisted", after=0, fn=timed.fail_before, args=(3, KeyError), retries=5
    )
    assert isinstance(unlisted.exception(HANG_S), KeyError)
    assert outcomes(own, "unlisted") == ["failed"]


def test_retries_wait_for_their_backoff(own: Scheduler) -> None:
    """The pause grows, and no attempt starts before it is over."""
    handle = own.schedule(
        "pause",
        after=0,
        fn=timed.fail_before,
        args=(3, ValueError),
        retries=2,
        retry_on=ValueError,  # type: ignore[arg-type]  # one class is taken too
        backoff=Backoff(first=0.05, factor=2.0, jitter=0.0),
    )
    assert handle.result(HANG_S) == 3
    first, second, third = own.history("pause")
    assert second.started is not None
    assert third.started is not None
    assert second.started - first.finished >= 0.05
    assert third.started - second.finished >= 0.1


def test_retries_after_the_death_of_a_worker(tmp_path: Path) -> None:
    """A worker that dies fails its attempt; the next one runs in another, with the same arguments."""
    with Scheduler(1) as s:
        died = s.schedule("dies", after=0, fn=timed.die, args=(None,))
        assert isinstance(died.exception(HANG_S), WorkerDied)
        (run,) = s.history("dies")
        assert run.outcome == "failed"
        assert run.started is not None
        once = s.schedule(
            "once",
            after=0,
            fn=timed.die,
            args=(tmp_path / "died", bytes(200_000)),
            retries=2,
            backoff=0.01,
        )
        assert once.result(HANG_S) is None
        assert outcomes(s, "once") == ["failed", "completed"]


def test_deadline_that_is_over_misses(own: Scheduler, gate: Gate, tmp_path: Path) -> None:
    """It never starts: waiting for its time, for a worker, or dispatched to a busy one."""
    held = [own.schedule(("h", n), after=0, fn=gate.hold, args=(n,)) for n in range(40)]
    gate.wait_for(2)
    missed: list[TaskHandle[Any]] = [
        own.schedule("time", after=FAR, deadline=own.now() + 0.05, fn=tasks.nothing),
        own.schedule(
            "turn", after=0, deadline=own.now() + 0.05, fn=timed.mark, args=(tmp_path, "turn")
        ),
    ]
    for handle in missed:
        assert isinstance(handle.exception(HANG_S), DeadlineMissed)
    gate.open()
    for one in held:
        one.result(HANG_S)
    assert outcomes(own, "time") == outcomes(own, "turn") == ["missed"]
    status = own.status("turn")
    assert status is not None
    assert (status.state, status.outcome) == ("failed", "missed")
    assert timed.marked(tmp_path) == []


def test_deadline_of_what_is_dispatched_takes_it_back(
    own: Scheduler, gate: Gate, tmp_path: Path
) -> None:
    """It lies with a worker that is busy until after the deadline."""
    held = [own.schedule(("h", n), after=0, fn=gate.hold, args=(n,)) for n in range(2)]
    gate.wait_for(2)
    handle = own.schedule(
        "lies", after=0, deadline=own.now() + 0.05, fn=timed.mark, args=(tmp_path, "lies")
    )
    assert isinstance(handle.exception(HANG_S), DeadlineMissed)
    gate.open()
    for one in held:
        one.result(HANG_S)
    assert timed.marked(tmp_path) == []


def scheduled_in_time(s: Scheduler, gate: Gate) -> TaskHandle[Any]:
    """Schedule what has two seconds to come to the gate; wait until it has, or has missed its deadline."""
    handle = s.schedule("runs", after=0, deadline=s.now() + 2.0, fn=gate.hold, args=("runs",))
    wait_until(lambda: gate.arrivals() or handle.done(), "its start")
    return handle


def test_deadline_does_not_end_what_runs(own: Scheduler, gate: Gate) -> None:
    """Only what has not started is missed."""
    handle = scheduled_in_time(own, gate)
    while not gate.arrivals():
        # The machine was busy with something else for so long.
        assert isinstance(handle.exception(HANG_S), DeadlineMissed)
        handle = scheduled_in_time(own, gate)
    wait_until(lambda: own.now() > (handle.deadline or 0) + 0.05, "the deadline")
    assert not handle.done()
    gate.open()
    assert handle.result(HANG_S) == "runs"


def test_on_error_gets_failures_misses_and_timeouts(caplog: pytest.LogCaptureFixture) -> None:
    """In place of the log; what it raises itself is logged."""
    seen: list[tuple[Run, BaseException]] = []

    def note(run: Run, error: BaseException) -> None:
        seen.append((run, error))
        if run.task_id == "time":
            raise OSError("the pager is down")

    with Scheduler(1, on_error=note) as s:
        s.schedule("raises", after=0, fn=timed.fail_before, args=(2, KeyError)).exception(HANG_S)
        s.schedule("late", after=FAR, deadline=s.now(), fn=tasks.nothing).exception(HANG_S)
        s.schedule("fine", after=0, fn=tasks.nothing).result(HANG_S)
        s.schedule("time", after=0, fn=timed.sleep, args=(60,), timeout=0.05).exception(HANG_S)
    assert [(run.task_id, run.outcome, type(error)) for run, error in seen] == [
        ("raises", "failed", KeyError),
        ("late", "missed", DeadlineMissed),
        ("time", "timed_out", TaskTimeout),
    ]
    assert "scheduled as task 'raises', version 1, attempt 1" in seen[0][1].__notes__
    (record,) = caplog.records
    assert "on_error raised" in record.getMessage()


def test_misses_are_logged_at_error(sched: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    """A job that never ran is news."""
    sched.schedule("late", after=FAR, deadline=sched.now(), fn=tasks.nothing).exception(HANG_S)
    wait_until(lambda: caplog.records, "the log")
    assert caplog.records[0].levelno == logging.ERROR
    assert "'late'" in caplog.records[0].getMessage()


def test_callback_that_raises_is_logged_and_hurts_nobody(
    sched: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """The next job runs, and so do the other callbacks."""
    called = threading.Event()
    handle = sched.schedule("cb", after=0.02, fn=tasks.nothing)
    handle.add_done_callback(lambda _: 1 // 0)
    handle.add_done_callback(lambda _: called.set())
    assert called.wait(HANG_S)
    assert sched.schedule("next", after=0, fn=tasks.square, args=(2,)).result(HANG_S) == 4
    assert "callback" in caplog.records[0].getMessage()


def test_history_tells_of_each_attempt(own: Scheduler) -> None:
    """When it was due, started and finished, where, and how late; bounded, oldest first."""
    due = own.now() + 0.02
    handle = own.schedule("h", due, 0, timed.sleep, args=(0.01,))
    handle.result(HANG_S)
    (run,) = own.history("h")
    assert run[:4] == ("h", handle.version, 1, due)
    assert run.started is not None
    assert run.lateness is not None
    assert run.lateness >= 0
    assert run.finished - run.started >= 0.01
    assert run.finished <= own.now()
    assert run.worker == handle.worker
    assert run.worker in {0, 1}
    assert run.occurrence == ("h", handle.version, due)
    assert handle.seconds is not None
    assert handle.seconds >= 0.01


def test_history_has_the_end_of_what_died(own: Scheduler, gate: Gate) -> None:
    """A killed worker measures nothing: the record has the moment at which its end was noticed."""
    handle: Any = own.schedule("dies", after=0, fn=timed.die_after, args=(gate,))
    gate.wait_for(1)
    seen = own.now()
    gate.open()
    assert isinstance(handle.exception(HANG_S), mpsched.errors.WorkerDied)
    (run,) = own.history("dies")
    assert run.started is not None
    assert run.started <= seen <= run.finished <= own.now()


def test_history_and_status_are_bounded(default_pool: WorkStealingExecutor) -> None:
    """A scheduler that runs for ever does not grow."""
    with Scheduler(executor=default_pool, history=10) as s:
        handles = [s.schedule(n, after=0, fn=tasks.nothing) for n in range(30)]
        for handle in handles:
            handle.result(HANG_S)
        assert len(s.history()) == 10
        assert s.metrics().outcomes == {"completed": 30}


def test_status_of_a_life(own: Scheduler, gate: Gate) -> None:
    """pending, running, completed, each as it is seen from outside."""
    handle = own.schedule("life", after=FAR, priority=3, fn=gate.hold, args=("life",))
    status = own.status("life")
    assert status is not None
    assert (status.state, status.claimed, status.priority) == ("pending", False, 3)
    assert not handle.running()
    own.reschedule("life", after=0)
    gate.wait_for(1)
    status = own.status("life")
    assert status is not None
    assert status.state == "running"
    assert status.running == (handle.version,)
    assert handle.running()
    gate.open()
    handle.result(HANG_S)
    status = own.status("life")
    assert status is not None
    assert (status.state, status.outcome, status.running) == ("completed", "completed", ())


def test_metrics_count_what_is_there(default_pool: WorkStealingExecutor, gate: Gate) -> None:
    """pending, ready, dispatched, running, and the classes of lateness."""
    with Scheduler(2) as s:
        held = [s.schedule(("h", n), after=0, fn=gate.hold, args=(n,)) for n in range(30)]
        later = [s.schedule(("l", n), after=FAR, fn=tasks.nothing) for n in range(5)]
        gate.wait_for(2)
        metrics = s.metrics()
        assert metrics.running == 2
        assert metrics.pending == metrics.ready + 5
        assert metrics.ready + metrics.dispatched + metrics.running == 30
        assert metrics.ready > 0
        assert metrics.oldest_ready > 0
        assert metrics.entries == metrics.pending
        assert metrics.stale_ratio == 0
        assert s.cancel(("l", 0))
        assert s.metrics().stale_ratio > 0
        gate.open()
        for handle in held:
            handle.result(HANG_S)
        metrics = s.metrics()
        assert metrics.peak_active == 2
        assert sum(metrics.lateness) == 30
        assert len(metrics.lateness) == len(metrics.lateness_bounds) + 1
        assert metrics.lateness_below(0.0) <= metrics.lateness_below(1.0) < float("inf")
        assert metrics.outcomes == {"completed": 30, "cancelled": 1}
        assert not later[1].done()


def test_ready_orders_rule_what_waits_for_workers(gate: Gate) -> None:
    """With "priority" it comes before the time; with groups they take turns by weight."""
    for options, expected in (
        ({"ready_order": "priority"}, ["c", "b", "a"]),
        ({"ready_order": "run_at"}, ["a", "b", "c"]),
    ):
        folder = type(gate)(gate.folder / options["ready_order"])
        with Scheduler(1, **options) as s:  # type: ignore[arg-type]
            # More than a worker is given ahead, so that the rest waits in order.
            held = [
                s.schedule(n, after=-50, fn=folder.hold, args=(n,), priority=9) for n in range(3)
            ]
            wait_until(lambda s=s: s.metrics().dispatched == 2, "a full window")  # type: ignore[misc]
            jobs: list[TaskHandle[Any]] = [
                s.schedule(name, after=n - 3, fn=folder.arrive, args=(name,), priority=n)
                for n, name in enumerate("abc")
            ]
            folder.open()
            for one in jobs:
                one.result(HANG_S)
            assert all(one.result(HANG_S) is not None for one in held)
            assert [name for name in folder.arrivals() if name in "abc"] == expected


def test_jobs_at_one_instant_start_in_the_order_of_their_schedules(gate: Gate) -> None:
    """One worker, many due at the same time: first come, first served."""
    with Scheduler(1) as s:
        at = s.now() + 0.1
        jobs = [s.schedule(n, at, 0, gate.arrive, args=(n,)) for n in range(300)]
        for job in jobs:
            job.result(HANG_S)
    assert [int(name) for name in gate.arrivals()] == [*range(300)]


def test_job_spawns_children_in_its_pool(own: Scheduler) -> None:
    """A scheduled task is a root like any other: it can fork and join."""
    assert own.schedule("fork", after=0, fn=tasks_fib, args=(12,)).result(HANG_S) == 144


def tasks_fib(n: int) -> int:
    """Compute a Fibonacci number by spawning. In a worker."""
    if n < 2:
        return n
    child = mpsched.spawn(tasks_fib, n - 1)
    second: int = tasks_fib(n - 2)
    first: int = child.join()
    return first + second


def test_executor_that_is_shut_down_fails_what_becomes_due() -> None:
    """The scheduler says so, in each handle, and still closes."""
    ex = WorkStealingExecutor(1)
    with Scheduler(executor=ex) as s:
        later = s.schedule("later", after=FAR, fn=tasks.nothing)
        assert s.schedule("now", after=0, fn=tasks.square, args=(2,)).result(HANG_S) == 4
        ex.shutdown()
        assert s.reschedule("later", after=0)
        assert isinstance(later.exception(HANG_S), mpsched.errors.SchedulerClosed)
        with pytest.raises(mpsched.errors.SchedulerClosed):
            s.schedule("after", after=0, fn=tasks.nothing)
        job = s.schedule("thread", after=0, fn=tasks.pid, where="thread")
        assert job.result(HANG_S) == tasks.pid()


def test_executor_that_cancels_its_futures_ends_the_handles(gate: Gate) -> None:
    """What was dispatched and is cancelled with the executor is cancelled here too."""
    ex = WorkStealingExecutor(1)
    with Scheduler(executor=ex) as s:
        held = s.schedule("held", after=0, fn=gate.hold)
        gate.wait_for(1)
        waits: list[Any] = [s.schedule(n, after=0, fn=tasks.nothing) for n in range(20)]
        ex.shutdown(wait=False, cancel_futures=True)
        wait_until(lambda: all(one.done() for one in waits), "the end of all")
        assert all(one.cancelled() for one in waits)
        gate.open()
        assert held.result(HANG_S) == "task"
