"""The end of a scheduler: what becomes of what waits, and who may close it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import Scheduler, WorkStealingExecutor
from mpsched.errors import ForkedPool, SchedulerClosed
from tests.support import tasks, timed
from tests.support.gates import wait_until
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gates import Gate

HANG_S = 60.0
FAR = 10_000.0


def test_close_runs_what_is_due_and_cancels_the_future(gate: Gate, tmp_path: Path) -> None:
    """By default: nothing that was due is dropped, nothing is waited for; each has its record."""
    s = Scheduler(1)
    held = s.schedule("held", after=0, fn=gate.hold)
    gate.wait_for(1)
    due = [s.schedule(n, after=0, fn=timed.mark, args=(tmp_path, n)) for n in range(20)]
    later = s.schedule("later", after=FAR, fn=tasks.nothing)
    closer = threading.Thread(target=s.close)
    closer.start()
    wait_until(later.done, "the end of what lies in the future")
    assert later.cancelled()
    with pytest.raises(SchedulerClosed, match="draining"):
        s.schedule("new", after=0, fn=tasks.nothing)
    assert not s.wait(0)
    gate.open()
    closer.join(HANG_S)
    assert held.result(0) == "task"
    assert [handle.result(0) for handle in due] == [*range(20)]
    assert timed.marked(tmp_path) == [str(n) for n in range(20)]
    report = s.close()
    assert (report.state, report.finished, report.cancelled) == ("closed", 21, 1)
    assert s.state == "closed"
    (run,) = s.history("later")
    assert (run.outcome, run.why) == ("cancelled", "the scheduler was closed")


def test_close_runs_what_is_due_and_waits_for_an_older_version(gate: Gate) -> None:
    """`if_running="wait"`: it is due, so it runs once the older one has ended; not if it lies in the future."""
    s = Scheduler(1)
    old = {name: s.schedule(name, after=0, fn=gate.hold, where="thread") for name in ("a", "b")}
    gate.wait_for(2)
    due = s.schedule("a", after=0, fn=tasks.square, args=(3,), if_running="wait")
    later = s.schedule("b", after=FAR, fn=tasks.square, args=(4,), if_running="wait")
    closer = threading.Thread(target=s.close)
    closer.start()
    wait_until(later.done, "the end of what lies in the future")
    assert later.cancelled()
    assert not due.done()
    gate.open()
    closer.join(HANG_S)
    assert due.result(0) == 9
    assert [handle.result(0) for handle in old.values()] == ["task", "task"]
    report = s.close()
    assert (report.state, report.finished, report.cancelled) == ("closed", 3, 1)


@pytest.mark.parametrize("queued", ["cancel", "keep"])
def test_close_drops_nothing_silently(gate: Gate, queued: Any) -> None:
    """What was not handed to a worker is cancelled or kept, each marked; what was, is run."""
    s = Scheduler(1)
    held = s.schedule("held", after=0, fn=gate.hold)
    gate.wait_for(1)
    due = [s.schedule(n, after=0, priority=n, fn=tasks.nothing) for n in range(30)]
    later = s.schedule("later", after=FAR, fn=tasks.nothing)
    wait = threading.Thread(target=lambda: s.close(queued=queued))
    wait.start()
    wait_until(later.done, "the end of what waits")
    gate.open()
    wait.join(HANG_S)
    report = s.close()
    held.result(0)
    assert all(handle.done() for handle in due)
    dropped = [handle for handle in due if handle.cancelled()]
    assert report.finished == 1 + len(due) - len(dropped)
    assert len(dropped) >= 20
    if queued == "keep":
        assert {kept.task_id for kept in report.kept} == {
            *(handle.task_id for handle in dropped),
            "later",
        }
        kept = {one.task_id: one for one in report.kept}
        assert FAR - 100 < kept["later"].seconds <= FAR
        assert kept[29].priority == 29
        assert kept[29].seconds <= 0
        assert report.cancelled == 0
    else:
        assert report.cancelled == len(dropped) + 1
    outcome = {"keep": "kept", "cancel": "cancelled"}[queued]
    assert {run.outcome for run in s.history("later")} == {outcome}
    assert len(s.history()) == 32


def test_close_from_eight_threads_and_twice_is_one_close(gate: Gate) -> None:
    """All wait, and all get the same report."""
    s = Scheduler(1)
    s.schedule("held", after=0, fn=gate.hold)
    gate.wait_for(1)
    with ThreadPoolExecutor(8) as threads:
        closing = [threads.submit(s.close) for _ in range(8)]
        wait_until(lambda: s.state == "draining", "the close")
        gate.open()
        reports = {id(one.result(HANG_S)) for one in closing}
    assert reports == {id(s.close())}


def test_close_within_a_time_asks_and_then_kills(gate: Gate, tmp_path: Path) -> None:
    """`timeout` seconds to drain, then signals, `kill_after` seconds later the end of the workers."""
    s = Scheduler(2)
    deaf = s.schedule("deaf", after=0, fn=gate.hold, args=("deaf",))
    hears = s.schedule("hears", after=0, fn=gate.hold_until_cancelled, args=("hears",))
    gate.wait_for(2)
    waits = [s.schedule(n, after=0, fn=timed.mark, args=(tmp_path, n)) for n in range(10)]
    report = s.close(0.05, kill_after=5)  # who hears has to get a core meanwhile
    assert report.state == "closed"
    assert report.killed == (deaf.describe(),)
    assert report.running == ()
    assert isinstance(deaf.exception(0), CancelledError)
    assert hears.result(0) == "cancelled"
    assert all(one.cancelled() for one in waits)
    assert timed.marked(tmp_path) == []


def test_close_without_kill_reports_what_runs(gate: Gate) -> None:
    """It returns, the scheduler goes on draining, and ends by itself."""
    s = Scheduler(1)
    deaf = s.schedule("deaf", after=0, fn=gate.hold)
    gate.wait_for(1)
    report = s.close(0.02)
    assert (report.state, report.running) == ("draining", (deaf.describe(),))
    gate.open()
    assert s.wait(HANG_S)
    assert deaf.result(0) == "task"
    assert s.close().running == ()


def test_close_does_not_wait_for_deaf_threads_for_ever(default_pool: WorkStealingExecutor) -> None:
    """A thread cannot be ended: with `kill_after` it is left, and reported."""
    free = threading.Event()
    s = Scheduler(executor=default_pool)
    job = s.schedule("deaf", after=0, fn=free.wait, args=(60,), where="thread")
    wait_until(job.running, "the job")
    report = s.close(0.02, kill_after=0.02)
    assert (report.state, report.running) == ("closed", (job.describe(),))
    assert not job.done()
    free.set()
    assert job.result(HANG_S) is True


def test_close_in_a_callback_does_not_wait_for_itself() -> None:
    """It begins the end and returns; whoever waits outside sees it come."""
    s = Scheduler(1)
    states: list[str] = []
    first = s.schedule("first", after=0, fn=tasks.nothing)
    first.add_done_callback(lambda _: states.append(s.close().state))
    assert s.wait(HANG_S)
    wait_until(lambda: states, "the end of the callback")
    assert states in (["draining"], ["closed"])
    assert first.done()
    assert s.close().state == "closed"


def test_close_in_the_callback_of_a_cancel_does_not_wait_for_itself() -> None:
    """That callback runs in the thread that cancels."""
    s = Scheduler(1)
    states: list[str] = []
    handle = s.schedule("far", after=FAR, fn=tasks.nothing)
    handle.add_done_callback(lambda _: states.append(s.close().state))
    assert s.cancel("far")
    assert states == ["draining"]
    assert s.wait(HANG_S)


def test_close_in_a_job_of_a_thread_is_refused_clearly(default_pool: WorkStealingExecutor) -> None:
    """It would wait for itself; without waiting it is allowed."""
    s = Scheduler(executor=default_pool)
    job = s.schedule("self", after=0, fn=s.close, where="thread")
    with pytest.raises(RuntimeError, match=r"close\(wait=False\)"):
        job.result(HANG_S)
    assert s.state == "accepting"
    job = s.schedule("self", after=0, fn=s.close, kwargs={"wait": False}, where="thread")
    assert job.result(HANG_S).state == "draining"
    assert s.wait(HANG_S)


def test_close_in_a_signal_handler_that_strikes_anywhere() -> None:
    """In the middle of `schedule` too, where the thread itself holds the book."""
    result = run_script(
        """
        import os, signal, threading, time
        import mpsched

        s = mpsched.Scheduler(1)
        signal.signal(signal.SIGUSR1, lambda *_: s.close(queued="cancel"))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            while True:
                s.schedule(1, after=1000, fn=print)
        except mpsched.errors.SchedulerClosed:
            pass
        assert s.wait(60)
        print(s.state)
        """
    )
    assert (result.rc, result.out, result.err) == (0, "closed\n", "")


def test_wait_ends_with_a_close_or_a_signal() -> None:
    """For a program that does nothing else: Ctrl-C, or a handler that closes."""
    result = run_script(
        """
        import os, signal, threading
        import mpsched

        s = mpsched.Scheduler(1)
        assert s.wait(0.01) is False
        try:
            with s:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                s.wait()
        except KeyboardInterrupt:
            print("interrupted", s.state)
        s = mpsched.Scheduler(1)
        signal.signal(signal.SIGTERM, lambda *_: s.close(wait=False))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        print(s.wait(), s.state)
        """
    )
    assert (result.rc, result.out, result.err) == (0, "interrupted closed\nTrue closed\n", "")


def test_program_that_ends_runs_what_is_due_and_says_what_it_drops() -> None:
    """Without a close: no hang, no lost job, and a warning for what lies in the future."""
    begun = time.monotonic()
    result = run_script(
        """
        import mpsched

        s = mpsched.Scheduler(1)
        for n in range(50):
            s.schedule(n, after=0, fn=print, args=(n,), kwargs={"flush": True})
        s.schedule("far", after=10_000, fn=print)
        s.schedule("farther", after=20_000, fn=print, where="thread")
        """
    )
    assert result.rc == 0, result.err
    assert result.out.split() == [str(n) for n in range(50)]
    assert "2 scheduled tasks were not due" in result.err  # logged, as by any close
    assert time.monotonic() - begun < HANG_S


def test_scheduler_in_a_forked_child_refuses_everything() -> None:
    """It has no threads there, and says so instead of hanging."""
    result = run_script(
        """
        import os, warnings
        import mpsched

        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork with threads
        s = mpsched.Scheduler(1)
        handle = s.schedule("far", after=10_000, fn=print)
        child = os.fork()
        if not child:
            calls = (
                lambda: s.schedule("x", after=0, fn=print),
                lambda: s.cancel("far"),
                lambda: s.status("far"),
                lambda: s.metrics(),
                lambda: handle.result(),
            )
            for call in calls:
                try:
                    call()
                except mpsched.errors.ForkedPool:
                    print("refused", flush=True)
            s.close()
            os._exit(0)
        os.waitpid(child, 0)
        print(s.cancel("far").name)
        s.close()
        """
    )
    assert (result.rc, result.err) == (0, "")
    assert result.out.split() == ["refused"] * 5 + ["PREVENTED"]
    assert issubclass(ForkedPool, RuntimeError)
