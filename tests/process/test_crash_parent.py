"""The parent or the template is killed, workers are stopped, starts fail: nothing stays, nothing hangs."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from mpsched.errors import PoolFailed, WorkerDied
from mpsched.testing import Fault, FaultPlan
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    kill,
    pids,
    pool,
    wait_for_holders,
    wait_until,
)
from tests.support.scripts import Script, run_script

if TYPE_CHECKING:
    from pathlib import Path

    import mpsched

GONE_S = 20.0  # guarantee 9 says 2 s; a loaded machine is no failure of ours

# --- the parent is killed ---------------------------------------------------------------------------

BUSY = """
    import os, signal, sys, time
    import mpsched
    from tests.support import crash_calls as calls

    ex = mpsched.WorkStealingExecutor(6, sys.argv[1])
    here = os.getcwd()
    tasks = {
        "sleeping": calls.hold,
        "stubborn": calls.stubborn,
        "stopped": calls.stop_itself,
        "busy": calls.hold_the_interpreter_and_say,
    }
    for name, task in tasks.items():
        ex.submit(task, here, name)
        while not os.path.exists(f"{name}.started"):
            time.sleep(0.01)
    ex.map(calls.pid_of, range(100))
    futures = [ex.submit(calls.large, 1 << 20) for _ in range(20)]
    print("ready", flush=True)
    time.sleep(600)
