"""How long a retry waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._timers.backoff import Backoff

if TYPE_CHECKING:
    import random


def test_backoff_grows_up_to_its_limit(rng: random.Random) -> None:
    """Doubling from the first pause, and then the limit, however many attempts there are."""
    policy = Backoff(first=0.5, factor=2, most=10, jitter=0)
    pauses = [policy.delay(attempt, rng) for attempt in (1, 2, 3, 4, 5, 6, 7, 2000, 10**9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]


def test_backoff_jitter_spreads_within_its_share(rng: random.Random) -> None:
    """Between a share shorter and a share longer, and not always the same."""
    policy = Backoff(first=10, factor=1, jitter=0.25)
    pauses = [policy.delay(3, rng) for _ in range(1000)]
    assert all(7.5 <= pause <= 12.5 for pause in pauses)
    assert min(pauses) < 8.5
    assert max(pauses) > 11.5


def test_backoff_may_be_none(rng: random.Random) -> None:
    """No pause at all stays none."""
    policy = Backoff(first=0, factor=3)
    assert [policy.delay(attempt, rng) for attempt in (1, 2, 5000)] == [0, 0, 0]


@pytest.mark.parametrize(
    "bad",
    [
        {"first": -1},
        {"most": -1},
        {"factor": 0.5},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"most": math.inf},
    ],
)
def test_backoff_refuses_odd_values(bad: dict[str, Any]) -> None:
    """Each is a ValueError that names it."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        Backoff(**bad)
