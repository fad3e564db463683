"""Waits are capped, and jumps of the wall clock are noticed."""

from __future__ import annotations

import math
import sys
import time

import pytest

from mpsched._base.clock import JUMP_S, Jump, SystemClock, WallWatch
from mpsched.testing import ManualClock


@pytest.mark.parametrize(
    ("seconds", "plain", "walls"),
    [(5.0, 5.0, 5.0), (0.0, 0.0, 0.0), (-3.0, 0.0, 0.0), (90.0, 90.0, 60.0), (1e9, 3600.0, 60.0),
     (math.inf, 3600.0, 60.0), (None, 3600.0, 60.0), (math.nan, 3600.0, 60.0)],
)  # fmt: skip
def test_clock_waits_are_capped(seconds: float | None, plain: float, walls: float) -> None:
    """At most an hour, a minute with wall times; nothing overflows, spins or waits for ever (B7, B9)."""
    clock = SystemClock()
    assert clock.timeout(seconds) == plain
    assert clock.timeout(seconds, walls=True) == walls


def test_clock_system_is_the_machines() -> None:
    """Its clocks are those of `time`."""
    clock = SystemClock()
    for read, same in ((clock.monotonic, time.monotonic), (clock.wall, time.time)):
        before = same()
        assert before <= read() <= same()
    assert (clock.boottime() is None) == (not hasattr(time, "CLOCK_BOOTTIME"))
    if sys.platform == "linux":
        boot = clock.boottime()
        assert boot is not None
        assert boot >= time.monotonic() - 1
    end = clock.watch(lambda: pytest.fail("nobody moves it"))
    end()


def test_clock_jump_is_seen_once() -> None:
    """Forward and back, with its size; time that passes is none."""
    clock = ManualClock()
    watch = WallWatch(clock)
    clock.advance(1e6)
    assert watch.look() is None
    for jump in (3600.0, -7200.0, 200 * 365 * 86400.0):
        before = watch.offset
        clock.jump_wall(jump)
        seen = watch.look()
        assert seen is not None
        assert seen.seconds == pytest.approx(jump)
        assert seen.suspended == 0.0
        assert watch.offset - before == pytest.approx(jump)
        assert watch.look() is None


def test_clock_suspend_is_told_apart() -> None:
    """A suspend moves the wall clock too, and the boot clock tells (B5)."""
    clock = ManualClock(monotonic=0.0, wall=0.0)
    watch = WallWatch(clock)
    clock.suspend(4680.0)
    assert watch.look() == Jump(4680.0, 4680.0)
    clock.suspend(100.0)
    clock.jump_wall(-30.0)
    assert watch.look() == Jump(70.0, 100.0)


def test_clock_small_changes_add_up_to_a_jump() -> None:
    """A slewed clock is followed as soon as it is off by a tenth of a second."""
    clock = ManualClock(monotonic=0.0, wall=0.0)
    watch = WallWatch(clock)
    jumps = []
    for _ in range(25):
        clock.jump_wall(0.03)
        if (jump := watch.look()) is not None:
            jumps.append(jump.seconds)
        assert abs(clock.wall() - clock.monotonic() - watch.offset) < JUMP_S
    assert jumps == [pytest.approx(0.12)] * 6


def test_clock_a_thread_put_aside_between_readings_is_no_jump() -> None:
    """Of several readings the tightest counts."""

    class Slow:
        """Monotonic and wall time differ by 1000; every reading but the fourth takes 0.5 s."""

        def __init__(self) -> None:
            self.now = 0.0
            self.reads = 0

        def monotonic(self) -> float:
            return self.now

        def wall(self) -> float:
            self.reads += 1
            self.now += 0.0 if self.reads % 5 == 4 else 0.5
            return self.now + 1000.0

        def boottime(self) -> None:
            return None

    watch = WallWatch(Slow())  # type: ignore[arg-type]
    assert watch.offset == 1000.0
    assert watch.look() is None
