"""Workers that are killed while a root's children run in several of them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mpsched.errors import TaskTimeout, WorkerDied
from tests.support import crash_calls, fork_deaths as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    holders,
    kill,
    pool,
    release,
    wait_for_holders,
    wait_until,
)
from tests.support.soak import Killer

if TYPE_CHECKING:
    from pathlib import Path

    import mpsched


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()]


def test_fork_thief_that_dies_in_a_child_fails_its_join(start_method: str, tmp_path: Path) -> None:
    """The root gets WorkerDied of the thief, and goes on in its own worker."""
    with pool(2, start_method) as ex:
        root = ex.submit(calls.one_child, str(tmp_path), "child")
        found = wait_for_holders(tmp_path, "child", "home")
        assert kill(found["child"])
        error = root.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert (error.pid, error.signal) == (found["child"], "SIGKILL")
        assert alive(found["home"])
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == 1


def test_fork_thief_that_dies_in_a_child_of_a_root_with_retries_costs_nothing(
    tmp_path: Path,
) -> None:
    """Home calls the child again; the root itself is not repeated."""
    with pool(2) as ex:
        root = ex.options(retries=1).submit(calls.one_child, str(tmp_path), "child")
        found = wait_for_holders(tmp_path, "child", "home")
        assert kill(found["child"])
        wait_until(lambda: holders(tmp_path)["child"] != found["child"], "the child's second call")
        release(tmp_path, "child")
        assert root.result(DEADLINE_S) == ("child", found["home"])
        assert root.attempts == 1


@pytest.mark.parametrize("size", [100, 100_000])
def test_fork_thief_that_dies_after_a_child_takes_only_large_outcomes_along(
    tmp_path: Path, size: int
) -> None:
    """What lies in the entry is home's already; what does not, and was not fetched, is lost."""
    with pool(2) as ex:
        root = ex.submit(calls.finished_child, str(tmp_path), size)
        found = wait_for_holders(tmp_path, "child", "home")
        assert kill(found["child"])
        wait_until(lambda: ex.stats().deaths, "the burial")
        release(tmp_path, "home")
        if size == 100:
            assert root.result(DEADLINE_S) == size
        else:
            assert isinstance(root.exception(DEADLINE_S), WorkerDied)


@pytest.mark.parametrize("heed", [True, False], ids=["heeds", "does not heed"])
def test_fork_next_attempt_starts_after_the_last_instant_of_the_old_children(
    tmp_path: Path, heed: bool
) -> None:
    """TREES-1: home is killed; its child elsewhere is told, and killed if it does not stop."""
    log = tmp_path / "log"
    with pool(3) as ex:
        # Who heeds has all the time for it, however busy the machine.
        view = ex.options(retries=1, grace=DEADLINE_S if heed else 0.5)
        root = view.submit(calls.ticking, str(log), str(tmp_path), heed=heed)
        found = wait_for_holders(tmp_path, "child", "home")
        wait_until(lambda: log.read_text().count("child 1 ") > 1, "its ticks")
        assert kill(found["home"])
        assert root.result(DEADLINE_S) == 2
        old = [int(when) for name, number, when in lines(log) if (name, number) == ("child", "1")]
        (second,) = [int(w) for name, number, w in lines(log) if (name, number) == ("home", "2")]
        assert len(old) > 1
        assert max(old) < second
        assert ex.stats().deaths == (1 if heed else 2)
        assert_full_width(ex, tmp_path)


def test_fork_child_is_called_again_after_the_last_instant_of_what_is_below(
    tmp_path: Path,
) -> None:
    """TREES-3: the middle of three workers is killed."""
    log = tmp_path / "log"
    with pool(3) as ex:
        root = ex.options(retries=1).submit(calls.above_middle, str(log), str(tmp_path))
        found = wait_for_holders(tmp_path, "middle", "leaf")
        assert found["middle"] != found["leaf"]
        assert kill(found["middle"])
        wait_until(lambda: ex.stats().deaths, "the burial")
        release(tmp_path, "leaf")
        assert root.result(DEADLINE_S) == "repeated"
        first, second = [int(when) for name, when in lines(log) if name == "middle"]
        leaf = [int(when) for name, when in lines(log) if name == "leaf"]
        assert first < max(leaf) < second
        assert root.attempts == 1


