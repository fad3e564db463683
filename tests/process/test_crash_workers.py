"""Workers that are killed or end themselves: only what they ran fails, everything else goes on."""

from __future__ import annotations

import signal
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched._base.settings import Settings
from mpsched.errors import WorkerDied
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    holders,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)
from tests.support.soak import Killer

if TYPE_CHECKING:
    import random
    from pathlib import Path

SMALL = Settings(
    entries_per_worker=32, window=16, inbox_slots=32, result_ring_bytes=4096, payload_bytes=2048
)
"""Rings that are full and wrap around all the time."""


def test_killed_task_fails_alone_and_says_how(start_method: str, tmp_path: Path) -> None:
    """The running task gets WorkerDied with signal, pid, task id and attempt; queued ones run."""
    with pool(2, start_method) as ex:
        victim = ex.submit(calls.hold, str(tmp_path), "victim")
        other = ex.submit(calls.hold, str(tmp_path), "other")
        found = wait_for_holders(tmp_path, "victim", "other")
        queued = [ex.submit(calls.identity, number) for number in range(50)]
        assert kill(found["victim"])
        error = victim.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.signal == "SIGKILL"
        assert error.exitcode == -signal.SIGKILL
        assert error.pid == found["victim"]
        assert error.attempt == 1
        assert error.started
        assert f"task {error.task_id}" in str(error)
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        assert not other.done()
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == 1


@pytest.mark.parametrize(
    ("how", "exitcode", "name"),
    [
        ("_exit 0", 0, None),
        ("_exit 3", 3, None),
        ("abort", -signal.SIGABRT, "SIGABRT"),
        ("segv", -signal.SIGSEGV, "SIGSEGV"),
        (f"signal {signal.SIGTERM:d}", -signal.SIGTERM, "SIGTERM"),
    ],
)
def test_task_that_ends_its_process_fails_with_the_exact_status(
    how: str, exitcode: int, name: str | None
) -> None:
    """An exit code, 0 as well, and a signal are told apart; the pool takes the next task."""
    with pool(1) as ex:
        error = ex.submit(calls.die, how).exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert (error.exitcode, error.signal) == (exitcode, name)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_death_of_an_idle_worker_is_not_seen_by_anybody() -> None:
    """Kill all workers while they sleep, again and again: the next task just runs."""
    with pool(2) as ex:
        before = set(pids(ex))
        for number in range(15):
            assert ex.submit(calls.identity, number).result(DEADLINE_S) == number
            for pid in pids(ex):
                kill(pid)
        assert ex.submit(calls.identity, -1).result(DEADLINE_S) == -1
        assert not before & set(pids(ex))


def test_pool_is_at_full_width_again_without_any_task(tmp_path: Path) -> None:
    """Killed idle workers are replaced at once, not when work comes."""
    with pool(3) as ex:
        before = pids(ex)
        ex.submit(calls.identity, 0).result(DEADLINE_S)
        for pid in before:
            kill(pid)
        wait_until(
            lambda: not set(before) & set(pids(ex)) and all(map(alive, pids(ex))), "replacements"
        )
        assert_full_width(ex, tmp_path)


