"""The parent's own threads pause, raise or are interrupted at a step of a protocol: nothing is lost.

Each program here runs under a fault plan, so that the parent has its crash points as well. Lines in between
are in test_interrupt_lines.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched.testing import Fault, FaultPlan, crash_points
from tests.support.crash_cells import BEFORE_PARENT, pairs
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

_HANG_S = 110.0
"""Of a program; it is through in a tenth of this where cores are free."""

CALLERS = [point for point, _ in pairs(["caller"])]
SUPERVISORS = [point for point, _ in pairs(["supervisor"])]


def struck_by(*arguments: str, timeout: float = _HANG_S) -> set[tuple[str, str]]:
    """Run one of `crash_parent`'s programs; return which (point, action) has struck."""
    faults = [fault for point, fault in BEFORE_PARENT.items() if any(point in a for a in arguments)]
    with FaultPlan(*faults) as plan:
        result = run_script(PROGRAM, args=arguments, env=plan.environment(), timeout=timeout)
    assert result.rc == 0, result.out + result.err
    return {(point, action) for point, action in map(str.split, result.out.splitlines())}


def cells(points: Iterable[str], *actions: str) -> set[tuple[str, str]]:
    return {(point, action) for point in points for action in actions}


def test_crash_points_are_all_reached() -> None:
    """A point that nobody ever comes to proves nothing: each is, in one program or another."""
    faults = (
        # For who repairs, and for home, which hears that a thief is dead.
        Fault("ring.take.dirty", "kill", role="owner", hit=9, times=20),
        Fault("steal.running", "kill", role="thief", hit=1, times=2),
        Fault("steal.taken", "kill", role="thief", hit=2, times=6),
    )
    with FaultPlan(*faults) as plan:
        result = run_script(PROGRAM, args=["everywhere"], env=plan.environment(), timeout=_HANG_S)
    assert result.rc == 0, result.out + result.err
    reached = {point for point, _ in plan.reached}
    assert {*crash_points()} - reached == set()


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
    # (With bad luck it is a caller that comes there, or nobody.)
    for point, _ in struck_by("supervisors", ",".join(rng.sample(SUPERVISORS, 2)), "1"):
        assert point in SUPERVISORS


@pytest.mark.slow
@pytest.mark.parametrize("point", SUPERVISORS)
def test_crash_points_of_the_supervisor_lose_nothing_in_any_cell(point: str) -> None:
    """It pauses: late, and no more. It raises: the pool has failed, each future is final, nothing is left."""
    struck = struck_by("supervisors", point, "20", timeout=600)
    assert struck == cells([point], "pause", "raise")
