"""`cancel_running`: asking or ending what runs, down the tree and nobody else's."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import CancelResult
from tests.support import crash_calls as calls, fork_deaths
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    import random
    from pathlib import Path


def test_cancel_running_asks(tmp_path: Path) -> None:
    """The task sees it, and what it returns counts; nobody is ended, whatever its options say."""
    with pool(1) as ex:
        view = ex.options(on_cancel="kill")
        future = view.submit(calls.until_asked, str(tmp_path), "one")
        found = wait_for_holders(tmp_path, "one")
        assert ex.cancel_running(future) is CancelResult.REQUESTED
        assert future.result(DEADLINE_S) == "asked"
        assert pids(ex) == [found["one"]]


def test_cancel_running_kills_one_worker_only(start_method: str, tmp_path: Path) -> None:
    """A task without any option: its worker ends, its future is cancelled, others do not notice."""
    with pool(2, start_method) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        doomed = ex.submit(calls.stubborn, str(tmp_path), "doomed")
        found = wait_for_holders(tmp_path, "other", "doomed")
        queued = [ex.submit(calls.identity, n) for n in range(50)]
        assert ex.cancel_running(doomed, how="kill") is CancelResult.REQUESTED
        with pytest.raises(CancelledError, match="worker ended"):
            raise doomed.exception(DEADLINE_S) or AssertionError("it has returned")
        assert not alive(found["doomed"])
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert alive(found["other"])
        assert_full_width(ex, tmp_path)
        assert ex.cancel_running(doomed) is CancelResult.TOO_LATE


def test_cancel_running_prevents_what_has_not_started(tmp_path: Path) -> None:
    """Wherever it lies, with either way; then nobody is ended."""
    with pool(1) as ex:
        blocker = ex.submit(calls.hold, str(tmp_path), "blocker")
        found = wait_for_holders(tmp_path, "blocker")
        waiting = [ex.submit(calls.identity, n) for n in range(20)]
        answers = [
            ex.cancel_running(future, "kill" if n % 2 else "signal")
            for n, future in enumerate(waiting)
        ]
        assert answers == [CancelResult.PREVENTED] * 20
        assert all(future.cancelled() for future in waiting)
        assert ex.cancel_running(waiting[0], "kill") is CancelResult.PREVENTED  # as `cancel()`
        release(tmp_path, "blocker")
        assert blocker.result(DEADLINE_S) == "blocker"
        assert pids(ex) == [found["blocker"]]


def test_cancel_running_is_not_retried(tmp_path: Path) -> None:
    """Nobody wants it any more, whatever its retries."""
    with pool(1) as ex:
        doomed = ex.options(retries=5).submit(calls.stubborn, str(tmp_path), "doomed")
        wait_for_holders(tmp_path, "doomed")
        assert ex.cancel_running(doomed, "kill") is CancelResult.REQUESTED
        assert isinstance(doomed.exception(DEADLINE_S), CancelledError)
        assert doomed.attempts == 1


def test_cancel_running_of_tasks_that_end_just_then_hurts_no_other(rng: random.Random) -> None:
    """Killed by a hair too late: what the worker runs next is never ended for it."""
    with pool(2) as ex:
        ended = 0
        for number in range(60):
            # The first is ended for sure.
            doomed = ex.submit(calls.nap, rng.uniform(0.0, 0.004) if number else DEADLINE_S)
            others = [ex.submit(calls.nap, 0.000_5) for _ in range(4)]
            if number:
                time.sleep(rng.uniform(0.0, 0.004))
            else:
                wait_until(doomed.running, "its start")
            answer = ex.cancel_running(doomed, "kill")
            assert [other.result(DEADLINE_S) for other in others] == [0.000_5] * 4, number
            try:
                error = doomed.exception(DEADLINE_S)
            except CancelledError:
                assert answer is CancelResult.PREVENTED
                continue
            if error is not None:
                assert isinstance(error, CancelledError)
                assert answer is CancelResult.REQUESTED
                ended += 1
            else:
                assert answer is not CancelResult.PREVENTED
        # One death for each task that was ended, and none for the others.
        wait_until(lambda: ex.stats().deaths >= ended, "the deaths")
        assert ex.stats().deaths == ended
        assert ended


def test_cancel_running_kills_a_worker_that_somebody_has_stopped(tmp_path: Path) -> None:
    """Nothing in it has to run."""
    with pool(1) as ex:
        doomed = ex.submit(calls.stop_itself, str(tmp_path), "one")
        found = wait_for_holders(tmp_path, "one")
        wait_until(lambda: calls.is_stopped(found["one"]), "its stop")
        assert ex.cancel_running(doomed, "kill") is CancelResult.REQUESTED
        assert isinstance(doomed.exception(DEADLINE_S), CancelledError)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_cancel_running_reaches_the_whole_tree(tmp_path: Path) -> None:
    """Home and thief of a root are ended; who runs something else is not."""
    with pool(3) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        wait_for_holders(tmp_path, "other")
        root = ex.submit(fork_deaths.holding_both, str(tmp_path))
        found = wait_for_holders(tmp_path, "other", "child", "home")
        assert ex.cancel_running(root, "kill") is CancelResult.REQUESTED
        assert isinstance(root.exception(DEADLINE_S), CancelledError)
        assert not alive(found["child"])
        assert not alive(found["home"])
        assert alive(found["other"])
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert_full_width(ex, tmp_path)


def test_cancel_running_asks_the_whole_tree(tmp_path: Path) -> None:
    """A child elsewhere sees the signal of its root."""
    log = tmp_path / "log"
    with pool(2) as ex:
        root = ex.submit(fork_deaths.ticking, str(log), str(tmp_path), heed=True)
        wait_for_holders(tmp_path, "child", "home")
        assert ex.cancel_running(root) is CancelResult.REQUESTED
        assert root.result(DEADLINE_S) == 1
        assert ex.stats().deaths == 0


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_cancel_running_of_a_map_keeps_what_was_delivered(how: Any, tmp_path: Path) -> None:
    """Its first items have their values, the rest is cancelled, and nothing more of it starts."""
    with pool(2) as ex:
        names = [str(n) for n in range(40)]
        release(tmp_path, *names[:2])
        held = calls.until_asked_or_there if how == "signal" else calls.hold
        results = ex.starmap(held, [(str(tmp_path), name) for name in names], chunksize=5)
        first = [next(results), next(results)]
        assert first == names[:2]
        started = wait_for_holders(tmp_path, names[2], names[5])
        assert ex.cancel_running(results, how) is CancelResult.REQUESTED
        rest: list[Any] = []
        with pytest.raises(CancelledError):
            rest.extend(results)
        assert set(rest) <= {"asked"}
        assert len(list(tmp_path.glob("*.started"))) == len(started)
        deaths = 2 if how == "kill" else 0
        wait_until(lambda: ex.stats().deaths == deaths, "the deaths")
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == deaths
        assert ex.cancel_running(results, how) is CancelResult.TOO_LATE


def test_cancel_running_of_a_map_gives_each_item_its_outcome(tmp_path: Path) -> None:
    """With `return_exceptions` every item is there: a value, or CancelledError."""
    with pool(2) as ex:
        items = [(str(tmp_path), str(n)) for n in range(300)]
        results = ex.starmap(calls.until_asked_or_there, items, return_exceptions=True)
        wait_for_holders(tmp_path, "0")
        assert ex.cancel_running(results) is CancelResult.REQUESTED
        outcomes = list(results)
        assert len(outcomes) == 300
        assert outcomes[0] == "asked"
        kinds = {type(outcome) for outcome in outcomes}
        assert kinds == {str, CancelledError}
        assert ex.run(calls.identity, 1) == 1


def test_cancel_running_of_a_map_of_single_tasks(tmp_path: Path) -> None:
    """Items with limits or retries are tasks of their own: each is prevented or ended."""
    with pool(2) as ex:
        view = ex.options(retries=2)
        items = [(str(tmp_path), str(n)) for n in range(10)]
        results = view.starmap(calls.hold, items, return_exceptions=True)
        wait_for_holders(tmp_path, "0", "1")
        assert ex.cancel_running(results, "kill") is CancelResult.REQUESTED
        outcomes = list(results)
        assert all(isinstance(outcome, CancelledError) for outcome in outcomes)
        assert len(outcomes) == 10
        assert len(list(tmp_path.glob("*.started"))) == 2
        assert ex.cancel_running(results) is CancelResult.TOO_LATE


def test_cancel_running_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    """A future or a map of another pool, and what is none; an unknown way."""
    with pool(1) as ex, mpsched.WorkStealingExecutor(0) as serial:
        future = serial.submit(calls.identity, 1)
        assert serial.cancel_running(future, "kill") is CancelResult.TOO_LATE
        with pytest.raises(ValueError, match="another pool"):
            ex.cancel_running(future)
        with pytest.raises(ValueError, match="of this pool"):
            ex.cancel_running(serial.map(calls.identity, [1]))
        with pytest.raises(TypeError, match="of this pool"):
            ex.cancel_running(iter([1]))
        with pytest.raises(ValueError, match="not 'hard'"):
            ex.cancel_running(ex.submit(calls.identity, 1), "hard")  # type: ignore[arg-type]