@pytest.mark.parametrize("stop", [False, True], ids=["does not look", "stopped"])
def test_fork_what_is_below_a_dead_child_is_ended_after_a_grace(tmp_path: Path, stop: bool) -> None:
    """The middle of three is killed, and the leaf does not come to its end by itself."""
    log = tmp_path / "log"
    with pool(3) as ex:
        root = ex.options(retries=1).submit(calls.above_middle, str(log), str(tmp_path))
        found = wait_for_holders(tmp_path, "middle", "leaf")
        wait_until(lambda: "leaf " in log.read_text(), "its first tick")
        if stop:
            kill(found["leaf"], signal.SIGSTOP)
            wait_until(lambda: crash_calls.is_stopped(found["leaf"]), "its stop")
        assert kill(found["middle"])
        assert root.result(DEADLINE_S) == "repeated"
        assert not alive(found["leaf"])
        assert ex.stats().deaths == 2
        assert root.attempts == 1
        first, second = [int(when) for name, when in lines(log) if name == "middle"]
        assert first < max(int(when) for name, when in lines(log) if name == "leaf") < second
        assert_full_width(ex, tmp_path)


def test_fork_limit_of_a_root_ends_all_of_it_and_no_other_root(tmp_path: Path) -> None:
    """Home and thief are killed; whoever runs something else is not."""
    with pool(3) as ex:
        assert_full_width(ex, tmp_path)  # whoever takes the child is there when the limit begins
        other = ex.submit(crash_calls.hold, str(tmp_path), "other")
        wait_for_holders(tmp_path, "other")
        root = ex.options(timeout=3.0).submit(calls.holding_both, str(tmp_path))
        found = wait_for_holders(tmp_path, "other", "child")
        assert isinstance(root.exception(DEADLINE_S), TaskTimeout)
        assert not alive(found["child"])
        assert alive(found["other"])
        assert ex.stats().deaths == 2
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert_full_width(ex, tmp_path)


def test_fork_cancelling_a_root_reaches_its_children_elsewhere(tmp_path: Path) -> None:
    """FORK-JOIN-6: they see the root's word, wherever they run."""
    with pool(2) as ex:
        root = ex.submit(calls.asked, str(tmp_path))
        wait_for_holders(tmp_path, "child")
        assert not root.cancel()
        assert root.result(DEADLINE_S) == ("asked", True)


def test_fork_close_that_kills_ends_what_is_elsewhere(tmp_path: Path) -> None:
    """No process of a pool is left, and the root's future is final."""
    with pool(2) as ex:
        root = ex.submit(calls.holding_both, str(tmp_path))
        found = wait_for_holders(tmp_path, "child", "home")
        report = ex.close(timeout=0, kill_after=0.1)
        assert len(report.killed) == 1
        assert isinstance(root.exception(0), WorkerDied)
        assert not alive(found["child"])
        assert not alive(found["home"])


def test_fork_shutdown_waits_for_children_elsewhere(tmp_path: Path) -> None:
    """A draining pool still runs children, and thieves still take them."""
    with pool(2) as ex:
        root = ex.submit(calls.late_child, str(tmp_path))
        wait_for_holders(tmp_path, "home")
        ex.shutdown(wait=False)
        release(tmp_path, "home")
        found = wait_for_holders(tmp_path, "home", "child")
        assert found["home"] != found["child"]
        assert not root.done()
        release(tmp_path, "child")
        assert root.result(DEADLINE_S) == "child"


def test_fork_roots_survive_workers_that_are_killed_all_the_time(seed: int) -> None:
    """Whoever is killed whenever: with retries each root gives its one result."""
    with pool(3) as ex:
        expected = [calls.leaves_alone(6, number) for number in range(12)]

        with Killer(ex, 0.045, seed, most=60, least=2) as killer:
            patient = ex.options(retries=1000)
            roots: list[mpsched.Future[int]] = []

            def enough() -> bool:
                # Never so many that all workers have one of their own, and nobody steals.
                if all(root.done() for root in roots):
                    more = range(len(roots), len(roots) + 2)
                    roots.extend(patient.submit(calls.leaves, 6, n % 12) for n in more)
                return killer.kills > 15 and ex.stats().child_steals > 0

            wait_until(enough, "sixteen kills, and a steal")
        for number, root in enumerate(roots):
            assert root.result(DEADLINE_S) == expected[number % 12]
