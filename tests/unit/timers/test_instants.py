"""What a user may give as a time."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mpsched._timers.instants import Instant, finite, resolve, whole

NOW, MADE = 500.0, 100.0
WALL = 1_800_000_000.0


def resolved(**given: Any) -> Instant:
    return resolve(**given, now=NOW, wall=WALL, made=MADE)


@pytest.mark.parametrize(
    ("given", "run_at"),
    [
        ({"run_at": 700}, 700.0),
        ({"run_at": 700.25}, 700.25),
        ({"run_at": Fraction(1401, 2)}, 700.5),
        ({"run_at": np.float32(700.5)}, 700.5),
        ({"run_at": np.int64(700)}, 700.0),
        ({"run_at": timedelta(seconds=30)}, 530.0),
        ({"after": 30}, 530.0),
        ({"after": timedelta(minutes=-1)}, 440.0),
        ({"after": -1e9}, -999999500.0),
        ({"after": 36500 * 86400.0}, 3153600500.0),
    ],
)
def test_instants_on_the_monotonic_clock(given: dict[str, Any], run_at: float) -> None:
    """Numbers, timedeltas, and numbers from now."""
    assert resolved(**given) == Instant(run_at, None, early=False)


@pytest.mark.parametrize("name", ["run_at", "at"])
def test_instants_on_the_wall_clock(name: str) -> None:
    """An aware datetime, in any zone, follows the wall clock."""
    moment = datetime.fromtimestamp(WALL + 90, UTC)
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=9))):
        assert resolved(**{name: moment.astimezone(zone)}) == Instant(590.0, WALL + 90)


def test_instants_at_both_ends_of_the_calendar() -> None:
    """Centuries before and after are times like others."""
    late = resolved(at=datetime.max.replace(tzinfo=UTC))
    assert late.run_at > 8000 * 365 * 86400 - WALL
    early = resolved(at=datetime.min.replace(tzinfo=UTC))
    assert early.run_at < -1900 * 365 * 86400
    assert resolved(after=timedelta.max).run_at == NOW + timedelta.max.total_seconds()


def test_instants_before_the_scheduler_was_made_are_early() -> None:
    """A small number is due now, and was probably meant as `after=`."""
    assert resolved(run_at=5) == Instant(5.0, None, early=True)
    assert resolved(run_at=MADE) == Instant(MADE, None, early=False)
    assert resolved(run_at=NOW - 46) == Instant(454.0, None, early=False)


@pytest.mark.parametrize(
    "given", [{}, {"run_at": 5, "after": 5}, {"after": 1, "at": 2, "run_at": 3}]
)
def test_instants_exactly_one_is_given(given: dict[str, Any]) -> None:
    """None, or more than one, is a TypeError that shows what was given."""
    shown = " and ".join(
        f"{name}={given[name]}" for name in ("run_at", "after", "at") if name in given
    )
    with pytest.raises(TypeError, match=f"exactly one of .*, not {shown or 'none of them'}$"):
        resolved(**given)


@pytest.mark.parametrize("name", ["run_at", "after"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_instants_not_finite(name: str, bad: float) -> None:
    """NaN and infinities are named."""
    with pytest.raises(ValueError, match=f"{name} must be finite, not {bad}"):
        resolved(**{name: bad})


@pytest.mark.parametrize(
    ("bad", "hint"),
    [
        ("5", "text is not parsed"),
        (True, "number of seconds, not True"),
        (1 + 2j, r"number of seconds, not \(1\+2j\)"),
        (date(2026, 1, 1), "a date has no time of day"),
        ([], r"number of seconds, not \[\]"),
    ],
)
def test_instants_no_numbers(bad: Any, hint: str) -> None:
    """Each kind is refused with its value and, where one is likely, with what was meant."""
    for name in ("run_at", "after"):
        with pytest.raises(TypeError, match=hint):
            resolved(**{name: bad})


@pytest.mark.parametrize("bad", [5, "2026-01-01", date(2026, 1, 1)])
def test_instants_at_takes_datetimes_only(bad: Any) -> None:
    """`at` is a moment of the calendar."""
    with pytest.raises(TypeError, match="at must be an aware datetime, not"):
        resolved(at=bad)


@pytest.mark.parametrize("name", ["run_at", "at"])
def test_instants_naive_datetimes_are_refused(name: str) -> None:
    """Without a zone it names no instant; the hint shows two ways to add one."""
    with pytest.raises(ValueError, match=rf"{name}=.*is naive.*ZoneInfo.*astimezone"):
        resolved(**{name: datetime(2026, 12, 24, 8)})


@pytest.mark.parametrize("years", [-9.9, -1, 0, 9.9])
def test_instants_wall_clock_numbers_are_refused(years: float) -> None:
    """A number within ten years of `time.time()` was meant for another clock."""
    with pytest.raises(ValueError, match=r"looks like time.time\(\).*after=.*at="):
        resolved(run_at=WALL + years * 365.25 * 86400)
    assert resolved(run_at=WALL + 11 * 365.25 * 86400).early is False


def test_instants_a_clock_near_the_wall_clock_is_no_mistake() -> None:
    """Where the monotonic clock shows such numbers, they are times on it."""
    assert resolve(run_at=WALL + 5, now=WALL, wall=WALL, made=WALL) == Instant(WALL + 5)


def test_instants_numbers_too_large_for_a_float() -> None:
    """An int of 400 digits is refused; so is one too long to be printed, and a sum that overflows."""
    for digits in (400, 10_000):
        with pytest.raises(ValueError, match="must fit into a float"):
            finite("x", 10**digits)
    with pytest.raises(ValueError, match="is too far away"):
        resolve(after=1.7e308, now=1.7e308, wall=WALL, made=MADE)


def test_instants_whole_takes_ints_only() -> None:
    """A bool is no priority."""
    assert whole("x", 10**30) == 10**30
    for bad in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="x must be an int"):
            whole("x", bad)
