"""What users do that nobody expects: only the one who does it is hurt, and is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import Scheduler, WorkStealingExecutor
from mpsched.errors import DeadlineMissed, SchedulerClosed
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from mpsched import TaskHandle
    from tests.support.gates import Gate

HANG_S = 60.0
FAR = 10_000.0


class Rude:
    """An id whose repr raises."""

    def __repr__(self) -> str:
        raise ValueError("no")


class Moody:
    """An id whose hash changes."""

    def __init__(self) -> None:
        self.mood = 1

    def __hash__(self) -> int:
        return self.mood

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moody) and self.mood == other.mood


class NotedError(Exception):
    """An error that takes no notes."""

    def add_note(self, _text: str) -> None:
        """Refuse it."""
        raise RuntimeError("no notes")


def works(s: Scheduler) -> bool:
    """Whether the scheduler runs jobs, in workers and in threads."""
    return (
        s.schedule("w", after=0, fn=tasks.square, args=(3,)).result(HANG_S) == 9
        and s.schedule("t", after=0, fn=tasks.square, args=(4,), where="thread").result(HANG_S)
        == 16
    )


def test_waiting_for_a_handle_for_too_short_a_time_is_a_timeout(sched: Scheduler) -> None:
    """TimeoutError, which names the task; the task goes on."""
    handle = sched.schedule("far", after=FAR, fn=tasks.nothing)
    with pytest.raises(TimeoutError, match="'far'"):
        handle.result(0.01)
    with pytest.raises(TimeoutError, match="'far'"):
        handle.exception(0)
    assert not handle.done()
    assert handle.cancel()


def test_id_whose_repr_raises_fails_as_any_other(sched: Scheduler) -> None:
    """A failure and a miss are told without it."""
    bad = sched.schedule(Rude(), after=0, fn=int, args=("x",))
    assert isinstance(bad.exception(HANG_S), ValueError)
    late = sched.schedule(Rude(), after=FAR, deadline=sched.now(), fn=tasks.nothing)
    assert isinstance(late.exception(HANG_S), DeadlineMissed)
    assert "Rude" in late.describe()
    assert works(sched)


def test_id_whose_hash_changes_concerns_itself_alone(default_pool: WorkStealingExecutor) -> None:
    """It fails, and says why; all others go on, and the scheduler closes."""
    with Scheduler(executor=default_pool, on_error=lambda *_: None) as s:
        moody = Moody()
        handle = s.schedule(moody, after=0.05, fn=tasks.identity, args=(1,))
        moody.mood = 2
        error = handle.exception(HANG_S)
        assert error is None or "keep its hash" in str(error)
        assert works(s)
        assert s.close(5, kill_after=1).running == ()


def test_error_that_takes_no_notes_fails_its_job_alone(sched: Scheduler) -> None:
    """In a thread, where the very object arrives."""

    def fail() -> None:
        raise NotedError

    handle = sched.schedule("noted", after=0, fn=fail, where="thread")
    assert isinstance(handle.exception(HANG_S), NotedError)
    assert works(sched)


def test_callbacks_that_exit_end_nobody(default_pool: WorkStealingExecutor) -> None:
    """SystemExit of `on_error`, and of a done-callback in a thread of jobs, is logged."""

    def leave(*_args: object) -> None:
        raise SystemExit(4)

    with Scheduler(executor=default_pool, on_error=leave, threads=1) as s:
        free = threading.Event()
        bad = s.schedule("bad", after=0, fn=int, args=("x",))
        assert isinstance(bad.exception(HANG_S), ValueError)
        waits = s.schedule("exit", after=0, fn=free.wait, args=(60,), where="thread")
        waits.add_done_callback(leave)
        free.set()
        assert waits.result(HANG_S)
        assert works(s)


@pytest.mark.parametrize("first", ["thread", "worker"])
def test_version_that_was_replaced_is_not_retried(sched: Scheduler, gate: Gate, first: Any) -> None:
    """Also when the new one runs in the other place: its failure is its last."""
    old = sched.schedule(
        "k", after=0, fn=fail_behind, args=(gate,), where=first, retries=3,
        retry_on=(ValueError,), backoff=0.001,
    )  # fmt: skip
    gate.wait_for(1)
    other = "worker" if first == "thread" else "thread"
    new = sched.schedule("k", after=FAR, fn=tasks.nothing, where=other)  # type: ignore[arg-type]
    gate.open()
    assert isinstance(old.exception(HANG_S), ValueError)
    assert old.attempts == 1
    assert [run.outcome for run in sched.history("k")] == ["failed"]
    assert new.cancel()


def fail_behind(gate: Gate) -> None:
    """Arrive, wait for the opening, raise."""
    gate.hold()
    raise ValueError("behind the gate")


def test_what_a_busy_section_delays_is_prevented_all_the_same(default_pool: Any) -> None:
    """A cancel waits for whoever dispatches; it does not take a waiting version for started."""
    with Scheduler(executor=default_pool) as s:
        section = default_pool._pool.dispatcher.section
        while not section.try_enter():  # here: a section is held by a frame that runs
            time.sleep(0.001)
        try:
            handle = s.schedule("lies", after=0, fn=tasks.nothing)
            answers: list[Any] = []
            canceller = threading.Thread(target=lambda: answers.append(s.cancel("lies")))
            canceller.start()
            assert not handle.done()
            canceller.join(0.2)
            assert canceller.is_alive()
        finally:
            section.leave()
        canceller.join(HANG_S)
        assert [bool(answer) for answer in answers] == [True]
        assert handle.cancelled()


def test_version_that_is_taken_back_after_it_was_taken_for_started_ends(
    default_pool: Any,
) -> None:
    """The pool did not answer in time, so it counts as running; later it is had after all."""
    with Scheduler(executor=default_pool) as s:
        section = default_pool._pool.dispatcher.section
        while not section.try_enter():  # here: a section is held by a frame that runs
            time.sleep(0.001)
        try:
            old: TaskHandle[Any] = s.schedule("x", after=0, fn=tasks.nothing)
            # This thread holds the section itself, so its request is given up after a moment.
            new = s.schedule("x", after=FAR, fn=tasks.nothing)
            assert not old.done()
            assert not old.cancel()
        finally:
            section.leave()
        wait_until(old.done, "the end of the old one")
        assert new.cancel()
        assert s.close(10).running == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"args": "ab"}, r"args=\(x,\)"),
        ({"args": 5}, r"args=\(x,\)"),
        ({"kwargs": {1: 2}}, "kwargs must be a dict"),
        ({"kwargs": [("a", 1)]}, "kwargs must be a dict"),
        ({"deadline": 5}, "timedelta"),
    ],
)
def test_slips_in_arguments_are_refused_with_the_way_out(
    sched: Scheduler, wrong: dict[str, Any], message: str
) -> None:
    """At the call, not in a worker later."""
    with pytest.raises((TypeError, ValueError), match=message):
        sched.schedule("slip", after=0, fn=tasks.nothing, **wrong)
    with pytest.raises(TypeError, match="task_id must be hashable"):
        sched.schedule([], after=0, fn=tasks.nothing)  # type: ignore[arg-type]


def test_times_to_wait_are_checked(sched: Scheduler) -> None:
    """Not a number, text: named, and no wait spins."""
    with Scheduler(workers=0) as pull:
        calls: list[Any] = [pull.next, pull.wait, pull.close, sched.wait, sched.close]
        for call in calls:
            for bad in (float("nan"), "x"):
                with pytest.raises((TypeError, ValueError), match="timeout"):
                    call(bad)
    with pytest.raises(ValueError, match="kill_after"):
        sched.close(0, kill_after=float("inf"))


def test_executor_that_is_shut_down_is_refused() -> None:
    """When the scheduler is made, not when the first job is due."""
    ex = WorkStealingExecutor(1)
    ex.shutdown()
    with pytest.raises(SchedulerClosed):
        Scheduler(executor=ex)


def test_close_says_what_it_drops(
    default_pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """A block that is left before its timers are due warns, unless it was told to drop them."""
    with Scheduler(executor=default_pool) as s:
        s.schedule("later", after=FAR, fn=tasks.nothing)
    assert "1 scheduled tasks were not due" in caplog.records[0].getMessage()
    caplog.clear()
    s = Scheduler(executor=default_pool)
    s.schedule("later", after=FAR, fn=tasks.nothing)
    s.close(queued="cancel")
    assert caplog.records == []
