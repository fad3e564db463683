"""The timer heap against a plain list, after every step of any sequence of calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mpsched import Due, VersionedTimerHeap, Wait
from mpsched._timers import book, lazyqueue, repair
from mpsched._timers.states import State
from mpsched.errors import StaleVersion
from tests.support.timer_model import LIVE, Model, Version
from tests.support.timers import function

# Few ids, and times near each other: so versions meet. Multiples of a half: sums are exact.
IDS = 3
STALE_LEFT = 3
SMALL = 3
GROUPS = {"g": 2.0, "h": 0.5}
halves = st.integers(-2, 5).map(lambda number: number / 2)
passing = st.integers(0, 4).map(lambda number: number / 2)
ids = st.integers(0, IDS - 1)
picks = st.integers(0, 40)


class Timers(RuleBasedStateMachine):
    """`model` says what `heap` must do; `taken` is what was handed out, each with its version."""

    def __init__(self) -> None:
        super().__init__()
        self.heap = VersionedTimerHeap()
        self.model = Model("run_at", 0.0, None)
        self.now = 0.0
        self.offset = 1000.0
        self.taken: list[tuple[Due, Version]] = []
        self.drops: list[tuple[Any, int, str]] = []

    @initialize(
        options=st.sampled_from(
            [
                ("run_at", 0.0, None),
                ("priority", 0.0, None),
                ("priority", 0.5, None),
                ("priority", 2.0, None),
                ("run_at", 0.0, GROUPS),
                ("priority", 2.0, GROUPS),
            ]
        )
    )
    def make(self, options: tuple[Any, float, dict[str, float] | None]) -> None:
        order, aging, groups = options
        self.model = Model(order, aging, groups)
        self.heap = VersionedTimerHeap(
            ready_order=order, aging=aging, groups=groups, on_drop=self.dropped
        )

    def dropped(self, due: Due, why: str) -> None:
        assert due.fn is not None
        self.drops.append((due.task_id, due.version, why))

    # --- into the heap ---

    @rule(
        task_id=ids,
        after=halves,
        priority=st.integers(-2, 2),
        deadline=st.none() | halves,
        wall=st.booleans(),
        group=st.sampled_from([None, "g", "h"]),
    )
    def schedule(
        self,
        task_id: int,
        after: float,
        priority: int,
        deadline: float | None,
        wall: bool,
        group: str | None,
    ) -> None:
        run_at = self.now + after
        at = run_at + self.offset if wall else None
        limit = None if deadline is None else self.now + deadline
        group = group if self.model.groups else None
        version = self.heap.schedule(
            task_id, run_at, priority, function, deadline=limit, group=group, at=at
        )
        assert all(version > one.version for one in self.model.versions)
        self.model.add(Version(task_id, version, run_at, priority, limit, group, at))

    @rule(task_id=ids, priority=st.integers(-2, 2), deadline=st.none() | halves)
    def schedule_now(self, task_id: int, priority: int, deadline: float | None) -> None:
        self.schedule(task_id, 0.0, priority, deadline, False, None)

    @rule(after=halves)
    def schedule_all(self, after: float) -> None:
        for task_id in range(IDS):
            self.schedule(task_id, after, 0, None, False, None)

    @rule(task_id=ids, after=halves)
    def schedule_often(self, task_id: int, after: float) -> None:
        """Enough of it makes rebuilds."""
        for number in range(STALE_LEFT + 2):
            self.schedule(task_id, after + number % 3, 0, None, False, None)

    @rule(
        task_id=ids,
        after=st.none() | halves,
        priority=st.none() | st.integers(-2, 2),
        wall=st.booleans(),
    )
    def reschedule(
        self, task_id: int, after: float | None, priority: int | None, wall: bool
    ) -> None:
        one = self.model.newest(task_id)
        run_at = None if after is None else self.now + after
        at = None if run_at is None or not wall else run_at + self.offset
        moved = self.heap.reschedule(task_id, run_at=run_at, priority=priority, at=at)
        assert moved == (one is not None and one.state is State.PENDING)
        if moved and one is not None:
            if run_at is not None:
                one.run_at, one.at, one.since = run_at, at, None
            if priority is not None:
                one.priority = priority

    @rule(task_id=ids)
    def pause(self, task_id: int) -> None:
        one = self.model.newest(task_id)
        paused = self.heap.pause(task_id)
        assert paused == (one is not None and one.state is State.PENDING)
        if paused and one is not None:
            one.paused = True

    @rule(task_id=ids, after=st.none() | halves)
    def resume(self, task_id: int, after: float | None) -> None:
        one = self.model.newest(task_id)
        run_at = None if after is None else self.now + after
        resumed = self.heap.resume(task_id, run_at)
        assert resumed == (one is not None and one.state is State.PENDING and one.paused)
        if resumed and one is not None:
            one.paused = False
            if run_at is not None:
                one.run_at, one.at, one.since = run_at, None, None

    # --- out of the heap ---

    @rule(task_id=ids, version=st.none() | picks)
    def cancel(self, task_id: int, version: int | None) -> None:
        if version is not None and self.model.versions:
            version = self.model.versions[-1 - version % len(self.model.versions)].version
        result = self.heap.cancel(task_id, version)
        assert result.name == self.model.cancel(task_id, version)

    def handed_out(self, due: Due, to: State) -> None:
        one = next(one for one in self.model.first(self.now) if one.version == due.version)
        assert tuple(due) == (
            one.task_id, one.version, one.run_at, one.priority, one.version, function, (), None,
            one.attempt,
        )  # fmt: skip
        one.move(State.CLAIMED)
        one.reported = False
        if to is State.RUNNING:
            one.move(to)
        self.taken.append((due, one))

    @rule(passed=passing, claim=st.booleans())
    def take(self, passed: float, claim: bool) -> None:
        self.now += passed
        got = self.heap.claim(self.now) if claim else self.heap.next(self.now)
        if isinstance(got, Due):
            self.handed_out(got, State.CLAIMED if claim else State.RUNNING)
            return
        assert not self.model.first(self.now)
        wait = self.model.wait(self.now)
        assert got == (None if wait is None else Wait(wait))

    @rule(passed=passing)
    def run_next(self, passed: float) -> None:
        self.take(passed, False)

    @rule(passed=passing)
    def run_all(self, passed: float) -> None:
        """All that is due has been started, and something waits or nothing does."""
        self.claim_many(passed, 3)
        for due, one in self.taken:
            if one.state is State.CLAIMED and one.attempt == due.attempt:
                assert self.heap.start(due)
                one.move(State.RUNNING)
                one.reported = False

    @rule(task_id=ids)
    def ask_to_stop(self, task_id: int) -> None:
        """Cancel and retry: a running one is not started again."""
        self.cancel(task_id, None)
        for due, one in list(self.taken):
            if one.task_id == task_id and one.state is State.RUNNING and one.attempt == due.attempt:
                assert not self.heap.retry(due, self.now)

    @rule(passed=passing, most=st.integers(0, 4))
    def claim_many(self, passed: float, most: int) -> None:
        self.now += passed
        taken = self.heap.claim_many(self.now, most)
        for due in taken:
            self.handed_out(due, State.CLAIMED)
        if len(taken) < most:
            assert not self.model.first(self.now)
        assert len(taken) <= most

    @rule(passed=passing)
    def peek(self, passed: float) -> None:
        self.now += passed
        got = self.heap.peek(self.now)
        wait = 0.0 if self.model.first(self.now) else self.model.wait(self.now)
        assert got == (None if wait is None else Wait(wait))

    def picked(self, pick: int) -> tuple[Due, Version]:
        """Choose from what was handed out: three times in four from what is not over."""
        active = [one for one in self.taken if one[1].state in {State.CLAIMED, State.RUNNING}]
        choice = active if active and pick % 4 else self.taken
        return choice[-1 - pick // 4 % len(choice)]

    @precondition(lambda self: self.taken)
    @rule(pick=picks, what=st.sampled_from(["start", "revoke"]))
    def start_or_revoke(self, pick: int, what: str) -> None:
        due, one = self.picked(pick)
        there = one.state is State.CLAIMED and one.attempt == due.attempt
        assert getattr(self.heap, what)(due) == there
        if there:
            one.move(State.RUNNING if what == "start" else State.PENDING)
            one.reported = False

    @precondition(lambda self: self.taken)
    @rule(pick=picks, outcome=st.sampled_from(["completed", "failed", "cancelled", "missed"]))
    def finish(self, pick: int, outcome: Any) -> None:
        due, one = self.picked(pick)
        active = one.state in {State.CLAIMED, State.RUNNING} and one.attempt == due.attempt
        not_for = State.RUNNING if outcome == "missed" else State.CLAIMED
        if not active:
            with pytest.raises(StaleVersion):
                self.heap.finish(due, outcome)
        elif one.state is not_for and outcome in {"completed", "missed"}:
            with pytest.raises(ValueError, match="cannot be"):
                self.heap.finish(due, outcome)
        else:
            newest = self.heap.finish(due, outcome)
            assert newest == (self.model.newest(one.task_id) is one)
            one.missed = outcome == "missed"
            one.move(State.FAILED if one.missed else State[outcome.upper()])

    @precondition(lambda self: self.taken)
    @rule(pick=picks)
    def ran(self, pick: int) -> None:
        due, one = self.picked(pick)
        if one.state not in {State.CLAIMED, State.RUNNING} or one.attempt != due.attempt:
            with pytest.raises(StaleVersion):
                self.heap.ran(due)
            return
        assert self.heap.ran(due) == (self.model.newest(one.task_id) is one)
        if one.state is State.CLAIMED:
            one.move(State.RUNNING)
        one.move(State.COMPLETED)

    @precondition(lambda self: self.taken)
    @rule(pick=picks, after=halves)
    def retry(self, pick: int, after: float) -> None:
        due, one = self.picked(pick)
        if one.state is not State.RUNNING or one.attempt != due.attempt:
            with pytest.raises(StaleVersion):
                self.heap.retry(due, self.now + after)
            return
        again = self.heap.retry(due, self.now + after)
        assert again == (self.model.newest(one.task_id) is one and not one.requested)
        if again:
            one.move(State.PENDING)
            one.attempt += 1
            one.run_at, one.at, one.since = self.now + after, None, None

    # --- time ---

    @rule(seconds=halves)
    def jump(self, seconds: float) -> None:
        """The wall clock is set."""
        self.offset += seconds
        moved = 0
        for one in self.model.pending():
            if one.at is not None and one.run_at != one.at - self.offset:
                one.run_at, one.since = one.at - self.offset, None
                moved += 1
        assert self.heap.rebase(self.offset) == moved

    @rule(passed=passing)
    def expire(self, passed: float) -> None:
        self.now += passed
        overdue = self.heap.expire(self.now)
        self.model.miss(self.now)
        late = [
            one
            for one in self.model.versions
            if one.state is State.CLAIMED
            and one.deadline is not None
            and one.deadline < self.now
            and not one.reported
        ]
        assert {due.version for due in overdue} == {one.version for one in late}
        assert len(overdue) == len(late)
        for one in late:
            one.reported = True

    # --- always ---

    @invariant()
    def as_the_model(self) -> None:
        timers, model = self.heap, self.model
        timers.check_invariants()
        assert self.drops == model.drops
        assert len(timers) == len(model.pending())
        metrics = timers.metrics()
        states = [one.state for one in model.versions]
        assert metrics.live == len(timers)
        assert metrics.claimed == states.count(State.CLAIMED)
        assert metrics.running == states.count(State.RUNNING)
        assert metrics.paused == sum(one.paused for one in model.pending())
        for task_id in range(IDS):
            self.same_status(task_id)
        for due, one in self.taken:
            state = timers.state_of(due)
            if one.state in LIVE or model.newest(one.task_id) is one:
                assert state is one.state
            else:
                assert state is None

    def same_status(self, task_id: int) -> None:
        status, one = self.heap.status(task_id), self.model.newest(task_id)
        if one is None:
            assert status is None
            return
        assert status is not None
        ended = one.state not in LIVE
        outcome = "missed" if one.missed else one.state.public
        assert status == (
            task_id, one.version, one.state.public, one.state is State.CLAIMED, one.run_at,
            one.priority, one.attempt, one.paused, one.requested, outcome if ended else None,
            tuple(
                old.version
                for old in self.model.versions
                if old.task_id == task_id and old.state is State.RUNNING
            ),
            one.deadline, one.group, one.at,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilds come after a few stale entries, and few are many: they spill, are halved and sorted."""
    for module in (book, lazyqueue):
        monkeypatch.setattr(module, "STALE_LEFT", STALE_LEFT)
    for module in (lazyqueue, repair):
        monkeypatch.setattr(module, "SMALL", SMALL)
    monkeypatch.setattr(lazyqueue, "PIECE", SMALL)


def test_timer_heap_does_what_a_list_does() -> None:
    """Some thousand steps, looked at after each."""
    run_state_machine_as_test(Timers, settings=settings(max_examples=100, stateful_step_count=50))


@pytest.mark.slow
def test_timer_heap_does_what_a_list_does_for_long() -> None:
    """Thirty thousand steps, in longer sequences."""
    run_state_machine_as_test(Timers, settings=settings(max_examples=300, stateful_step_count=100))
