"""Pull mode: the caller runs the work; timed code on a clock that a test moves."""

from __future__ import annotations

import concurrent.futures as cf
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Due, Scheduler, Wait
from mpsched.errors import DeadlineMissed, SchedulerClosed, StaleVersion
from mpsched.testing import ManualClock
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HANG_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock(wall=datetime(2026, 3, 1, tzinfo=UTC))


@pytest.fixture
def s(clock: ManualClock) -> Iterator[Scheduler]:
    """A scheduler in pull mode on that clock."""
    with Scheduler(workers=0, clock=clock) as made:
        yield made


def take(s: Scheduler, timeout: float | None = 0) -> Due:
    """Take what is due; there must be something."""
    due = s.next(timeout)
    assert isinstance(due, Due), due
    return due


def test_next_answers_due_or_how_long_or_nothing(s: Scheduler, clock: ManualClock) -> None:
    """Due, Wait(seconds) while anything is scheduled, None if nothing is."""
    assert s.next() is None
    handle = s.schedule("a", after=5, priority=2, fn=tasks.add, args=(1,), kwargs={"scale": 3})
    assert s.next() == Wait(5.0)
    clock.advance(5)
    due = take(s)
    assert due[:4] == ("a", handle.version, clock.monotonic(), 2)
    assert (due.fn, due.args, due.kwargs) == (tasks.add, (1,), {"scale": 3})
    assert s.next() is None
    assert handle.running()
    assert not handle.done()
    s.complete(due, 7)
    assert handle.result(0) == 7
    (run,) = s.history("a")
    assert (run.outcome, run.lateness, run.worker) == ("completed", 0.0, None)


def test_next_takes_earliest_then_highest_then_first(s: Scheduler, clock: ManualClock) -> None:
    """Order: time, then priority, then submission."""
    for name, after, priority in (("d", 2, 0), ("c", 1, 0), ("b", 1, 5), ("e", 2, 0), ("a", 0, -9)):
        s.schedule(name, after=after, priority=priority, fn=tasks.nothing)
    clock.advance(10)
    order = []
    while isinstance(due := s.next(), Due):
        order.append(due.task_id)
        s.complete(due)
    assert order == ["a", "b", "c", "d", "e"]


