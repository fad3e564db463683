"""The parent's own threads pause, raise or are interrupted at a step of a protocol: nothing is lost.

Each program here runs under a fault plan, so that the parent has its crash points as well. Lines in between
are in test_interrupt_lines.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched.testing import FaultPlan
from tests.support.crash_cells import pairs
from tests.support.scripts import run_script

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

PROGRAM = """
    import logging, sys
    from tests.support import crash_parent

    logging.disable()
    crash_parent.main(sys.argv[1:])
"""

CALLERS = [point for point, _ in pairs(["caller"])]
SUPERVISORS = [point for point, _ in pairs(["supervisor"])]
_REPAIRS = ("ring.repair.begun", "ring.repair.undone")
"""Reached when a worker has died at one certain step: see test_crash_points.py."""


def struck_by(*arguments: str, timeout: float = 60.0) -> set[tuple[str, str]]:
    """Run one of `crash_parent`'s programs; return which (point, action) has struck."""
    with FaultPlan() as plan:
        result = run_script(PROGRAM, args=arguments, env=plan.environment(), timeout=timeout)
    assert result.rc == 0, result.out + result.err
    return {(point, action) for point, action in map(str.split, result.out.splitlines())}


def cells(points: Iterable[str], *actions: str) -> set[tuple[str, str]]:
    return {(point, action) for point in points for action in actions}


def test_crash_points_of_callers_lose_nothing(seed: int) -> None:
    """A sample: {pause, exception, KeyboardInterrupt} in the thread that submits and waits."""
    assert struck_by("callers", str(seed), "60")


@pytest.mark.slow
def test_crash_points_of_callers_lose_nothing_in_any_cell() -> None:
    """Every future is final and right, nothing ran twice, no section and no lock stays taken."""
    struck = struck_by("callers", "0", "0", timeout=600)
    assert struck >= cells(CALLERS, "pause", "raise", "interrupt")


def test_crash_points_of_the_supervisor_lose_nothing(rng: random.Random) -> None:
    """A sample of the points below."""
    points = rng.sample([point for point in SUPERVISORS if point not in _REPAIRS], 3)
    assert struck_by("supervisors", ",".join(points))


@pytest.mark.slow
@pytest.mark.parametrize("point", [point for point in SUPERVISORS if point not in _REPAIRS])
def test_crash_points_of_the_supervisor_lose_nothing_in_any_cell(point: str) -> None:
    """It pauses: late, and no more. It raises: the pool has failed, each future is final, nothing is left."""
    struck = struck_by("supervisors", point, timeout=300)
    assert struck == cells([point], "pause", "raise")
