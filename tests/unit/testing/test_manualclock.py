"""A clock that is moved by hand."""

from __future__ import annotations

import doctest
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mpsched.testing import ManualClock, manualclock


def shown(clock: ManualClock) -> tuple[float, float, float | None]:
    return clock.monotonic(), clock.wall(), clock.boottime()


def test_manualclock_moves_what_each_step_moves() -> None:
    """advance: all clocks; jump_wall: the wall clock; suspend: wall and boot clock."""
    clock = ManualClock(monotonic=10.0, wall=1000.0)
    assert shown(clock) == (10.0, 1000.0, 10.0)
    clock.advance(5)
    assert shown(clock) == (15.0, 1005.0, 15.0)
    clock.jump_wall(-600)
    assert shown(clock) == (15.0, 405.0, 15.0)
    clock.suspend(timedelta(minutes=1))
    assert shown(clock) == (15.0, 465.0, 75.0)
    clock.advance(timedelta(milliseconds=500))
    assert shown(clock) == (15.5, 465.5, 75.5)


def test_manualclock_starts_at_fixed_instants() -> None:
    """Two clocks moved alike show the same, in every run; a datetime is welcome."""
    one, two = ManualClock(), ManualClock()
    for clock in (one, two):
        clock.advance(3)
        clock.jump_wall(1)
    assert shown(one) == shown(two)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    assert ManualClock(wall=start).wall() == pytest.approx(start.timestamp())


def test_manualclock_wakes_who_watches() -> None:
    """After each move, with the new time; not any more when it is ended."""
    clock = ManualClock(monotonic=0.0)
    seen: list[float] = []
    end = clock.watch(lambda: seen.append(clock.monotonic()))
    clock.advance(1)
    clock.jump_wall(9)
    clock.suspend(9)
    assert seen == [1.0, 1.0, 1.0]
    end()
    end()
    clock.advance(1)
    assert seen == [1.0, 1.0, 1.0]


def test_manualclock_waits_have_no_limit() -> None:
    """Who waits on it is woken by a move, not by time."""
    clock = ManualClock()
    assert clock.timeout(5.0) is None
    assert clock.timeout(None, walls=True) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, "5", None, True])
def test_manualclock_refuses_odd_input(bad: Any) -> None:
    """What is no finite number of seconds moves nothing."""
    clock = ManualClock()
    before = shown(clock)
    for move in (clock.advance, clock.jump_wall, clock.suspend):
        with pytest.raises((TypeError, ValueError), match=move.__name__):
            move(bad)
    assert shown(clock) == before
    with pytest.raises((TypeError, ValueError), match="monotonic"):
        ManualClock(monotonic=bad)


def test_manualclock_time_does_not_go_back() -> None:
    """Only the wall clock does; the hint says how. A naive datetime is no instant."""
    for move in (ManualClock().advance, ManualClock().suspend):
        with pytest.raises(ValueError, match=r"time does not go back.*jump_wall\(-1\)"):
            move(-1)
    with pytest.raises(ValueError, match="naive"):
        ManualClock(wall=datetime(2026, 1, 1))


def test_manualclock_example_is_true() -> None:
    """The docstring's example does what it shows."""
    assert doctest.testmod(manualclock).failed == 0
