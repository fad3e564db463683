"""Cancelling and limits where worker and parent meet in the middle."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._pool.entries import Entries
from mpsched._pool.limits import stopped
from mpsched._pool.revoke import Revoker
from mpsched._tasks import state as st
from mpsched.errors import TaskTimeout
from tests.support import crash_calls as calls
from tests.support.gates import Gate
from tests.support.lines import before_line
from tests.support.pools import DEADLINE_S, pids, pool, wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    import mpsched
    from mpsched._pool.future import Future


class Fifo:
    """What a call that holds its worker's GIL waits for."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "fifo")
        self.held = folder / "held"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)

    def let_go(self) -> None:
        """End such a call."""
        os.write(self._fd, b"go\n")

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    made = Fifo(tmp_path)
    yield made
    made.close()


def claimed_behind_a_long_call(
    ex: mpsched.WorkStealingExecutor, fifo: Fifo
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
            long = ex.submit(calls.hold_the_interpreter_until, str(fifo.held), fifo.path)
            behind = [ex.submit(operator.add, 1, n) for n in range(30)]
        finally:
            os.kill(worker, signal.SIGCONT)
        wait_until(fifo.held.exists, "the GIL is held")
        claimed = [
            future
            for future in behind
            if future._task.handle >= 0 and state[future._task.handle] & 255 == st.CLAIMED
        ]
        if len(claimed) > 3:
            return long, claimed
        fifo.let_go()
        for future in [*behind, long]:
            future.result(DEADLINE_S)
        fifo.held.unlink()


def test_revoke_that_is_answered_late_loses_no_task(fifo: Fifo) -> None:
    """Taken back after the parent had said that it will start, a task starts all the same."""
    with pool(1) as ex:
        long, claimed = claimed_behind_a_long_call(ex, fifo)
        for future in claimed[:3]:
            assert not future.cancel(), "the helper answered while the GIL was held"
        fifo.let_go()
        assert long.result(DEADLINE_S) == 0
        for future in claimed:
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


def test_cancelled_roots_leave_their_room_to_others(tmp_path: Path) -> None:
    """Both workers are busy, and what lies with them is cancelled: what waits comes in its place at once.

    Nothing ends that would have the parent look again.
    """
    with pool(2) as ex:
        gate = Gate(tmp_path)
        held = [ex.submit(gate.hold, n) for n in range(2)]
        gate.wait_for(2)
        waiting = [ex.submit(operator.add, 1, n) for n in range(8)]
        for _ in range(3):
            with_workers = [one for one in waiting if one._task.handle >= 0]
            assert len(with_workers) == 2
            assert all(one.cancel() for one in with_workers)
            waiting = [one for one in waiting if one not in with_workers]
            wait_until(
                lambda: sum(one._task.handle >= 0 for one in waiting) == 2,  # noqa: B023
                "others in their place",
            )
        gate.open()
        assert len([one.result(DEADLINE_S) for one in waiting]) == 2
        assert [one.result(DEADLINE_S) for one in held] == [0, 1]


STEPS = (Revoker.cancel, Revoker._cancel, Revoker._prevent, Revoker._forget, Entries.free)
"""Of a cancel that prevents a start."""


@pytest.mark.parametrize("limit", [None, 1000])
def test_revoke_leaves_no_future_that_nobody_knows_of(tmp_path: Path, limit: int | None) -> None:
    """At each line of a cancel its future is final, or in a register: else a pool that drains could end before it."""
    gate = Gate(tmp_path)
    unknown: list[bool] = []
    with pool(1, max_pending=limit) as ex:
        inner: Any = ex._pool
        held = ex.submit(gate.hold)
        gate.wait_for(1)
        # The first of these lies in the worker's inbox, or the next one will; most wait here.
        behind = [ex.submit(operator.add, 1, n) for n in range(200)]

        def one_that(dispatched: bool) -> Future[int]:
            def there() -> bool:
                found[:] = [f for f in behind if (f._task.handle >= 0) == dispatched]
                return bool(found)

            found: list[Future[int]] = []
            wait_until(there, "one behind")
            behind.remove(found[-1])
            return found[-1]

        def look(future: Future[int]) -> None:
            registers = (
                inner.ready.items(),
                inner.dispatcher.inflight.values(),
                inner.revoker.doubtful,
            )
            known = any(task is future._task for register in registers for task in list(register))
            unknown.append(not (known or future.done() or future in inner.dispatcher.dropped))

        try:
            for dispatched in (True, False):
                for line in itertools.count():
                    future = one_that(dispatched)
                    unknown.clear()
                    with before_line(STEPS, line, functools.partial(look, future)) as seen:
                        assert future.cancel()
                    assert not any(unknown), f"before line {line} of {seen.count}"
                    if not unknown:
                        break
                assert line > 20
        finally:
            gate.open()
        held.result(DEADLINE_S)
