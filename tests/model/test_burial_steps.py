"""Burial as a process of its own: somebody steals, joins, ends or dies before each of its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.test_deque_kills import SCRIPTS, no_time_passes
from tests.support.burying import LooksAtRunFirst, NoLock, RepairsOneRing, Steps, StepWorld

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["no_time_passes"]

SHORT = ("two children, one thief", "oldest first, two thieves")


def walk(script: str, make: Callable[[], StepWorld] = StepWorld) -> Steps:
    """Walk through all burials of a script, taken apart."""
    scripts, mortal = SCRIPTS[script]
    steps = Steps(scripts, make, mortal=mortal)
    steps.run()
    return steps


@pytest.mark.parametrize("script", SHORT)
def test_burial_steps_lose_no_child_and_call_none_twice(script: str) -> None:
    """Whatever others do between two stores of a burial, also when they die there."""
    steps = walk(script)
    assert steps.deaths > 1000
    assert steps.ends > 10


@pytest.mark.slow
@pytest.mark.parametrize("script", [script for script in SCRIPTS if script not in SHORT])
def test_burial_steps_lose_no_child_in_longer_scripts(script: str) -> None:
    """The same with children of children, and joins that help."""
    assert walk(script).deaths > 500


@pytest.mark.parametrize("wrong", [LooksAtRunFirst, NoLock, RepairsOneRing])
def test_burial_steps_find_a_wrong_parent(wrong: Callable[[], StepWorld]) -> None:
    """The walk notices a parent that is wrong in one step."""
    with pytest.raises(AssertionError):
        walk("two children, one thief", wrong)
