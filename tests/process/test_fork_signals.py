"""Signal handlers that raise, wherever they come: the time limit of one's own that programs paste."""

from __future__ import annotations

import random
import signal
import sys

import pytest

import mpsched
from mpsched import WorkStealingExecutor

HANG_S = 60.0
DEPTH = 5

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")


class TimeIsUpError(Exception):
    """What the handler raises."""


def raise_it(*_: object) -> None:
    """Be the handler."""
    raise TimeIsUpError


def busy_tree(depth: int) -> int:
    """Return the leaves of a binary tree; each takes a moment, so that children are stolen."""
    if not depth:
        sum(range(2000))
        return 1
    left = mpsched.spawn(busy_tree, depth - 1)
    return busy_tree(depth - 1) + left.join()


def trees_under_a_timer(seed: int) -> int:
    """Run forty trees, each until it is done or its time is up; return how many were stopped."""
    rng = random.Random(seed)
    before = signal.signal(signal.SIGALRM, raise_it)
    stopped = 0
    try:
        for _ in range(40):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + rng.random() * 0.004)
                    assert busy_tree(DEPTH) == 2**DEPTH
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except TimeIsUpError:
                stopped += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    return stopped


@pytest.mark.parametrize("workers", [2, 3])
def test_fork_handler_that_raises_leaves_no_child_behind(workers: int, rng: random.Random) -> None:
    """A timer's exception at any moment ends its tree alone: the next roots, and the pool, are well."""
    stopped = 0
    with WorkStealingExecutor(workers) as ex:
        for _ in range(12):
            stopped += ex.submit(trees_under_a_timer, rng.randrange(sys.maxsize)).result(HANG_S)
            assert ex.submit(busy_tree, DEPTH + 1).result(HANG_S) == 2 ** (DEPTH + 1)
        assert ex.stats().deaths == 0
    assert stopped > 0
