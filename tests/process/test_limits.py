"""Time limits and killing cancels: the worker of one root ends, and of no other."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from mpsched.errors import TaskTimeout, WorkerDied
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    import random
    from pathlib import Path

LONG_S = 600.0


def test_time_limit_ends_one_worker_only(start_method: str, tmp_path: Path) -> None:
    """TaskTimeout for the slow one; the other process and the queued tasks do not notice."""
    with pool(2, start_method) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        found = wait_for_holders(tmp_path, "other")
        slow = ex.options(timeout=0.2, name="slow").submit(calls.stubborn, str(tmp_path), "slow")
        queued = [ex.submit(calls.identity, number) for number in range(50)]
        error = slow.exception(DEADLINE_S)
        assert isinstance(error, TaskTimeout)
        assert isinstance(error, TimeoutError)
        assert error.seconds == 0.2
        assert error.attempt == 1
        assert "'slow'" in str(error)
        assert "0.2" in str(error)
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert alive(found["other"])
        assert_full_width(ex, tmp_path)


def test_task_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    """The limit is no death sentence: the worker keeps its process."""
    with pool(1) as ex:
        before = pids(ex)
        view = ex.options(timeout=LONG_S)
        assert [view.submit(calls.identity, n).result(DEADLINE_S) for n in range(20)] == [
            *range(20)
        ]
        assert pids(ex) == before
        assert ex.stats().deaths == 0


def test_limit_counts_from_the_start_not_from_the_submit(tmp_path: Path) -> None:
    """A task that waits behind a long one has its whole time."""
    with pool(1) as ex:
        blocker = ex.submit(calls.hold, str(tmp_path), "blocker")
        wait_for_holders(tmp_path, "blocker")
        waiting = [ex.options(timeout=3.0).submit(calls.nap, 0.01) for _ in range(5)]
        time.sleep(3.2)
        assert not any(future.done() for future in waiting)
        release(tmp_path, "blocker")
        assert [future.result(DEADLINE_S) for future in waiting] == [0.01] * 5
        assert blocker.result(DEADLINE_S) == "blocker"


def test_grace_lets_a_task_stop_by_itself(tmp_path: Path) -> None:
    """First its signal is set; a task that returns then has a result, and its worker lives."""
    with pool(1) as ex:
        before = pids(ex)
        future = ex.options(timeout=0.1, grace=LONG_S).submit(
            calls.until_asked, str(tmp_path), "polite"
        )
        assert future.result(DEADLINE_S) == "asked"
        assert pids(ex) == before


def test_grace_ends_a_task_that_does_not_stop(tmp_path: Path) -> None:
    """After the grace its worker is killed, whatever it catches."""
    with pool(1) as ex:
        future = ex.options(timeout=0.1, grace=0.1).submit(calls.stubborn, str(tmp_path), "rude")
        assert isinstance(future.exception(DEADLINE_S), TaskTimeout)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_limit_ends_a_task_that_holds_the_interpreter(tmp_path: Path) -> None:
    """One C call that never lets go of the GIL: nothing in the worker has to cooperate."""
    with pool(2) as ex:
        future = ex.options(timeout=0.3).submit(calls.hold_the_interpreter)
        assert isinstance(future.exception(DEADLINE_S), TaskTimeout)
        assert_full_width(ex, tmp_path)


def test_long_hold_of_the_interpreter_is_not_taken_for_a_death(tmp_path: Path) -> None:
    """A worker that answers nothing for a while is alive as long as its process is."""
    with pool(1) as ex:
        before = pids(ex)
        assert ex.submit(calls.hold_the_interpreter, 24).result(DEADLINE_S) is None
        assert pids(ex) == before


def test_rounds_of_limits_leave_the_pool_whole(tmp_path: Path) -> None:
    """Kills never race the taking of work: every quick task of each round returns."""
    with pool(2) as ex:
        for number in range(8):
            slow = ex.options(timeout=0.1).submit(calls.stubborn, str(tmp_path), f"slow{number}")
            quick = [ex.submit(calls.identity, n) for n in range(3)]
            assert [future.result(DEADLINE_S) for future in quick] == [0, 1, 2]
            assert isinstance(slow.exception(DEADLINE_S), TaskTimeout)
        assert_full_width(ex, tmp_path)


def test_limit_of_one_map_item_fails_that_item_alone() -> None:
    """With a limit each item is a root: the others have their values."""
    with pool(2) as ex:
        view = ex.options(timeout=3.0)
        seconds = [0.0, 0.0, LONG_S, 0.0, LONG_S, 0.0]
        results = list(view.map(calls.nap, seconds, return_exceptions=True))
        assert [type(value) for value in results] == [
            TaskTimeout if value else float for value in seconds
        ]


def test_limit_sees_every_task_of_a_full_pool(tmp_path: Path) -> None:
    """All workers are over their limits at once: each future fails by its own."""
    with pool(3) as ex:
        view = ex.options(timeout=0.2)
        futures = [view.submit(calls.stubborn, str(tmp_path), str(n)) for n in range(6)]
        errors = [future.exception(DEADLINE_S) for future in futures]
        assert [type(error) for error in errors] == [TaskTimeout] * 6
        assert len({id(error) for error in errors}) == 6
        assert_full_width(ex, tmp_path)


def test_death_before_the_limit_is_a_death(tmp_path: Path) -> None:
    """Whoever kills first is named."""
    with pool(1) as ex:
        future = ex.options(timeout=LONG_S).submit(calls.hold, str(tmp_path), "one")
        kill(wait_for_holders(tmp_path, "one")["one"])
        error = future.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.signal == "SIGKILL"


# --- cancelling what runs ---------------------------------------------------------------------------


def test_cancel_of_a_running_task_only_asks(tmp_path: Path) -> None:
    """By default a running task is told, goes on as it likes, and its result counts."""
    with pool(1) as ex:
        future = ex.submit(calls.until_asked, str(tmp_path), "one")
        wait_for_holders(tmp_path, "one")
        assert not future.cancel()
        assert future.result(DEADLINE_S) == "asked"


def test_cancel_that_kills_ends_one_worker_only(start_method: str, tmp_path: Path) -> None:
    """`on_cancel="kill"`: the root's worker ends, its future is cancelled; others go on."""
    with pool(2, start_method) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        doomed = ex.options(on_cancel="kill").submit(calls.stubborn, str(tmp_path), "doomed")
        found = wait_for_holders(tmp_path, "other", "doomed")
        assert not doomed.cancel()
        assert doomed.exception(DEADLINE_S) is not None
        wait_until(lambda: not alive(found["doomed"]), "the end of the worker")
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert alive(found["other"])
        assert_full_width(ex, tmp_path)


