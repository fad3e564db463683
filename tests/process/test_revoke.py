"""Cancelling and limits where worker and parent meet in the middle."""

from __future__ import annotations

import functools
import operator
import os
import signal
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from mpsched._pool.limits import stopped
from mpsched._tasks import state as st
from mpsched.errors import TaskTimeout
from tests.support import crash_calls as calls
from tests.support.pools import DEADLINE_S, pids, pool, wait_until

if TYPE_CHECKING:
    import random

    import mpsched
    from mpsched._pool.future import Future

HOLDS_THE_GIL = range(30_000_000)
"""Adding these up takes most of a second, in one call of C code: no other thread runs meanwhile."""


def has_begun(future: Future[int]) -> bool:
    """Whether a worker has started a call."""
    return future.running() or future.done()


def claimed_behind_a_long_call(
    ex: mpsched.WorkStealingExecutor,
) -> tuple[Future[int], list[Future[int]]]:
    """Return a call that holds its worker's GIL, and calls that the worker has claimed behind it."""
    state = ex._pool.table.state  # type: ignore[union-attr]
    while True:
        # Tiny ones, so that many are claimed at once.
        for future in [ex.submit(operator.add, 1, n) for n in range(500)]:
            future.result(DEADLINE_S)
        # All of them lie in its inbox before it looks.
        (worker,) = pids(ex)
        os.kill(worker, signal.SIGSTOP)
        try:
            wait_until(functools.partial(stopped, worker), "a stopped worker")
            long = ex.submit(sum, HOLDS_THE_GIL)
            behind = [ex.submit(operator.add, 1, n) for n in range(30)]
        finally:
            os.kill(worker, signal.SIGCONT)
        wait_until(functools.partial(has_begun, long), "the worker has begun")
        claimed = [
            future
            for future in behind
            if future._task.handle >= 0 and state[future._task.handle] & 255 == st.CLAIMED
        ]
        if long.running() and len(claimed) > 1:
            return long, claimed
        for future in [*behind, long]:
            future.result(DEADLINE_S)


def test_revoke_that_is_answered_late_loses_no_task() -> None:
    """Taken back after the parent had said that it will start, a task starts all the same."""
    with pool(1) as ex:
        long, claimed = claimed_behind_a_long_call(ex)
        answers = {future: future.cancel() for future in claimed[:3]}
        assert not all(answers.values()), "the helper answered while the GIL was held"
        for future, prevented in answers.items():
            try:
                assert future.result(DEADLINE_S) is not None
            except CancelledError:
                assert prevented
            else:
                assert not prevented
        assert long.result(DEADLINE_S) == sum(HOLDS_THE_GIL)
        for future in claimed[3:]:
            assert future.result(DEADLINE_S) > 0


def test_limit_that_is_over_when_its_task_ends_hurts_no_other(rng: random.Random) -> None:
    """LIMITS-1: tasks beside some that take about as long as their limit are never killed for it."""
    with pool(2) as ex:
        limited = ex.options(timeout=0.01, grace=0.0)
        for _ in range(6):
            others = []
            edge = []
            for _ in range(10):
                edge.append(limited.submit(calls.nap, 0.01 + rng.uniform(-0.0003, 0.0006)))
                others += [ex.submit(calls.nap, 0.0005) for _ in range(3)]
            assert [future.result(DEADLINE_S) for future in others] == [0.0005] * len(others)
            ends = [future.exception(DEADLINE_S) for future in edge]
            assert {type(error) for error in ends} <= {type(None), TaskTimeout}
