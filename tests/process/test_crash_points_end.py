"""The parent is killed at a step of its own threads: workers go with it, and nothing stays."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

from mpsched.testing import FaultPlan
from tests.support import leaks
from tests.support.crash_calls import is_stopped
from tests.support.crash_cells import BEFORE_PARENT, pairs
from tests.support.pools import alive, wait_until
from tests.support.scripts import Script

if TYPE_CHECKING:
    import random
    from pathlib import Path

PROGRAM = """
    import logging, sys
    from tests.support import crash_doomed

    logging.disable()
    crash_doomed.main(sys.argv[1:])
"""

PAIRS: Final = pairs(("caller", "supervisor"))
WAYS: Final = ("alone", "with the template", "as a group")

_HANG_S: Final = 300.0
_GONE_S: Final = 10.0  # guarantee 13 says 2 s; a loaded machine is no failure of ours


def end_at(point: str, role: str, way: str, temporary: Path) -> None:
    """Kill a program at a point; assert that all of it is gone, and that it has left nothing."""
    temporary.mkdir()
    # A stopped program is at its point for as long as it takes to kill others with it.
    action = "kill" if way == "alone" else "stop"
    before = [fault for name, fault in BEFORE_PARENT.items() if point.startswith(name)]
    with FaultPlan(*before) as plan:
        env = {**plan.environment(), "TMPDIR": str(temporary)}
        with Script(PROGRAM, args=[role, point, action], env=env) as script:
            if way != "alone":
                pid = script.pid
                wait_until(lambda: is_stopped(pid) or not alive(pid), f"{role} at {point}", _HANG_S)
                if way == "with the template":
                    for child in leaks.children_of(pid):
                        os.kill(child, signal.SIGKILL)
                script.signal(signal.SIGKILL, group=way == "as a group")
            result = script.finish(_HANG_S, grace_s=_GONE_S)
            assert result.rc == -signal.SIGKILL, result.out + result.err
            struck = {strike[:3] for strike in plan.struck}
    assert (point, action, role) in struck
    assert os.listdir(temporary) == []


def test_parent_killed_at_some_crash_points_leaves_nothing(
    rng: random.Random, tmp_path: Path
) -> None:
    """A sample of the points below, and each way once."""
    for way, (point, role) in zip(WAYS, rng.sample(PAIRS, 3), strict=True):
        print(f"{role} at {point}, {way}")
        end_at(point, role, way, tmp_path / way)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "role"), PAIRS)
def test_parent_killed_at_each_crash_point_leaves_nothing(
    point: str, role: str, tmp_path: Path
) -> None:
    """{alone, with the template, with its whole process group}: no process, segment, semaphore or file."""
    for way in WAYS:
        end_at(point, role, way, tmp_path / way)
