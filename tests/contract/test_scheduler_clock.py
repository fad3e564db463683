"""Waiting: what wakes the dispatcher, clocks that jump, and waits that do not overflow."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import Scheduler
from mpsched._base.clock import SystemClock
from mpsched._schedule.bell import Bell
from mpsched.testing import ManualClock
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched import WorkStealingExecutor
    from mpsched.scheduler import ClockJump

HANG_S = 60.0
FAR = 10_000.0


def settle(s: Scheduler) -> None:
    """Have the dispatcher look once more, and wait until it sleeps again."""
    turns = s._desk.turns
    s._desk.bell.ring()
    wait_until(lambda: s._desk.turns > turns, "a turn of the dispatcher")


@pytest.mark.parametrize("mutation", ["schedule", "replace", "reschedule", "past", "cancel"])
@pytest.mark.parametrize("where", ["worker", "thread"])
def test_dispatcher_is_woken_by_whatever_moves_the_head(
    sched: Scheduler, mutation: str, where: Any
) -> None:
    """It waits for a far head; an earlier task, a replacement, a move runs at its own time."""
    s = sched
    s.schedule("head", after=FAR, fn=tasks.nothing, where=where)
    settle(s)
    mutations: dict[str, Callable[[], Any]] = {
        "schedule": lambda: s.schedule("soon", after=0.03, fn=tasks.pid, where=where),
        "replace": lambda: s.schedule("head", after=0.03, fn=tasks.pid, where=where),
        "past": lambda: s.schedule("head", after=-5, fn=tasks.pid, where=where),
        "reschedule": lambda: s.reschedule("head", after=0.03),
        "cancel": lambda: s.cancel("head") and s.schedule("x", after=0.03, fn=tasks.pid),
    }
    mutations[mutation]()
    wait_until(lambda: s.metrics().outcomes.get("completed") == 1, "the job")


def test_dispatcher_is_woken_by_close(default_pool: WorkStealingExecutor) -> None:
    """However far the head is."""
    s = Scheduler(executor=default_pool)
    head = s.schedule("head", after=FAR, fn=tasks.nothing)
    settle(s)
    assert s.close().state == "closed"
    assert head.cancelled()


def test_dispatcher_does_not_spin_nor_wait_for_too_long(
    default_pool: WorkStealingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits are capped at an hour, at a minute with calendar times, and are few."""
    waits: list[float | None] = []
    real = Bell.wait

    def wait(self: Bell, seconds: float | None) -> bool:
        waits.append(seconds)
        return real(self, seconds)

    monkeypatch.setattr(Bell, "wait", wait)
    with Scheduler(executor=default_pool) as s:
        s.schedule("century", after=1e11, fn=tasks.nothing)
        settle(s)
        wait_until(lambda: waits[-1] == 3600.0, "a wait of an hour")
        s.schedule("9999", at=datetime(9999, 1, 1, tzinfo=UTC), fn=tasks.nothing)
        settle(s)
        wait_until(lambda: waits[-1] == 60.0, "a wait of a minute")
        before = len(waits)
        assert not threading.Event().wait(0.3)
        assert len(waits) - before <= 1


def test_push_mode_follows_a_manual_clock(default_pool: WorkStealingExecutor) -> None:
    """A week of jobs in workers and threads, without waiting for it."""
    clock = ManualClock()
    with Scheduler(executor=default_pool, clock=clock) as s:
        days = [s.schedule(n, after=86_400.0 * n, fn=tasks.identity, args=(n,)) for n in range(7)]
        noon = s.schedule("thread", after=43_200, fn=tasks.pid, where="thread")
        assert days[0].result(HANG_S) == 0
        settle(s)
        assert not days[1].done()
        clock.advance(86_400)
        assert days[1].result(HANG_S) == 1
        assert noon.result(HANG_S) == tasks.pid()
        clock.advance(timedelta(days=5))
        assert [day.result(HANG_S) for day in days] == [*range(7)]
        lateness = [run.lateness for run in s.history() if run.task_id in range(2, 6)]
        assert sorted(lateness) == [86_400.0, 172_800.0, 259_200.0, 345_600.0]  # type: ignore[type-var]


def test_clock_jumps_move_calendar_jobs_and_are_reported(
    default_pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """`at=` follows the wall, `after=` does not; each jump is one event, one warning, one count."""
    clock = ManualClock(wall=datetime(2026, 3, 1, tzinfo=UTC))
    events: list[ClockJump] = []
    with (
        caplog.at_level(logging.WARNING, logger="mpsched"),
        Scheduler(executor=default_pool, clock=clock, on_event=events.append) as s,
    ):
        noon = s.schedule(
            "noon", at=datetime(2026, 3, 1, 12, tzinfo=UTC), fn=tasks.identity, args=(1,)
        )
        span = s.schedule("span", after=3600, fn=tasks.identity, args=(2,))
        settle(s)
        clock.jump_wall(-3600)
        wait_until(lambda: len(events) == 1, "the event")
        clock.advance(3600)
        assert span.result(HANG_S) == 2
        assert not noon.done()
        clock.suspend(12 * 3600)
        assert noon.result(HANG_S) == 1
        wait_until(lambda: len(events) == 2, "the other event")
        assert s.metrics().clock_jumps == 2
    assert [(round(e.seconds), round(e.suspended)) for e in events] == [
        (-3600, 0),
        (43_200, 43_200),
    ]
    assert "jumped by -3600.000 s" in caplog.records[0].getMessage()
    assert "suspended" in caplog.records[1].getMessage()


def test_relative_timers_never_notice_the_wall_clock(default_pool: WorkStealingExecutor) -> None:
    """Set back by an hour, and ahead by 200 years: one job every ten seconds all the same."""
    clock = ManualClock()
    with Scheduler(0, clock=clock) as s:
        for n in range(7):
            s.schedule(n, after=10.0 * (n + 1), fn=tasks.nothing)
        clock.advance(10)
        assert s.run_due() == 1
        for step in range(6):
            clock.jump_wall(-3600 if step < 3 else 200 * 365 * 86_400)
            clock.advance(10)
            assert s.run_due() == 1


def test_bell_keeps_a_ring_until_it_is_heard() -> None:
    """Rung before the wait, twice: one wait ends at once, the next one does not."""
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(HANG_S)
    assert not bell.wait(0.0)
    assert not bell.wait(-1.0)


def test_clock_of_ones_own_can_be_given(default_pool: WorkStealingExecutor) -> None:
    """Anything with the methods of a Clock."""
    with Scheduler(executor=default_pool, clock=SystemClock()) as s:
        assert s.schedule("x", after=0.01, fn=tasks.square, args=(2,)).result(HANG_S) == 4
