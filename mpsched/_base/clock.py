"""The two clocks, how long one may wait on them, and how a jump of the wall clock is noticed.

See README.md, "Clocks".
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable

# Longest single wait. Smaller: an idle scheduler wakes for nothing. Larger: a suspend is noticed later;
# beyond 24 days some systems' waits overflow.
MOST_S: Final = 3600.0

# The same while something follows the wall clock, which may be set at any moment.
MOST_WALL_S: Final = 60.0

# A smaller change of the wall clock is none: clocks are slewed, and are not read at one instant.
# Smaller: what follows the wall clock is moved for nothing. Larger: it is late, or early, by as much.
JUMP_S: Final = 0.1

# The two clocks are read again, up to so many times, until it took less than this.
_TRIES: Final = 5
_TOGETHER_S: Final = 0.000_1


class Clock(Protocol):
    """What tells the time. `SystemClock` does; `mpsched.testing.ManualClock` is moved by hand."""

    def monotonic(self) -> float:
        """Return seconds since some start; never goes back."""

    def wall(self) -> float:
        """Return seconds since 1970, as the machine believes."""

    def boottime(self) -> float | None:
        """Return seconds since some start, those of suspends included; None if nobody knows."""

    def timeout(self, seconds: float | None, *, walls: bool = False) -> float | None:
        """Return how long to wait really, in seconds, for `seconds` to pass on this clock.

        Args:
            seconds: None: until woken.
            walls: whether something follows the wall clock.

        Returns:
            At most an hour, and a minute with `walls`: look at the clock again then. None: until woken.
        """

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called whenever the clock was moved by hand; return what ends that."""


@final
class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def wall(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def boottime(self) -> float | None:
        """Return the clock that goes on in a suspend, or None where there is none such."""
        number = getattr(time, "CLOCK_BOOTTIME", None)
        return None if number is None else time.clock_gettime(number)

    def timeout(self, seconds: float | None, *, walls: bool = False) -> float | None:
        """Return `seconds`, at least 0 and at most an hour (with `walls`, a minute)."""
        most = MOST_WALL_S if walls else MOST_S
        # In this order NaN becomes `most`, and not a wait that ends at once, again and again.
        return most if seconds is None else max(0.0, min(most, seconds))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: waits end by themselves."""
        return _nothing


def _nothing() -> None:
    pass


class Jump(NamedTuple):
    """The wall clock moved against the monotonic one.

    Attributes:
        seconds: by how much, forward if positive.
        suspended: how much of it the machine was suspended; 0.0 if it was not, or nobody knows.
    """

    seconds: float
    suspended: float


@final
class WallWatch:
    """Notices that the wall clock was set, or that the machine was suspended.

    Small changes add up until they are worth a move (BASE-6).

    Context:
        Any thread, one at a time.

    Attributes:
        offset: the wall clock less the monotonic one, in seconds, as of the last jump.
    """

    __slots__ = ("_asleep", "_clock", "offset")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset, self._asleep = _offsets(clock)

    def look(self) -> Jump | None:
        """Return the jump since the last one, if there was one."""
        offset, asleep = _offsets(self._clock)
        change = offset - self.offset
        if -JUMP_S < change < JUMP_S:
            return None
        suspended = asleep - self._asleep
        self.offset, self._asleep = offset, asleep
        return Jump(change, suspended if suspended >= JUMP_S else 0.0)


def _offsets(clock: Clock) -> tuple[float, float]:
    """Return how far the wall clock and the boot clock are ahead of the monotonic one.

    They are read one after the other; a thread that is put aside in between would see a jump. So of
    several readings the tightest counts.
    """
    best: tuple[float, float, float] | None = None
    for _ in range(_TRIES):
        before = clock.monotonic()
        wall = clock.wall()
        boot = clock.boottime()
        after = clock.monotonic()
        middle = (before + after) / 2
        if best is None or after - before < best[0]:
            best = (after - before, wall - middle, 0.0 if boot is None else boot - middle)
        if after - before < _TOGETHER_S:
            break
    assert best is not None
    return best[1], best[2]
