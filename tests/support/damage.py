"""Damaging shared memory, from a seed, and asking that nothing runs away because of it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from types import FrameType

LIMIT_S = 60
"""A loop over damaged indices would take years."""


@contextmanager
def ends() -> Iterator[None]:
    """Fail if the block does not end by itself. In the main thread.

    Raises:
        AssertionError: It took `LIMIT_S`.
    """

    def late(_number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it runs away in {frame}")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged(word: int, dice: random.Random) -> int:
    """Return another value for a word: noise, a flipped bit, one near by, or one that may be an index."""
    other = dice.choice(
        [
            dice.getrandbits(64),
            word ^ 1 << dice.randrange(64),
            word + dice.randint(-9, 9),
            dice.randrange(40),
            (1 << 64) - 1 - dice.randrange(3),
        ]
    )
    return other & (1 << 64) - 1


def damage(words: memoryview, places: Sequence[int], dice: random.Random) -> list[int]:
    """Change one to three of the words at `places`; returns which."""
    chosen = dice.sample(places, min(len(places), dice.randint(1, 3)))
    for place in chosen:
        words[place] = damaged(words[place], dice)
    return chosen
