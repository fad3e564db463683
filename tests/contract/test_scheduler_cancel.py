"""Cancel, replace, reschedule: pending, dispatched and running versions."""

from __future__ import annotations

import concurrent.futures as cf
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Scheduler
from mpsched.errors import TaskCancelled
from mpsched.testing import ManualClock
from tests.support import tasks, timed
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from mpsched import WorkStealingExecutor
    from tests.support.gates import Gate

HANG_S = 60.0
FAR = 10_000.0


def occupy(s: Scheduler, gate: Gate, count: int = 2) -> list[Any]:
    """Hold both workers, with `count` jobs."""
    held = [s.schedule(("hold", n), after=0, fn=gate.hold, args=(n,)) for n in range(count)]
    gate.wait_for(min(count, 2))
    return held


def outcomes(s: Scheduler, task_id: object) -> list[str]:
    """Return the outcomes of an id's records."""
    return [run.outcome for run in s.history(task_id)]


def test_cancel_before_its_time_prevents(own: Scheduler) -> None:
    """True, the handle is cancelled, and a second one comes too late."""
    handle = own.schedule("c1", after=FAR, fn=tasks.nothing)
    assert own.cancel("c1") is CancelResult.PREVENTED
    assert handle.cancelled()
    with pytest.raises(cf.CancelledError):
        handle.result(HANG_S)
    assert own.cancel("c1") is CancelResult.TOO_LATE
    assert own.cancel("never") is CancelResult.UNKNOWN
    status = own.status("c1")
    assert status is not None
    assert status.state == "cancelled"
    assert outcomes(own, "c1") == ["cancelled"]


def test_cancel_result_is_true_only_if_it_never_runs() -> None:
    """So `if s.cancel(x):` means what a reader thinks."""
    assert [one for one in CancelResult if one] == [CancelResult.PREVENTED]


def test_cancel_of_what_is_dispatched_prevents(own: Scheduler, gate: Gate, tmp_path: Path) -> None:
    """It lies with a busy worker, and is taken back."""
    held = occupy(own, gate)
    handle = own.schedule("lies", after=0, fn=timed.mark, args=(tmp_path, "lies"))
    status = own.status("lies")
    assert status is not None
    assert (status.state, status.claimed) == ("pending", True)
    assert own.cancel("lies") is CancelResult.PREVENTED
    assert handle.cancelled()
    gate.open()
    for one in held:
        one.result(HANG_S)
    assert timed.marked(tmp_path) == []


def test_cancel_of_a_running_one_asks_it(own: Scheduler, gate: Gate) -> None:
    """REQUESTED: its signal is set; it is over when its function has returned, and says so."""
    handle = own.schedule("runs", after=0, fn=gate.hold_until_cancelled, args=("runs",))
    gate.wait_for(1)
    assert own.cancel("runs") is CancelResult.REQUESTED
    assert not handle.cancel()
    assert handle.result(HANG_S) == "cancelled"
    assert handle.cancel_requested
    status = own.status("runs")
    assert status is not None
    assert (status.state, status.cancel_requested) == ("completed", True)
    assert own.cancel("runs") is CancelResult.TOO_LATE