def test_fail_goes_to_the_handle_and_is_reported(
    s: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """As a failure in a worker would."""
    handle = s.schedule("f", after=0, fn=tasks.nothing)
    s.fail(take(s), KeyError("broken"))
    assert isinstance(handle.exception(0), KeyError)
    assert caplog.records[0].levelno == logging.ERROR
    with pytest.raises(TypeError, match="exception"):
        s.fail(Due("f", 1, 0.0, 0, 1, tasks.nothing, (), None), "broken")  # type: ignore[arg-type]


def test_an_attempt_is_ended_once(s: Scheduler) -> None:
    """Again, by whichever of the two, is StaleVersion, and changes nothing."""
    handle = s.schedule("once", after=0, fn=tasks.nothing)
    due = take(s)
    s.complete(due, 1)
    with pytest.raises(StaleVersion):
        s.complete(due, 2)
    with pytest.raises(StaleVersion):
        s.fail(due, ValueError())
    assert handle.result(0) == 1
    with pytest.raises(TypeError, match="Due"):
        s.complete("once", 1)  # type: ignore[arg-type]


def test_late_result_of_an_old_version_goes_to_its_own_handle(s: Scheduler) -> None:
    """It is not stale: that attempt was open. The new version is as it was."""
    old = s.schedule("x", after=0, fn=tasks.identity)
    first = take(s)
    new = s.schedule("x", after=0, fn=tasks.identity)
    second = take(s)
    s.complete(second, "new")
    s.complete(first, "old")
    assert (old.result(0), new.result(0)) == ("old", "new")
    status = s.status("x")
    assert status is not None
    assert status.version == new.version
    assert [run.version for run in s.history("x")] == [new.version, old.version]


def test_retries_give_another_due_of_the_same_version(s: Scheduler, clock: ManualClock) -> None:
    """The old attempt's Due is stale then."""
    handle = s.schedule(
        "r", after=0, fn=tasks.nothing, retries=1, retry_on=(ValueError,), backoff=3
    )
    first = take(s)
    s.fail(first, ValueError())
    assert not handle.done()
    wait = s.next()
    assert isinstance(wait, Wait)
    clock.advance(3.5)
    second = take(s)
    assert (second.version, second.attempt) == (first.version, 2)
    with pytest.raises(StaleVersion):
        s.complete(first)
    s.complete(second, "second")
    assert handle.result(0) == "second"


def test_cancel_of_what_the_caller_runs_asks(s: Scheduler) -> None:
    """REQUESTED, seen in its status; it is over when the caller says so."""
    handle = s.schedule("c", after=0, fn=tasks.nothing)
    due = take(s)
    assert s.cancel("c") is CancelResult.REQUESTED
    status = s.status("c")
    assert status is not None
    assert status.cancel_requested
    assert not handle.done()
    s.complete(due, "ended")
    assert handle.result(0) == "ended"


def test_deadline_is_missed_in_pull_mode_too(s: Scheduler, clock: ManualClock) -> None:
    """What is taken after its deadline is not handed out."""
    handle = s.schedule("d", after=1, deadline=timedelta(seconds=2), fn=tasks.nothing)
    clock.advance(5)
    assert s.next() is None
    assert isinstance(handle.exception(0), DeadlineMissed)
    assert [run.outcome for run in s.history("d")] == ["missed"]


def test_next_with_a_timeout_returns_the_hint() -> None:
    """After `timeout` seconds, on the machine's clock."""
    with Scheduler(workers=0) as s:
        assert s.next(0.01) is None
        s.schedule("far", after=1000, fn=tasks.nothing)
        wait = s.next(0.01)
        assert isinstance(wait, Wait)
        assert 990 < wait.seconds < 1000
        s.schedule("soon", after=0.05, fn=tasks.nothing)
        assert take(s, None).task_id == "soon"


def test_next_is_woken_by_what_changes() -> None:
    """An earlier task, a replacement, a move and a close end the wait at once."""
    with Scheduler(workers=0) as s:
        got: list[Any] = []

        def pull() -> None:
            try:
                got.append(s.next(HANG_S))
            except SchedulerClosed as closed:
                got.append(closed)

        far = s.schedule("far", after=1000, fn=tasks.nothing)
        steps = (
            lambda: s.schedule("new", after=0, fn=tasks.nothing),
            lambda: s.schedule("far", after=-1, fn=tasks.nothing),
            lambda: s.reschedule("later", after=0),
            s.close,
        )
        s.schedule("later", after=2000, fn=tasks.nothing)
        for step in steps:
            puller = threading.Thread(target=pull)
            puller.start()
            wait_until(lambda: s._desk.changed._waiters, "the wait")  # type: ignore[attr-defined]
            step()
            puller.join(HANG_S)
            assert not puller.is_alive()
        assert [getattr(one, "task_id", None) for one in got] == ["new", "far", "later", None]
        assert isinstance(got[3], SchedulerClosed)
        assert far.cancelled()
        for due in got[:3]:
            s.complete(due)
    assert s.state == "closed"


def test_next_is_woken_by_a_manual_clock(s: Scheduler, clock: ManualClock) -> None:
    """Whoever waits in `next` on such a clock waits for its moves."""
    s.schedule("hour", after=3600, fn=tasks.nothing)
    got: list[Any] = []
    puller = threading.Thread(target=lambda: got.append(s.next(HANG_S)))
    puller.start()
    wait_until(lambda: s._desk.changed._waiters, "the wait")  # type: ignore[attr-defined]
    clock.advance(3600)
    puller.join(HANG_S)
    assert got[0].task_id == "hour"
    s.complete(got[0])


def test_pull_by_many_threads_hands_each_out_once() -> None:
    """Eight threads pull 2,000 tasks; each is run once."""
    with Scheduler(workers=0) as s:
        handles = [s.schedule(n, after=0, fn=tasks.square, args=(n,)) for n in range(2000)]
        ran: list[int] = []

        def work() -> None:
            while isinstance(due := s.next(), Due):
                ran.append(due.args[0])
                s.complete(due, due.fn(*due.args))

        with cf.ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(work) for _ in range(8)]:
                future.result(HANG_S)
        assert sorted(ran) == [*range(2000)]
        assert [handle.result(0) for handle in handles] == [n * n for n in range(2000)]


