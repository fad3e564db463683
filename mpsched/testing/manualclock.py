"""`ManualClock`: time that a test moves by hand."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

# 2026-01-01, 00:00 UTC. Any instant will do; one that never changes makes runs alike.
_START = 1_767_225_600.0


@final
class ManualClock:
    """A clock that stands still until the test moves it, for `Scheduler(clock=...)`.

    A scheduler with such a clock waits for the next move, not for time: a test of what happens in a
    week takes milliseconds. Work itself takes as long as it takes.

    Context:
        Any thread.

    Example:
        >>> clock = ManualClock()
        >>> start = clock.monotonic()
        >>> clock.advance(3600)
        >>> clock.monotonic() - start
        3600.0
        >>> clock.jump_wall(-7200)  # somebody sets the machine's clock back by two hours
        >>> clock.monotonic() - start
        3600.0
    """

    __slots__ = ("_asleep", "_lock", "_monotonic", "_wall", "_watchers")

    def __init__(self, monotonic: float = 1000.0, wall: float | datetime = _START) -> None:
        """Make a clock.

        Args:
            monotonic: seconds on the monotonic clock.
            wall: seconds since 1970, or an aware datetime.

        Raises:
            ValueError: A time that is not finite, or a naive datetime.
        """
        self._lock = threading.Lock()
        self._monotonic = _seconds("monotonic", monotonic)
        self._wall = _since_1970(wall) - self._monotonic
        self._asleep = 0.0
        self._watchers: dict[object, Callable[[], None]] = {}

    # --- moving it -----------------------------------------------------------------------------------

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass: both clocks go forward. What waits on the clock is woken.

        Raises:
            ValueError: `seconds` is negative (use `jump_wall`) or not finite.
        """
        passed = _span("advance", seconds)
        with self._lock:
            self._monotonic += passed
        self._moved()

    def jump_wall(self, seconds: float | timedelta) -> None:
        """Set the wall clock forward, or back; no time passes.

        Raises:
            ValueError: `seconds` is not finite.
        """
        jump = _seconds("jump_wall", seconds)
        with self._lock:
            self._wall += jump
        self._moved()

    def suspend(self, seconds: float | timedelta) -> None:
        """Put the machine to sleep: the wall clock goes on, the monotonic one stands still.

        Raises:
            ValueError: `seconds` is negative or not finite.
        """
        slept = _span("suspend", seconds)
        with self._lock:
            self._wall += slept
            self._asleep += slept
        self._moved()

    # --- as a Clock ----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the seconds on the monotonic clock."""
        return self._monotonic

    def wall(self) -> float:
        """Return the seconds since 1970."""
        with self._lock:
            return self._monotonic + self._wall

    def boottime(self) -> float | None:
        """Return the seconds on the clock that goes on in a suspend."""
        with self._lock:
            return self._monotonic + self._asleep

    def timeout(self, seconds: float | None, *, walls: bool = False) -> float | None:
        """Return None: who waits on this clock is woken when it is moved."""
        return None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called after each move, in the thread that moved it; return what ends that."""
        key = object()
        self._watchers[key] = wake

        def end() -> None:
            self._watchers.pop(key, None)

        return end

    def _moved(self) -> None:
        # Without the lock: who is woken reads the clock.
        for wake in list(self._watchers.values()):
            wake()


def _seconds(what: str, value: float | timedelta) -> float:
    from datetime import timedelta

    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{what} takes seconds or a timedelta, not {value!r}")
    if not math.isfinite(seconds):
        raise ValueError(f"{what} takes a finite number of seconds, not {value!r}")
    return float(seconds)


def _span(what: str, value: float | timedelta) -> float:
    seconds = _seconds(what, value)
    if seconds < 0:
        raise ValueError(
            f"{what}({value!r}): time does not go back; the wall clock may: jump_wall({value!r})"
        )
    return seconds


def _since_1970(wall: float | datetime) -> float:
    from datetime import datetime

    if not isinstance(wall, datetime):
        return _seconds("wall", wall)
    if wall.utcoffset() is None:
        raise ValueError(f"wall={wall!r} is naive, so it names no instant: add a time zone")
    return wall.timestamp()