def test_cancel_that_is_obeyed_by_raising_ends_cancelled(
    own: Scheduler, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """`raise_if_cancelled` makes it cancelled in status and history, and nothing is logged."""
    handle = own.schedule("obeys", after=0, fn=gate.hold_until_raised, args=("obeys",))
    gate.wait_for(1)
    assert own.cancel("obeys") is CancelResult.REQUESTED
    assert isinstance(handle.exception(HANG_S), TaskCancelled)
    assert not handle.cancelled()
    assert outcomes(own, "obeys") == ["cancelled"]
    assert caplog.records == []


def test_cancel_of_a_running_thread_job_asks_it(sched: Scheduler, gate: Gate) -> None:
    """The same in a thread of this process."""
    handle = sched.schedule("th", after=0, fn=timed.ask_for_itself, args=(gate,), where="thread")
    gate.wait_for(1)
    wait_until(handle.running, "the job")
    assert sched.cancel("th") is CancelResult.REQUESTED
    assert handle.result(HANG_S) is True


def test_cancel_kills_if_that_was_asked_for(gate: Gate) -> None:
    """`on_cancel="kill"` ends the worker, and the scheduler goes on."""
    with Scheduler(1) as s:
        handle = s.schedule("deaf", after=0, fn=gate.hold, args=("deaf",), on_cancel="kill")
        gate.wait_for(1)
        assert s.cancel("deaf") is CancelResult.REQUESTED
        assert isinstance(handle.exception(HANG_S), cf.CancelledError)
        assert outcomes(s, "deaf") == ["cancelled"]
        assert s.schedule("after", after=0, fn=tasks.square, args=(3,)).result(HANG_S) == 9


def test_replace_before_its_time(own: Scheduler) -> None:
    """The old version never starts, its handle is cancelled, its record says why."""
    first = own.schedule("r1", after=FAR, fn=tasks.identity, args=(1,))
    second = own.schedule("r1", after=0, fn=tasks.identity, args=(2,))
    assert second.version > first.version
    assert second.result(HANG_S) == 2
    assert first.cancelled()
    assert outcomes(own, "r1") == ["superseded", "completed"]


def test_replace_of_what_is_dispatched(own: Scheduler, gate: Gate, tmp_path: Path) -> None:
    """The old version lies with a busy worker; only the new one runs."""
    held = occupy(own, gate)
    old = own.schedule("x", after=0, fn=timed.mark, args=(tmp_path, "old"))
    new = own.schedule("x", after=0, fn=timed.mark, args=(tmp_path, "new"))
    assert old.cancelled()
    gate.open()
    assert new.result(HANG_S) == "new"
    for one in held:
        one.result(HANG_S)
    assert timed.marked(tmp_path) == ["new"]


def test_replace_from_worker_to_thread_and_back(sched: Scheduler) -> None:
    """The place is the version's own; an id has one valid version over both."""
    first = sched.schedule("place", after=FAR, fn=tasks.pid)
    second = sched.schedule("place", after=FAR, fn=tasks.pid, where="thread")
    third = sched.schedule("place", after=0, fn=tasks.pid)
    assert third.result(HANG_S) != tasks.pid()
    assert first.cancelled()
    assert second.cancelled()
    fourth = sched.schedule("place", after=0, fn=tasks.pid, where="thread")
    assert fourth.result(HANG_S) == tasks.pid()
    assert outcomes(sched, "place") == ["superseded", "superseded", "completed", "completed"]


def test_if_exists_keeps_or_refuses(own: Scheduler) -> None:
    """With "keep" it returns the handle there is; "error" raises; neither changes anything."""
    first = own.schedule("e", after=FAR, fn=tasks.nothing)
    assert own.schedule("e", after=0, fn=tasks.nothing, if_exists="keep") is first
    with pytest.raises(ValueError, match=r"'e'.*if_exists='error'"):
        own.schedule("e", after=0, fn=tasks.nothing, if_exists="error")
    assert not first.done()
    assert first.cancel()
    again = own.schedule("e", after=0, fn=tasks.identity, args=(5,), if_exists="error")
    assert again.result(HANG_S) == 5


def test_replace_while_running_lets_it_finish(own: Scheduler, gate: Gate) -> None:
    """Each result goes to its own handle; the old one's is in the history, and is not asked to stop."""
    old = own.schedule("f", after=0, fn=gate.hold, args=("old",))
    gate.wait_for(1)
    new = own.schedule("f", after=0, fn=tasks.identity, args=("new",))
    assert new.result(HANG_S) == "new"
    status = own.status("f")
    assert status is not None
    assert (status.version, status.state) == (new.version, "completed")
    assert old.running()
    gate.open()
    assert old.result(HANG_S) == "old"
    assert not old.cancel_requested
    status = own.status("f")
    assert status is not None
    assert status.version == new.version
    assert [run.version for run in own.history("f")] == [new.version, old.version]


def test_replace_while_running_asks_it(own: Scheduler, gate: Gate) -> None:
    """`if_running="cancel"` sets the signal of the old one."""
    old = own.schedule("a", after=0, fn=gate.hold_until_cancelled, args=("old",))
    gate.wait_for(1)
    new = own.schedule("a", after=0, fn=tasks.identity, args=("new",), if_running="cancel")
    assert old.result(HANG_S) == "cancelled"
    assert new.result(HANG_S) == "new"
    assert old.cancel_requested


def test_replace_while_running_waits_for_it(own: Scheduler, gate: Gate, tmp_path: Path) -> None:
    """`if_running="wait"`: the new one starts after the end of the old one; the last one waits."""
    old = own.schedule("w", after=0, fn=gate.hold, args=("old",))
    gate.wait_for(1)
    between = own.schedule("w", after=0, fn=timed.mark, args=(tmp_path, 1), if_running="wait")
    new = own.schedule("w", after=0, fn=timed.mark, args=(tmp_path, 2), if_running="wait")
    assert own.schedule("other", after=0, fn=tasks.identity, args=(1,)).result(HANG_S) == 1
    assert between.cancelled()
    assert not new.done()
    assert timed.marked(tmp_path) == []
    gate.open()
    assert new.result(HANG_S) == 2
    runs = {run.version: run for run in own.history("w")}
    started, finished = runs[new.version].started, runs[old.version].finished
    assert started is not None
    assert started >= finished
    assert timed.marked(tmp_path) == ["2"]


def test_replace_while_running_refuses(own: Scheduler, gate: Gate) -> None:
    """`if_running="error"` raises and changes nothing."""
    old = own.schedule("n", after=0, fn=gate.hold, args=("old",))
    gate.wait_for(1)
    with pytest.raises(ValueError, match=r"'n'.*if_running='error'"):
        own.schedule("n", after=0, fn=tasks.nothing, if_running="error")
    gate.open()
    assert old.result(HANG_S) == "old"


def test_cancel_reaches_an_old_version_by_its_handle(own: Scheduler, gate: Gate) -> None:
    """By id it is the newest that is meant, and the old one only when that is over."""
    old = own.schedule("o", after=0, fn=gate.hold_until_cancelled, args=("old",))
    gate.wait_for(1)
    new = own.schedule("o", after=FAR, fn=tasks.nothing)
    assert own.cancel("o") is CancelResult.PREVENTED
    assert new.cancelled()
    assert not old.cancel_requested
    assert own.cancel("o") is CancelResult.REQUESTED
    assert old.result(HANG_S) == "cancelled"


def test_reschedule_moves_the_same_version(own: Scheduler) -> None:
    """Earlier or later, with the same handle; an unknown, a running or an ended one is not moved."""
    handle = own.schedule("m", after=FAR, fn=tasks.identity, args=(1,))
    assert own.reschedule("m", after=0)
    assert handle.result(HANG_S) == 1
    assert not own.reschedule("m", after=0)
    assert not own.reschedule("nothing", after=0)
    with pytest.raises(TypeError, match="exactly one"):
        own.reschedule("m")
    (run,) = own.history("m")
    assert run.version == handle.version


def test_reschedule_of_what_is_dispatched_takes_it_back(
    own: Scheduler, gate: Gate, tmp_path: Path
) -> None:
    """It lies with a busy worker; it runs at its new time."""
    held = occupy(own, gate)
    handle = own.schedule("back", after=0, fn=timed.mark, args=(tmp_path, "back"))
    assert own.reschedule("back", after=FAR)
    gate.open()
    for one in held:
        one.result(HANG_S)
    assert own.schedule("probe", after=0, fn=tasks.identity, args=(1,)).result(HANG_S) == 1
    assert not handle.done()
    assert timed.marked(tmp_path) == []
    assert own.reschedule("back", after=0, priority=3)
    assert handle.result(HANG_S) == "back"
    status = own.status("back")
    assert status is not None
    assert status.priority == 3


def test_cancel_between_attempts_prevents_the_next_one(own: Scheduler) -> None:
    """PREVENTED: no further attempt starts; the attempt that failed is in the history."""
    handle = own.schedule(
        "again",
        after=0,
        fn=timed.fail_before,
        args=(9, ValueError),
        retries=5,
        retry_on=(ValueError,),
        backoff=FAR,
    )
    wait_until(lambda: outcomes(own, "again") == ["failed"], "the first attempt")
    assert own.cancel("again") is CancelResult.PREVENTED
    assert handle.cancelled()
    assert outcomes(own, "again") == ["failed", "cancelled"]


def test_cancel_by_eight_threads_prevents_once(own: Scheduler) -> None:
    """One of them hears PREVENTED for each task, and no job runs."""
    handles = [own.schedule(n, after=FAR, fn=tasks.nothing) for n in range(200)]
    answers: list[list[CancelResult]] = []
    start = threading.Barrier(8)

    def cancel() -> None:
        start.wait()
        answers.append([own.cancel(n) for n in range(200)])

    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in zip(*answers, strict=True):
        assert sorted(map(bool, results)) == [False] * 7 + [True]
    assert all(handle.cancelled() for handle in handles)


def test_ids_that_were_used_before_get_new_versions(default_pool: WorkStealingExecutor) -> None:
    """Versions never restart: what was once the id's is not taken for the new one."""
    clock = ManualClock()
    with Scheduler(executor=default_pool, clock=clock) as s:
        old = s.schedule("aba", after=5, fn=tasks.identity, args=("old",))
        assert s.cancel("aba")
        new = s.schedule("aba", after=10, fn=tasks.identity, args=("new",))
        clock.advance(5)  # the old one's time
        assert s.schedule("other", after=0, fn=tasks.identity, args=(1,)).result(HANG_S) == 1
        assert not new.done()
        clock.advance(5)
        assert new.result(HANG_S) == "new"
        assert old.cancelled()
        assert old.version < new.version
