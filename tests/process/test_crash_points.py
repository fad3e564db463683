"""Who is killed or stopped at a step of a protocol takes with it what it ran, and nothing else.

The parent's own threads are in test_crash_points_parent.py.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mpsched.testing import Fault, FaultPlan
from tests.support.crash_cells import Cell, pairs
from tests.support.crash_scene import Scene
from tests.support.pools import pool

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = pairs(("template", "newborn", "owner", "thief", "waiter", "helper"))
ACTIONS = ("kill", "stop")
WIDTHS = (1, 2, 4)


def method_of(point: str) -> str:
    return "spawn" if point == "newborn.exec-tied" else "forkserver"


@pytest.mark.parametrize("part", range(5))
def test_crash_points_some_cells_lose_nothing(
    part: int, rng: random.Random, tmp_path: Path
) -> None:
    """A sample of the product below."""
    number = struck = 0
    while number < 5 or not struck:  # some are reached by luck alone
        point, role = rng.choice(PAIRS)
        cell = Cell(
            *(point, role, rng.choice(ACTIONS), rng.choice(WIDTHS)),
            method=method_of(point),
            hit=rng.randint(1, 3),
        )
        struck += cell.run(tmp_path / str(number))
        number += 1


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), PAIRS)
def test_crash_points_each_cell_loses_nothing(point: str, role: str, tmp_path: Path) -> None:
    """{SIGKILL, SIGSTOP then SIGCONT} at this point, for 1, 2 and 4 workers.

    Futures are final, attempts ran once, what did not run at the kill did run, locks are free, the pool has
    its full width, and ends by itself.
    """
    rng = random.Random(f"{point} {role}")
    for action in ACTIONS:
        struck = []
        for workers in WIDTHS:
            cell = Cell(
                *(point, role, action, workers), method=method_of(point), hit=rng.randint(1, 2)
            )
            struck.append(cell.run(tmp_path / f"{action}{workers}"))
        # With one worker there are no thieves; and who leaps over whom is a matter of luck.
        again = 0
        while not any(struck[1:]):
            again += 1
            assert again <= 5, f"never reached: {point} as {role}"
            cell = Cell(point, role, action, 2 * (1 + again % 2), method=method_of(point))
            struck.append(cell.run(tmp_path / f"{action}-again{again}"))


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
    number = struck = 0
    while number < 4 or not struck:
        struck += several(rng, tmp_path / str(number))
        number += 1


@pytest.mark.slow
def test_crash_points_several_at_once_lose_nothing_for_long(
    rng: random.Random, tmp_path: Path
) -> None:
    """The same two hundred times."""
    assert sum(several(rng, tmp_path / str(number)) for number in range(200)) > 300


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