def test_cancelled_kill_is_not_retried(tmp_path: Path) -> None:
    """Nobody wants it any more, whatever its retries."""
    with pool(1) as ex:
        view = ex.options(on_cancel="kill", retries=5)
        doomed = view.submit(calls.stubborn, str(tmp_path), "doomed")
        wait_for_holders(tmp_path, "doomed")
        doomed.cancel()
        assert doomed.exception(DEADLINE_S) is not None
        assert doomed.attempts == 1
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_cancel_of_a_queued_task_kills_nobody(tmp_path: Path) -> None:
    """`on_cancel="kill"` is for what runs: what waits is just taken out."""
    with pool(1) as ex:
        blocker = ex.submit(calls.hold, str(tmp_path), "blocker")
        found = wait_for_holders(tmp_path, "blocker")
        waiting = ex.options(on_cancel="kill").submit(calls.identity, 1)
        assert waiting.cancel()
        release(tmp_path, "blocker")
        assert blocker.result(DEADLINE_S) == "blocker"
        assert pids(ex) == [found["blocker"]]


def test_cancelled_awaitable_frees_the_worker(tmp_path: Path) -> None:
    """Through `run_in_executor`: cancelling the awaitable ends a task of on_cancel="kill"."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        view = ex.options(on_cancel="kill")
        awaitable = loop.run_in_executor(view, calls.stubborn, str(tmp_path), "one")
        await asyncio.to_thread(wait_for_holders, tmp_path, "one")
        awaitable.cancel()
        with pytest.raises(asyncio.CancelledError):
            await awaitable
        assert await loop.run_in_executor(ex, calls.identity, 1) == 1

    with pool(1) as ex:
        asyncio.run(main())


# --- closing within a bound -------------------------------------------------------------------------


def test_close_with_a_bound_ends_whatever_runs(tmp_path: Path) -> None:
    """Drain, ask, kill: what was ended is named, and its future is final."""
    with pool(2) as ex:
        rude = ex.options(name="rude").submit(calls.stubborn, str(tmp_path), "rude")
        polite = ex.submit(calls.until_asked, str(tmp_path), "polite")
        found = wait_for_holders(tmp_path, "rude", "polite")
        waiting = [ex.submit(calls.identity, n) for n in range(5000)]
        report = ex.close(timeout=0.0, cancel_pending=True, kill_after=4.0)
        assert ex.state == "terminated"
        assert polite.result(DEADLINE_S) == "asked"
        assert rude.exception(DEADLINE_S) is not None
        assert len(report.killed) == 1
        assert "'rude'" in report.killed[0]
        assert all(future.done() for future in waiting)
        assert report.cancelled == sum(future.cancelled() for future in waiting)
        assert not any(map(alive, found.values()))


def test_close_during_a_death_ends(tmp_path: Path) -> None:
    """The worker is killed while the pool drains: nothing hangs, the queue is done."""
    with pool(1) as ex:
        victim = ex.submit(calls.hold, str(tmp_path), "victim")
        queued = [ex.submit(calls.identity, n) for n in range(20)]
        pid = wait_for_holders(tmp_path, "victim")["victim"]
        ex.shutdown(wait=False)
        kill(pid, signal.SIGKILL)
        assert ex.await_termination(DEADLINE_S)
        assert isinstance(victim.exception(0), WorkerDied)
        assert [future.result(0) for future in queued] == list(range(20))


def test_root_that_ends_at_its_limit_takes_no_other_with_it(rng: random.Random) -> None:
    """Over or in time by a hair: what the worker runs next is never killed for it."""
    with pool(2) as ex:
        view = ex.options(timeout=0.01)
        timed, others = [], []
        for _ in range(150):
            timed.append(view.submit(calls.nap, 0.01 + rng.uniform(-0.006, 0.002)))
            others.append(ex.submit(calls.nap, 0.0005))
        kinds = {type(future.exception(DEADLINE_S)) for future in timed}
        assert kinds <= {type(None), TaskTimeout}
        assert [future.result(DEADLINE_S) for future in others] == [0.0005] * 150
        failed = sum(future.exception() is not None for future in timed)
        # One death for each that was ended, and for one whose record comes between the last look at it and
        # the kill: that one has its value.
        assert ex.stats().deaths >= failed
