"""What a user may give as a time, and what it means on the monotonic clock.

See README.md, "Instants".
"""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime, timedelta

# A number so near to `time.time()` was meant as wall-clock time: no machine has been up for as long.
_NEAR_S: Final = 10 * 365.25 * 86400


class Instant(NamedTuple):
    """A time as the heap takes it.

    Attributes:
        run_at: seconds on the monotonic clock.
        at: the wall-clock time that it follows, in seconds since 1970, or None.
        early: whether it was a number from before the scheduler was made: it is due now, and the
            caller probably meant `after=`.
    """

    run_at: float
    at: float | None = None
    early: bool = False


def finite(what: str, value: object) -> float:
    """Return a number of seconds as a float.

    Raises:
        TypeError: It is no real number: None, bool, text, complex.
        ValueError: It is NaN or infinite, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number of seconds, not {value!r}{_hint(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} must fit into a float, not {_short(value)}") from None
    if not math.isfinite(number):
        raise ValueError(
            f"{what} must be finite, not {value!r}: for a task without a time, schedule it when it has one"
        )
    return number


def not_nan(now: float) -> None:
    """Refuse NaN as the present: everything would be due, or nothing.

    Raises:
        ValueError: It is NaN.
    """
    if math.isnan(now):
        raise ValueError("now must be a time, not nan")


def whole(what: str, value: object) -> int:
    """Return an int.

    Raises:
        TypeError: It is none, or a bool.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, higher is earlier, not {value!r}")
    return int(value)


def resolve(
    run_at: float | timedelta | datetime | None = None,
    after: float | timedelta | None = None,
    at: datetime | None = None,
    *,
    now: float,
    wall: float,
    made: float,
) -> Instant:
    """Say what a time means on the monotonic clock.

    Args:
        run_at: a number on the monotonic clock, a timedelta from now, or an aware datetime.
        after: seconds from now, or a timedelta.
        at: an aware datetime.
        now: the monotonic clock.
        wall: seconds since 1970.
        made: the monotonic clock when the scheduler was made.

    Raises:
        TypeError: Not exactly one of the three was given, or one that is no time.
        ValueError: A time that is not finite, a naive datetime, or a number that looks like `time.time()`.
    """
    given = [
        f"{name}={value!r}"
        for name, value in (("run_at", run_at), ("after", after), ("at", at))
        if value is not None
    ]
    if len(given) != 1:
        raise TypeError(
            "give exactly one of run_at (on the scheduler's clock), after (from now) and at (an aware "
            f"datetime), not {' and '.join(given) or 'none of them'}"
        )
    from datetime import datetime, timedelta

    if after is not None:
        if isinstance(after, timedelta):
            return Instant(now + after.total_seconds())
        return Instant(_sum("after", now, finite("after", after)))
    if at is not None:
        if not isinstance(at, datetime):
            raise TypeError(f"at must be an aware datetime, not {at!r}{_hint(at)}")
        return _calendar("at", at, now, wall)
    if isinstance(run_at, timedelta):
        return Instant(now + run_at.total_seconds())
    if isinstance(run_at, datetime):
        return _calendar("run_at", run_at, now, wall)
    number = finite("run_at", run_at)
    if abs(number - wall) < _NEAR_S and number - now > _NEAR_S:
        raise ValueError(
            f"run_at={run_at!r} looks like time.time(), but counts from an arbitrary start (now it is "
            f"{now:.3f}): use after=seconds from now, or at=an aware datetime"
        )
    return Instant(number, early=number < made)


def _calendar(what: str, value: datetime, now: float, wall: float) -> Instant:
    if value.utcoffset() is None:
        raise ValueError(
            f"{what}={value!r} is naive, so it names no instant: add a time zone, such as "
            f"{what}=datetime(..., tzinfo=ZoneInfo('Europe/Berlin')), or .astimezone() for local time"
        )
    from datetime import UTC, datetime, timedelta

    # Not `.timestamp()`: it leaves the range of the platform's clock type behind at both ends.
    seconds = (value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)
    return Instant(now + (seconds - wall), at=seconds)


def _sum(what: str, now: float, seconds: float) -> float:
    total = now + seconds
    if not math.isfinite(total):
        raise ValueError(f"{what}={seconds!r} is too far away for a float")
    return total


def _hint(value: object) -> str:
    from datetime import date, datetime, timedelta

    if isinstance(value, timedelta):
        return ": use .total_seconds()"
    if isinstance(value, datetime):
        return ": give a moment of the calendar to Scheduler.schedule as at="
    if isinstance(value, date):
        return ": a date has no time of day, use a datetime"
    if isinstance(value, str):
        return ": text is not parsed, use a number, a timedelta or datetime.fromisoformat(...)"
    return ""


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python is willing to print
        return f"a {type(value).__name__} with very many digits"
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)"