"""


def test_killed_parent_leaves_nothing(start_method: str) -> None:
    """Idle, sleeping, stubborn, stopped workers and one inside of C code are gone with it."""
    with Script(BUSY, args=[start_method]) as script:
        script.wait_for("ready", DEADLINE_S)
        assert len(script.processes()) >= 7
        script.signal(signal.SIGKILL)
        assert script.finish(grace_s=GONE_S).rc == -signal.SIGKILL


def test_killed_parent_that_was_submitting_leaves_nothing(start_method: str) -> None:
    """Killed in the midst of things, a few times."""
    source = """
        import itertools, sys
        import mpsched
        from tests.support import crash_calls as calls

        ex = mpsched.WorkStealingExecutor(3, sys.argv[1])
        print("ready", flush=True)
        for number in itertools.count():
            futures = [ex.submit(calls.identity, bytes(1000)) for _ in range(200)]
            for future in futures:
                future.result()
    """
    for pause_s in (0.0, 0.2):
        with Script(source, args=[start_method]) as script:
            script.wait_for("ready", DEADLINE_S)
            time.sleep(pause_s)
            script.signal(signal.SIGKILL)
            assert script.finish(grace_s=GONE_S).rc == -signal.SIGKILL


def test_parent_and_template_killed_together_leave_nothing() -> None:
    """As when a container stops: nobody is left to end the workers."""
    source = """
        import mpsched, os, signal, time
        from tests.support import crash_calls as calls

        ex = mpsched.WorkStealingExecutor(3)
        futures = [ex.submit(calls.stubborn, os.getcwd(), str(n)) for n in range(2)]
        while not all(os.path.exists(f"{n}.started") for n in range(2)):
            time.sleep(0.01)
        os.kill(ex._pool.supervisor._launcher.template_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with Script(source) as script:
        assert script.finish(DEADLINE_S, grace_s=GONE_S).rc == -signal.SIGKILL


# --- workers are stopped ----------------------------------------------------------------------------


def test_stopped_idle_worker_blocks_nobody(tmp_path: Path) -> None:
    """The others do all the work; later it goes on as if nothing had happened."""
    with pool(3) as ex:
        assert_full_width(ex, tmp_path)
        stopped = pids(ex)[1]
        kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(5):
                futures = [ex.submit(calls.identity, number) for number in range(200)]
                assert [future.result(DEADLINE_S) for future in futures] == list(range(200))
            assert list(ex.map(calls.identity, range(1000))) == list(range(1000))
        finally:
            kill(stopped, signal.SIGCONT)
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == 0


def test_worker_stopped_with_its_lock_blocks_nobody(tmp_path: Path) -> None:
    """Neither the parent nor a thief waits for the inbox of a worker that stopped inside of it."""
    with pool(3) as ex:
        future = ex.submit(calls.stop_with_lock, str(tmp_path), "one")
        stopped = wait_for_holders(tmp_path, "one")["one"]
        wait_until(lambda: calls.is_stopped(stopped), "its stop")
        for _ in range(5):
            futures = [ex.submit(calls.identity, number) for number in range(200)]
            assert [future.result(DEADLINE_S) for future in futures] == list(range(200))
        assert list(ex.map(calls.identity, range(1000))) == list(range(1000))
        assert not future.done()
        kill(stopped, signal.SIGCONT)
        assert future.result(DEADLINE_S) == "one"
        assert_full_width(ex, tmp_path)


def test_only_worker_stopped_with_its_lock_delays_and_loses_nothing(tmp_path: Path) -> None:
    """Submitting, cancelling and asking do not block; after SIGCONT everything is done."""
    with pool(1) as ex:
        future = ex.submit(calls.stop_with_lock, str(tmp_path), "one")
        stopped = wait_for_holders(tmp_path, "one")["one"]
        wait_until(lambda: calls.is_stopped(stopped), "its stop")
        futures = [ex.submit(calls.identity, number) for number in range(3000)]
        cancelled = [one for one in futures[::7] if one.cancel()]
        assert ex.stats().executed == 0
        kill(stopped, signal.SIGCONT)
        assert future.result(DEADLINE_S) == "one"
        for number, one in enumerate(futures):
            if one not in cancelled:
                assert one.result(DEADLINE_S) == number
        assert all(one.cancelled() for one in cancelled)


def test_stopped_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """With its own lock held: the kernel lets go of it, the next holder repairs."""
    with pool(2) as ex:
        future = ex.submit(calls.stop_with_lock, str(tmp_path), "one")
        stopped = wait_for_holders(tmp_path, "one")["one"]
        wait_until(lambda: calls.is_stopped(stopped), "its stop")
        queued = [ex.submit(calls.identity, number) for number in range(500)]
        kill(stopped)
        assert isinstance(future.exception(DEADLINE_S), WorkerDied)
        assert [one.result(DEADLINE_S) for one in queued] == list(range(500))
        assert_full_width(ex, tmp_path)


@pytest.mark.parametrize("whose", ["its own", "the dead one's"])
def test_worker_stopped_with_locks_keeps_nobody_from_burying_another(
    whose: str, tmp_path: Path
) -> None:
    """Burial waits for no lock: the dead one is replaced, work goes on, and all of it ends after SIGCONT."""
    with pool(3) as ex:
        victim = ex.submit(calls.hold_as, str(tmp_path), "victim")
        found = wait_for_holders(tmp_path, "victim")
        (index,) = [w for w in range(3) if (tmp_path / f"victim-{w}.started").exists()]
        if whose == "its own":
            stopping = ex.submit(calls.stop_with_lock, str(tmp_path), "thief")
        else:
            stopping = ex.submit(calls.stop_with_locks_of, str(tmp_path), "thief", index)
        stopped = wait_for_holders(tmp_path, "thief")["thief"]
        wait_until(lambda: calls.is_stopped(stopped), "its stop")
        queued = [ex.submit(calls.identity, number) for number in range(500)]
        try:
            assert kill(found["victim"])
            assert isinstance(victim.exception(DEADLINE_S), WorkerDied)
            wait_until(
                lambda: pids(ex)[index] != found["victim"] and alive(pids(ex)[index]), "an heir"
            )
            later = [ex.submit(calls.identity, number) for number in range(200)]
            for number, future in enumerate(later):
                assert future.result(DEADLINE_S) == number
            assert not stopping.done()
        finally:
            kill(stopped, signal.SIGCONT)
        assert stopping.result(DEADLINE_S) == "thief"
        assert [future.result(DEADLINE_S) for future in queued] == list(range(500))
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == 1


def test_stopped_thief_that_keeps_an_inbox_closed_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs nothing, so it costs nobody anything; what lies behind its lock runs."""
    monkeypatch.setattr("mpsched._pool.audit._EVERY_S", 0.05)
    # The owner may have emptied the inbox just before: then nothing waits, and nobody is ended.
    assert any(stop_a_thief(tmp_path) for _ in range(20))


def stop_a_thief(folder: Path) -> bool:
    """Stop a thief with another's lock, for good; whether it was ended because of that."""
    with (
        FaultPlan(Fault("claim.locked", "stop", role="thief", seconds=600.0)) as plan,
        pool(2) as ex,
    ):
        assert_full_width(ex, folder)
        until = time.monotonic() + DEADLINE_S
        while not plan.struck:
            assert time.monotonic() < until, "nobody steals"
            futures = [ex.submit(calls.nap, 0.001) for _ in range(40)]
            assert {future.result(DEADLINE_S) for future in futures} == {0.001}
        (strike,) = plan.struck
        kill(strike.pid, signal.SIGCONT)
        assert_full_width(ex, folder)
        return ex.stats().deaths == 1


def test_shutdown_ends_with_a_stopped_worker(tmp_path: Path) -> None:
    """An idle worker that does not answer is killed when the pool ends."""
    with pool(2) as ex:
        assert_full_width(ex, tmp_path)
        stopped = pids(ex)[0]
        kill(stopped, signal.SIGSTOP)
        ex.shutdown()
        assert not alive(stopped)


def test_limit_ends_a_stopped_worker(tmp_path: Path) -> None:
    """A task whose process does not run any more is over its limit like any other."""
    with pool(1) as ex:
        future = ex.options(timeout=0.5).submit(calls.stop_itself, str(tmp_path), "one")
        assert isinstance(future.exception(DEADLINE_S), TimeoutError)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


# --- starts fail ------------------------------------------------------------------------------------


def test_initializer_that_fails_in_a_replacement_is_tried_again(tmp_path: Path) -> None:
    """The pool goes on with the others meanwhile, and is whole when it works again."""
    with pool(2, initializer=calls.fail_while_there, initargs=(str(tmp_path / "bad"),)) as ex:
        assert_full_width(ex, tmp_path)
        (tmp_path / "bad").touch()
        kill(pids(ex)[0])
        wait_until((tmp_path / "bad.tried").exists, "a start that fails")
        (tmp_path / "bad").unlink()
        assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(5)] == [*range(5)]
        assert_full_width(ex, tmp_path)