def test_all_workers_killed_at_once_fail_what_ran_and_nothing_else(tmp_path: Path) -> None:
    """Each running future gets an error of its own; everything queued runs afterwards."""
    with pool(3) as ex:
        names = ["a", "b", "c"]
        running = [ex.submit(calls.hold, str(tmp_path), name) for name in names]
        found = wait_for_holders(tmp_path, *names)
        queued = [ex.submit(calls.identity, number) for number in range(300)]
        for pid in found.values():
            assert kill(pid)
        errors = [future.exception(DEADLINE_S) for future in running]
        assert all(isinstance(error, WorkerDied) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert {getattr(error, "pid", None) for error in errors} == set(found.values())
        assert [future.result(DEADLINE_S) for future in queued] == list(range(300))
        assert_full_width(ex, tmp_path)


def test_claimed_tasks_of_a_killed_worker_run_elsewhere(tmp_path: Path) -> None:
    """What a worker had taken out of its inbox and not started is not lost with it."""
    # A worker that takes much at once and is asked for nothing: there is no other.
    with pool(1, settings=Settings(claim_s=10.0)) as ex:
        for number in range(50):  # quick ones first, so that it learns to take many
            ex.submit(calls.identity, number).result(DEADLINE_S)
        victim = ex.submit(calls.hold, str(tmp_path), "victim")
        behind = [ex.submit(calls.identity, number) for number in range(100)]
        kill(wait_for_holders(tmp_path, "victim")["victim"])
        assert isinstance(victim.exception(DEADLINE_S), WorkerDied)
        assert [future.result(DEADLINE_S) for future in behind] == list(range(100))


def test_finished_results_of_a_killed_worker_are_kept(tmp_path: Path) -> None:
    """A task whose result was published counts as done, though its worker died before the wake-up."""
    with pool(1, settings=Settings(flush_s=1000.0, claim_s=10.0)) as ex:
        for number in range(50):
            ex.submit(calls.identity, number).result(DEADLINE_S)
        before = [ex.submit(calls.identity, number) for number in range(20)]
        victim = ex.submit(calls.hold, str(tmp_path), "victim")
        kill(wait_for_holders(tmp_path, "victim")["victim"])
        assert isinstance(victim.exception(DEADLINE_S), WorkerDied)
        assert [future.result(DEADLINE_S) for future in before] == list(range(20))
        assert all(future.attempts == 1 for future in before)


def test_other_running_tasks_do_not_notice_a_death(tmp_path: Path) -> None:
    """Three long tasks go on in their processes while the fourth worker dies."""
    with pool(4) as ex:
        healthy = [ex.submit(calls.hold, str(tmp_path), name) for name in "abc"]
        found = wait_for_holders(tmp_path, *"abc")
        error = ex.submit(calls.die, "_exit 3").exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.exitcode == 3
        release(tmp_path, *"abc")
        assert [future.result(DEADLINE_S) for future in healthy] == [*"abc"]
        assert holders(tmp_path) == found


def test_errors_of_one_death_raise_without_growing(tmp_path: Path) -> None:
    """Reading the same error again and again adds nothing to it."""
    with pool(1) as ex:
        future = ex.submit(calls.die, "_exit 1")
        depths = []
        for _ in range(5):
            with pytest.raises(WorkerDied) as caught:
                future.result(DEADLINE_S)
            assert caught.value.__context__ is None
            depths.append(len(caught.traceback))
        assert max(depths) <= depths[0] + 4


def test_waiters_of_every_kind_see_a_death() -> None:
    """`wait`, callbacks and `exception` are told, whoever reads the results."""
    with pool(2) as ex:
        called: list[Any] = []
        futures = [ex.submit(calls.die, "_exit 1") for _ in range(3)]
        for future in futures:
            future.add_done_callback(called.append)
        done, rest = wait(futures, DEADLINE_S)
        assert not rest
        wait_until(lambda: len(called) == 3, "callbacks")
        assert done == set(futures)
        assert all(isinstance(future.exception(), WorkerDied) for future in futures)


def outcomes(futures: list[mpsched.Future[Any]]) -> list[Any]:
    """Return each future's result, or WorkerDied where it failed so; anything else is raised."""
    found: list[Any] = []
    for future in futures:
        error = future.exception(DEADLINE_S)
        if error is not None and not isinstance(error, WorkerDied):
            raise error
        found.append(WorkerDied if error is not None else future.result())
    return found


def check_under_fire(
    ex: mpsched.WorkStealingExecutor,
    rng: random.Random,
    folder: Path,
    kills: int,
    pause_s: float = 0.03,
) -> None:
    """Run tasks of many kinds while workers are killed; check what comes back, and the pool."""
    assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
    failed = killed = 0
    while killed < kills:
        with Killer(ex, pause_s, rng.getrandbits(30), most=2 * kills, least=2) as killer:
            once = [ex.submit(calls.nap, 0.001 * (i % 3)) for i in range(300)]
            tiny = [ex.submit(calls.identity, i) for i in range(300)]
            # Results larger than a ring's record, which leave through the socket.
            big = [ex.submit(calls.large, 300 + i * 97) for i in range(100)]
            sure = [ex.options(retries=1000).submit(calls.identity, i) for i in range(100)]
            found = outcomes(once)
            failed += found.count(WorkerDied)
            assert [x for x in found if x is not WorkerDied and x not in {0, 0.001, 0.002}] == []
            for i, value in enumerate(outcomes(tiny)):
                failed += value is WorkerDied
                assert value in {i, WorkerDied}
            for i, value in enumerate(outcomes(big)):
                failed += value is WorkerDied
                assert value is WorkerDied or value == bytes(300 + i * 97)
            assert [future.result(DEADLINE_S) for future in sure] == list(range(100))
        killed += killer.kills
    # A kill takes one running task at most.
    assert failed <= killed, (failed, killed)
    assert_full_width(ex, folder)


def test_random_kills_under_load_fail_only_what_ran(rng: random.Random, tmp_path: Path) -> None:
    """Whatever a worker does when it is killed, each future is final and right."""
    with pool(4) as ex:
        check_under_fire(ex, rng, tmp_path, 20)


def test_random_kills_with_small_rings_fail_only_what_ran(
    rng: random.Random, tmp_path: Path
) -> None:
    """The same while all rings are full: workers die stealing, giving back, waiting for room."""
    with pool(3, settings=SMALL) as ex:
        check_under_fire(ex, rng, tmp_path, 20)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [Settings(), SMALL], ids=["default", "small"])
