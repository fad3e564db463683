"""A program that is ended by SIGKILL at a step of its own threads, for test_crash_parent_points.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpsched.testing.crashpoints import Armed
from tests.process.test_interrupt_lines import Scene
from tests.support import crash_parent
from tests.support.pools import pool

if TYPE_CHECKING:
    from collections.abc import Sequence

_TURNS: Final = 20


def caller(point: str, action: str) -> None:
    """Do what a program does until its main thread is struck."""
    here = Path("caller")
    here.mkdir()
    with pool(2) as ex:
        scene = Scene(ex, here)
        for turn in range(_TURNS):
            for scenario in crash_parent.CALLERS.values():
                # The first, or a later one: where it has come before without harm.
                armed = Armed(point, action, "caller", None, None, 1 + turn % 2, 1, _FOR_EVER_S)
                crash_parent._act(scene, scenario, armed)
                scene.check()


def supervisor(point: str, action: str) -> None:
    """Give a pool everything to do until its own thread is struck."""
    strikes = crash_parent.Strikes()
    for turn in range(_TURNS):
        armed = [Armed(point, action, "supervisor", None, None, 1, 1, _FOR_EVER_S)]
        if point in crash_parent.BEFORE:
            armed.insert(0, crash_parent.BEFORE[point])
        here = Path(f"supervisor{turn}")
        here.mkdir()
        crash_parent._supervised(here, armed, strikes)


_FOR_EVER_S: Final = 600.0
"""A process that is stopped is killed before that."""


def main(arguments: Sequence[str]) -> None:
    """Be struck as a role, at a point, by an action; returning is a failure."""
    role, point, action = arguments
    {"caller": caller, "supervisor": supervisor}[role](point, action)
    raise AssertionError(f"never reached: {point} as {role}")


if __name__ == "__main__":
    main(sys.argv[1:])
