"""How long a retry waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mpsched._timers.instants import finite

if TYPE_CHECKING:
    from random import Random


@final
class Backoff:
    """A pause that grows with each attempt, up to a limit, and is spread so that retries do not meet.

    Attributes:
        first: seconds before the second attempt.
        factor: by which each further pause is longer than the one before.
        most: seconds that a pause has at most, before it is spread.
        jitter: share of a pause by which it is made longer or shorter at random, 0 to 1.
    """

    __slots__ = ("factor", "first", "jitter", "most")

    def __init__(
        self, first: float = 1.0, factor: float = 2.0, most: float = 60.0, jitter: float = 0.1
    ) -> None:
        """Make a policy.

        Raises:
            TypeError: One of them is no number.
            ValueError: A time below 0, a factor below 1, or a jitter outside 0 to 1.
        """
        self.first = finite("first", first)
        self.factor = finite("factor", factor)
        self.most = finite("most", most)
        self.jitter = finite("jitter", jitter)
        if self.first < 0 or self.most < 0:
            raise ValueError(f"first={first!r} and most={most!r} must be at least 0 seconds")
        if self.factor < 1:
            raise ValueError(f"factor={factor!r} must be at least 1: pauses do not shrink")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={jitter!r} must be between 0 and 1")

    def delay(self, attempt: int, rng: Random) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 1) failed."""
        try:
            pause = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:  # of the power; its limit was reached long before
            pause = self.most if self.first else 0.0
        return pause * (1 + self.jitter * (2 * rng.random() - 1))