def test_random_kills_for_a_minute_fail_only_what_ran(
    start_method: str, settings: Settings, rng: random.Random, tmp_path: Path
) -> None:
    """The same for long, with each start method."""
    with pool(4, start_method, settings=settings) as ex:
        # A fresh interpreter takes a while to be ready, and should have done something then.
        pause_s = 0.5 if start_method == "spawn" else 0.03
        until = time.monotonic() + 20
        while time.monotonic() < until:
            check_under_fire(ex, rng, tmp_path, 10, pause_s)


def test_random_kills_of_thieves_lose_no_task(rng: random.Random, tmp_path: Path) -> None:
    """Everything lies in one inbox and must be stolen, while the thieves die."""
    with pool(4) as ex:
        busy = ex.submit(calls.hold, str(tmp_path), "busy")
        keep = wait_for_holders(tmp_path, "busy")["busy"]
        with Killer(ex, 0.017, rng.getrandbits(30), lambda: keep, most=30, least=3):
            futures = [ex.options(retries=1000).submit(calls.nap, 0.0005) for _ in range(1500)]
            assert {future.result(DEADLINE_S) for future in futures} == {0.0005}
        release(tmp_path, "busy")
        assert busy.result(DEADLINE_S) == "busy"
        assert_full_width(ex, tmp_path)


def test_pool_that_is_dropped_while_workers_die_ends(rng: random.Random) -> None:
    """Nobody holds the executor any more; its work is still done, and nothing of it is left."""
    ex = mpsched.WorkStealingExecutor(2)
    futures = [ex.submit(calls.nap, 0.002) for _ in range(100)]
    victims = pids(ex)
    pool_behind = ex._pool
    del ex
    for pid in victims:
        kill(pid)
    assert len(outcomes(futures)) == 100
    assert pool_behind.supervisor.done.wait(DEADLINE_S)  # type: ignore[union-attr]


def test_shutdown_while_workers_are_killed_ends(rng: random.Random) -> None:
    """Kills before, during and after the drain: every future is final."""
    for _ in range(3):
        with pool(3) as ex:
            futures = [ex.submit(calls.nap, 0.001) for _ in range(200)]
            with Killer(ex, 0.01, rng.getrandbits(30), most=30, least=2):
                ex.shutdown()
            assert all(future.done() for future in futures)
            outcomes(futures)