def test_initializer_that_fails_for_ever_fails_the_pool(tmp_path: Path) -> None:
    """After some tries in a row, with its error; every open future is final."""
    with pool(1, initializer=calls.fail_while_there, initargs=(str(tmp_path / "bad"),)) as ex:
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        (tmp_path / "bad").touch()
        kill(pids(ex)[0])
        futures: list[mpsched.Future[int]] = []

        def submit_until_refused() -> None:
            while True:
                futures.append(ex.submit(calls.identity, 1))
                time.sleep(0.01)

        with pytest.raises(PoolFailed, match=r"initializer failed.*a bad start"):
            submit_until_refused()
        errors = [future.exception(DEADLINE_S) for future in futures]
        assert {type(error) for error in errors if error is not None} <= {PoolFailed}
        assert ex.state == "failed"


@pytest.mark.parametrize("how", ["raise", "exit", "_exit 3", f"signal {signal.SIGKILL:d}"])
def test_initializer_that_fails_at_once_fails_the_pool(start_method: str, how: str) -> None:
    """Whatever it does: no endless chain of starts, and each future has an error of its own."""
    with pool(2, start_method, initializer=calls.act, initargs=(how,)) as ex:
        try:
            futures = [ex.submit(calls.identity, number) for number in range(10)]
        except PoolFailed:
            futures = []  # it may have failed by now
        errors = [future.exception(DEADLINE_S) for future in futures]
        assert {type(error) for error in errors} <= {PoolFailed}
        assert len({id(error) for error in errors}) == len(futures)
        assert ex.await_termination(DEADLINE_S)
        assert ex.state == "failed"
        with pytest.raises(PoolFailed):
            ex.submit(calls.identity, 1)


def test_too_many_workers_for_the_descriptors_is_a_clear_error() -> None:
    """At construction, with what is needed and what is there; nothing is left of it."""
    result = run_script(
        """
        import os, resource
        import mpsched
        from tests.support import crash_calls as calls

        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        before = os.listdir("/proc/self/fd")
        try:
            mpsched.WorkStealingExecutor(200)
        except OSError as error:
            print(error)
        assert os.listdir("/proc/self/fd") == before
        with mpsched.WorkStealingExecutor(2) as ex:
            assert ex.submit(calls.identity, 1).result() == 1
        """
    )
    assert result.rc == 0, result.err
    assert "200 workers" in result.out or "descriptors" in result.out
    assert "128" in result.out


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_are_replaced_without_a_free_descriptor(method: str) -> None:
    """The program has used up its descriptors by the time a worker dies."""
    result = run_script(
        """
        import os, resource, signal, sys, time
        import mpsched
        from tests.support import crash_calls as calls

        ex = mpsched.WorkStealingExecutor(2, sys.argv[1])
        assert ex.submit(calls.identity, 1).result() == 1
        first = [worker.pid for worker in ex.stats().workers]
        used = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        try:
            while True:
                used.append(os.dup(0))
        except OSError:
            pass
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        if sys.argv[1] == "spawn":  # it needs some, and gets them a little later
            time.sleep(0.2)
            for fd in used:
                os.close(fd)
        futures = [ex.submit(calls.identity, number) for number in range(100)]
        assert [future.result(60) for future in futures] == list(range(100))
        until = time.monotonic() + 60
        while {*first} & {worker.pid for worker in ex.stats().workers}:
            assert time.monotonic() < until
            time.sleep(0.01)
        for fd in used if sys.argv[1] != "spawn" else ():
            os.close(fd)
        ex.shutdown()
        """,
        args=[method],
    )
    assert result.rc == 0, result.err
