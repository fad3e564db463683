"""Who is killed or stopped at a step of a protocol takes with it what it ran, and nothing else.

The parent's own threads are in test_crash_points_parent.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched.testing import Fault, FaultPlan
from tests.support.crash_cells import ACTIONS, Cell, pairs, strike_each, strike_some
from tests.support.crash_forked import FORKED_PAIRS
from tests.support.crash_scene import Scene
from tests.support.pools import pool
from tests.support.scripts import run_script

if TYPE_CHECKING:
    import random
    from pathlib import Path

PAIRS = pairs(("template", "newborn", "owner", "thief", "waiter", "helper"))
FORKED = """
    import logging, sys
    from tests.support import crash_forked

    logging.disable()
    crash_forked.main(sys.argv[1:])
"""


@pytest.mark.parametrize("part", range(3))
def test_crash_points_some_cells_lose_nothing(
    part: int, rng: random.Random, tmp_path: Path
) -> None:
    """A sample of the product below."""
    strike_some(rng, PAIRS, 5, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), PAIRS)
def test_crash_points_each_cell_loses_nothing(point: str, role: str, tmp_path: Path) -> None:
    """{SIGKILL, SIGSTOP then SIGCONT} at this point, for 1, 2 and 4 workers.

    Futures are final, attempts ran once, what did not run at the kill did run, locks are free, the pool has
    its full width, and ends by itself.
    """
    strike_each(point, role, tmp_path)


def run_forked(*arguments: str, timeout: float) -> None:
    """Run one of `crash_forked`'s programs, under a plan."""
    with FaultPlan() as plan:
        result = run_script(FORKED, args=arguments, env=plan.environment(), timeout=timeout)
    assert (result.rc, result.out) == (0, "done\n"), result.out + result.err


def test_crash_points_some_cells_of_forked_workers_lose_nothing(seed: int) -> None:
    """A sample of the product below."""
    run_forked("some", str(seed), "6", timeout=110)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), FORKED_PAIRS)
def test_crash_points_each_cell_of_forked_workers_loses_nothing(point: str, role: str) -> None:
    """The same product with the start method `fork`: the template is a fork of a program."""
    run_forked("each", point, role, timeout=600)


def several(rng: random.Random, folder: Path) -> int:
    """Strike at four random points in one pool; return how many have struck."""
    folder.mkdir()
    faults = [
        Fault(point, rng.choice(ACTIONS), role=role, hit=rng.randint(1, 4), seconds=0.1)
        for point, role in rng.sample(PAIRS, 4)
    ]
    plan = FaultPlan(*faults)
    try:
        with plan, pool(rng.choice((2, 3, 4))) as ex:
            scene = Scene(ex, folder)
            for _ in range(3):
                scene.work(poison=rng.random() < 0.3)
            scene.check(plan.struck)
    except BaseException as problem:
        problem.add_note(f"{faults}; struck: {plan.struck}")
        raise
    return len(plan.struck)


def test_crash_points_several_at_once_lose_nothing(rng: random.Random, tmp_path: Path) -> None:
    """Who recovers is struck as well: four faults in one pool, a few times."""
    struck = number = 0
    while number < 4 or not struck:  # who comes to which point is nobody's plan
        assert number < 40, "nothing was struck"
        struck += several(rng, tmp_path / str(number))
        number += 1


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_crash_points_several_at_once_lose_nothing_for_long(
    part: int, rng: random.Random, tmp_path: Path
) -> None:
    """The same two hundred times, in parts: on a machine that is busy each has time enough."""
    print(f"part {part}")
    assert sum(several(rng, tmp_path / str(number)) for number in range(20)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ring.repair.begun", "ring.repair.undone"])
@pytest.mark.parametrize("action", ACTIONS)
def test_crash_points_in_a_repair_lose_nothing(point: str, action: str, tmp_path: Path) -> None:
    """A worker dies in a claim, and whoever repairs that ring next is struck in the repair."""
    struck = 0
    for number in range(40):
        struck += Cell(point, None, action, 4, hit=1).run(tmp_path / str(number))
        if struck == 3:
            return
    raise AssertionError(f"struck {struck} times in 40 pools")