def test_run_due_runs_what_is_due_in_the_calling_thread(s: Scheduler, clock: ManualClock) -> None:
    """In order; a failure is the handle's, and what is scheduled meanwhile is run too."""
    ran: list[Any] = []

    def again() -> None:
        ran.append(("again", threading.current_thread()))
        s.schedule("more", after=0, fn=ran.append, args=("more",))

    # The place makes no difference where the caller runs the work.
    s.schedule("again", after=1, fn=again, where="thread")
    bad = s.schedule("bad", after=2, fn=int, args=("no number",))
    s.schedule("far", after=100, fn=tasks.nothing)
    assert s.run_due() == 0
    clock.advance(10)
    assert s.run_due() == 3
    assert ran == [("again", threading.current_thread()), "more"]
    assert isinstance(bad.exception(0), ValueError)


def test_pull_and_push_are_told_apart(s: Scheduler, sched: Scheduler) -> None:
    """`next` and the like raise with workers; what only workers can do is refused without."""
    with pytest.raises(RuntimeError, match="workers=0"):
        sched.next()
    with pytest.raises(RuntimeError, match="workers=0"):
        sched.run_due()
    with pytest.raises(RuntimeError, match="workers=0"):
        sched.fail(Due("f", 1, 0.0, 0, 1, tasks.nothing, (), None), ValueError())
    with pytest.raises(ValueError, match="workers=0"):
        s.schedule("t", after=0, fn=tasks.nothing, timeout=3)


def test_wall_clock_jumps_move_calendar_tasks_only(s: Scheduler, clock: ManualClock) -> None:
    """Set forward and back, and over a suspend: `after=` keeps its span, `at=` its instant."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    s.schedule("noon", at=noon, fn=tasks.nothing)
    s.schedule("span", after=3600, fn=tasks.nothing)
    clock.jump_wall(-3600)
    assert s.next() == Wait(3600.0)
    clock.jump_wall(3600 + 12 * 3600)
    assert take(s).task_id == "noon"
    assert s.metrics().clock_jumps == 2
    assert s.next() == Wait(3600.0)
    s.schedule("one", at=clock_now(clock) + timedelta(hours=1), fn=tasks.nothing)
    clock.suspend(3600)
    assert take(s).task_id == "one"
    assert s.next() == Wait(3600.0)


def clock_now(clock: ManualClock) -> datetime:
    """Return the wall clock as a datetime."""
    return datetime.fromtimestamp(clock.wall(), UTC)


def test_cancelled_tasks_drop_what_they_hold(s: Scheduler) -> None:
    """100,000 replacements of one id keep one payload, and a heap that is no larger than it must be."""
    import gc
    import weakref

    class Big:
        def run(self) -> None:
            """Do nothing."""

    refs = []
    for _ in range(20_000):
        big = Big()
        refs.append(weakref.ref(big))
        s.schedule("k", after=86_400, fn=big.run)
        del big
    metrics = s.metrics()
    assert metrics.pending == 1
    assert metrics.entries <= 200
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 1


def test_close_in_pull_mode_ends_what_waits(s: Scheduler, clock: ManualClock) -> None:
    """What is taken may still be completed; then it is closed."""
    running = s.schedule("running", after=0, fn=tasks.nothing)
    due = take(s)
    ready = s.schedule("ready", after=0, fn=tasks.nothing)
    later = s.schedule("later", after=10, fn=tasks.nothing)
    report = s.close(queued="cancel")
    assert (report.state, report.cancelled) == ("draining", 2)
    assert report.running == (running.describe(),)
    assert ready.cancelled()
    assert later.cancelled()
    with pytest.raises(SchedulerClosed):
        s.next()
    s.complete(due, 1)
    assert running.result(0) == 1
    assert s.state == "closed"
    assert s.wait(0)
    assert s.close().state == "closed"


def test_leaving_the_block_in_pull_mode_ends_what_is_due() -> None:
    """Nobody would run it any more; a job that closes ends `run_due`, which says how many it ran."""
    with Scheduler(workers=0) as s:
        due = s.schedule("due", after=0, fn=tasks.nothing)
    assert due.cancelled()
    assert s.state == "closed"
    with Scheduler(workers=0) as s:
        s.schedule("closes", after=0, fn=s.close, kwargs={"queued": "cancel"})
        s.schedule("never", after=0, fn=tasks.nothing)
        assert s.run_due() == 1
    assert s.state == "closed"


def test_error_that_is_raised_again_and_again_has_one_note(s: Scheduler) -> None:
    """The very object, as in a thread or in pull mode, does not grow."""
    error = ValueError("the same")
    for n in range(5):
        handle = s.schedule(n, after=0, fn=tasks.nothing)
        s.fail(take(s), error)
        assert handle.exception(0) is error
    assert len(error.__notes__) == 1
