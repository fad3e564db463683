"""Work that goes on for minutes while workers are killed all the time; a short run of each by day."""

from __future__ import annotations

import random
import time
from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched.errors import WorkerDied
from tests.support import crash_calls, fork_calls, pools
from tests.support.soak import Footprint, Killer, count_as_one, count_in_pieces

if TYPE_CHECKING:
    from concurrent.futures import Future

SMALL = (3, 150)
T3 = (42, 2000)
NODES = {SMALL: 63_390, T3: 4_112_896}
"""Below the root, by seed and width."""
ROOT_S = 0.002
HANG_S = 900.0


def count_pieces_under_fire(tree: tuple[int, int], every_s: float, seed: int, least: int) -> None:
    """Count a tree in roots of 2 ms, with kills; again until more than so many workers died."""
    with pools.pool(4) as ex:
        with Killer(ex, every_s, seed, most=20 * least) as killer:
            while killer.kills <= least:
                found = count_in_pieces(ex, fork_calls.root(*tree), ROOT_S, 64)
                assert found == NODES[tree], f"seed {seed}"
        assert ex.state == "accepting"


def test_soak_tree_in_pieces_is_counted_exactly() -> None:
    """A tree whose frontier comes back and is submitted again, a worker killed every 20 ms."""
    count_pieces_under_fire(SMALL, 0.02, 1, 3)


@pytest.mark.slow
def test_soak_t3_in_pieces_is_counted_exactly() -> None:
    """T3, a worker killed every 100 ms."""
    count_pieces_under_fire(T3, 0.1, 2, 50)


def count_one_under_fire(tree: tuple[int, int], every_s: float, seed: int, least: int) -> None:
    """Count a tree as one recursion, with kills of thieves; again until more than so many died."""
    where = mpsched.shared_array(1, "i8")
    kills = 0
    with pools.pool(4) as ex:
        while kills <= least:
            where[0] = 0
            future = ex.options(retries=1000).submit(count_as_one, tree, where)
            pools.wait_until(lambda: where[0], "the root runs")
            with Killer(ex, every_s, seed + kills, lambda: int(where[0])) as killer:
                found = future.result(HANG_S)
            assert found == NODES[tree], f"seed {seed}"
            kills += killer.kills
        assert ex.state == "accepting"


def test_soak_recursion_survives_its_thieves() -> None:
    """One root, of which others run parts, and any of these is killed every 10 ms."""
    count_one_under_fire(SMALL, 0.01, 3, 3)


@pytest.mark.slow
def test_soak_t3_as_one_recursion_survives_its_thieves() -> None:
    """T3 by one root, a thief killed every 100 ms."""
    count_one_under_fire(T3, 0.1, 4, 20)


def stay_flat(tasks: int, every_s: float, seed: int, least: int) -> None:
    """Run tiny tasks in bursts, with more kills than `least`; assert that the parent does not grow."""
    marks: list[Footprint] = []
    with pools.pool(2) as ex:
        patient = ex.options(retries=1000)
        burst = tasks // 20
        with Killer(ex, every_s, seed, most=20 * least) as killer:
            while len(marks) < 20 or killer.kills <= least:
                futures = [patient.submit(crash_calls.identity, n) for n in range(burst)]
                assert [future.result(pools.DEADLINE_S) for future in futures] == [*range(burst)]
                del futures
                marks.append(Footprint())
    settled, last = marks[len(marks) // 4], marks[-1]
    print(f"seed {seed}: {marks}")
    assert last.memory < settled.memory + (8 << 20), marks
    # A worker that is being replaced has a descriptor more, or less.
    assert last.descriptors <= settled.descriptors + 4, marks
    assert last.threads <= settled.threads, marks


def test_soak_tiny_tasks_leave_the_parent_as_it_was() -> None:
    """20,000 tasks, a worker killed every 50 ms: memory, descriptors, threads stay."""
    stay_flat(20_000, 0.05, 5, 3)


@pytest.mark.slow
def test_soak_many_tiny_tasks_leave_the_parent_as_it_was() -> None:
    """200,000 tasks, a worker killed every 50 ms."""
    stay_flat(200_000, 0.05, 6, 10)


def kill_at_random(kills: int, seed: int) -> None:
    """Kill so many workers while tasks of every kind come and go; every future becomes final."""
    dice = random.Random(seed)
    submitted = died = 0
    begun = time.monotonic()
    with pools.pool(4) as ex:
        # Who never was ready is one that cannot start: four in a row of these fail the pool.
        assert ex.submit(crash_calls.identity, 0).result(pools.DEADLINE_S) == 0
        open_: deque[Future[Any]] = deque()
        # As fast as there are results; some die before they are ready.
        with Killer(ex, 0.002, seed, most=kills, done=lambda: submitted) as killer:
            while killer.is_alive():
                how = ex.options(retries=dice.choice([0, 0, 1, 5]))
                what = dice.randrange(4)
                if what == 0:
                    open_.append(how.submit(fork_calls.fib, 10))
                elif what == 1:
                    open_.append(how.submit(crash_calls.large, 300_000))
                elif what == 2:
                    open_.append(how.submit(crash_calls.nap, 0.001))
                else:
                    open_.append(how.submit(crash_calls.identity, submitted))
                submitted += 1
                while len(open_) > 200:
                    died += ends(open_.popleft())
        last = time.monotonic()
        left = wait(open_, pools.DEADLINE_S).not_done
        assert not left, f"seed {seed}: {len(left)} futures hang"
        died += sum(map(ends, open_))
        assert ex.submit(crash_calls.identity, 1).result(pools.DEADLINE_S) == 1
        again = time.monotonic()
    assert killer.kills == kills, killer.problem
    print(
        f"seed {seed}: {kills} kills survived in {last - begun:.1f} s, all final {again - last:.3f} s "
        f"after the last; {submitted} tasks, {died} of them died"
    )
    assert died < submitted


def ends(future: Future[Any]) -> bool:
    """Wait for a future; whether its worker was killed. It has no other reason to fail."""
    error = future.exception(pools.DEADLINE_S)
    assert error is None or isinstance(error, WorkerDied), repr(error)
    return error is not None


def test_soak_pool_survives_many_kills() -> None:
    """50 workers killed at random: each future is final, and the pool goes on."""
    kill_at_random(50, 7)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_soak_pool_survives_ten_thousand_kills(part: int, request: pytest.FixtureRequest) -> None:
    """10,000 in all, or as many as `--kills` says."""
    kill_at_random(-(-request.config.getoption("--kills") // 10), 100 + part)
