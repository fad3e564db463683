"""Inboxes against lists: any sequence of what parent, owners and thieves do, with kills in between."""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpsched._tasks import state as states
from tests.support.boxes import Boxes

WORKERS = 3
ENTRIES = 16

workers = st.integers(0, WORKERS - 1)


class Inboxes(RuleBasedStateMachine):
    """`queued[w]` is what inbox w holds, `early[w]` what lies beside it, `claimed[w]` what worker w has in hand, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: Boxes | None = None
        self.queued: list[list[int]] = [[] for _ in range(WORKERS)]
        self.early: list[list[int]] = [[] for _ in range(WORKERS)]
        self.times = [0] * WORKERS
        self.claimed: list[list[int]] = [[] for _ in range(WORKERS)]
        self.free = set(range(ENTRIES))

    @precondition(lambda self: self.boxes is None)
    @rule(slots=st.sampled_from([2, 4, 8]), start=st.integers(0, 9))
    def make(self, slots: int, start: int) -> None:
        self.boxes = Boxes(WORKERS, slots=slots, entries=ENTRIES, start=start)

    def room(self, worker: int) -> int:
        assert self.boxes is not None
        return self.boxes.layout.inbox_slots - len(self.boxes.inboxes[worker])

    @precondition(lambda self: self.boxes is not None)
    @rule(worker=workers, count=st.integers(1, 4))
    def push(self, worker: int, count: int) -> None:
        assert self.boxes is not None
        handles = sorted(self.free)[: min(count, self.room(worker))]
        self.boxes.push(worker, handles)
        self.free -= set(handles)
        self.queued[worker] += handles

    @precondition(lambda self: self.boxes is not None)
    @rule(victim=workers, claimer=workers, limit=st.integers(1, 5))
    def take(self, victim: int, claimer: int, limit: int) -> None:
        assert self.boxes is not None
        inbox = self.boxes.inboxes[victim]
        taken = inbox.take(limit, claimer)
        there = self.queued[victim]
        assert taken == there[: len(taken)]
        assert bool(taken) == bool(there), (taken, there)
        assert len(taken) <= limit
        del there[: len(taken)]
        self.claimed[claimer] += taken

    @precondition(lambda self: self.boxes is not None and self.free)
    @rule(worker=workers, time=st.integers(0, 3))
    def lay(self, worker: int, time: int) -> None:
        assert self.boxes is not None
        handle = min(self.free)
        empty = not self.early[worker] and not self.boxes.slots(worker)
        assert self.boxes.lay(worker, handle, time) == empty
        if empty:
            self.early[worker] = [handle]
            self.times[worker] = time
            self.free.remove(handle)

    @precondition(lambda self: self.boxes is not None)
    @rule(victim=workers, claimer=workers, now=st.integers(0, 3))
    def take_early(self, victim: int, claimer: int, now: int) -> None:
        assert self.boxes is not None
        taken = self.boxes.inboxes[victim].take_early(claimer, now)
        assert taken == (self.early[victim] if now >= self.times[victim] else [])
        if taken:
            self.early[victim] = []
        self.claimed[claimer] += taken

    @precondition(lambda self: self.boxes is not None)
    @rule(worker=workers, start=st.integers(0, 3))
    def give_back(self, worker: int, start: int) -> None:
        assert self.boxes is not None
        kept, handles = self.claimed[worker][:start], self.claimed[worker][start:]
        room = self.room(worker)
        count = self.boxes.inboxes[worker].give_back(handles)
        assert count == min(len(handles), room)
        split = len(handles) - count
        self.claimed[worker] = kept + handles[:split]
        self.queued[worker] = handles[split:] + self.queued[worker]

    @precondition(lambda self: self.boxes is not None)
    @rule(handle=st.integers(0, ENTRIES - 1))
    def remove(self, handle: int) -> None:
        assert self.boxes is not None
        for worker in range(WORKERS):
            holds = self.early if handle in self.early[worker] else self.queued
            there = handle in holds[worker]
            assert self.boxes.inboxes[worker].remove(handle) == there
            if there:
                holds[worker].remove(handle)
                self.boxes.free(handle)
                self.free.add(handle)

    @precondition(lambda self: self.boxes is not None)
    @rule(worker=workers)
    def start_and_end(self, worker: int) -> None:
        """The worker runs the oldest of what it has claimed."""
        assert self.boxes is not None
        if self.claimed[worker]:
            handle = self.claimed[worker].pop(0)
            self.boxes.state[handle] = states.word(states.RUNNING, worker)
            self.boxes.free(handle)
            self.free.add(handle)

    @precondition(lambda self: self.boxes is not None)
    @rule(
        worker=workers,
        victim=workers,
        store=st.integers(0, 12),
        what=st.sampled_from(["take", "early", "give_back"]),
        number=st.integers(1, 5),
    )
    def die(self, worker: int, victim: int, store: int, what: str, number: int) -> None:
        """A worker dies in an operation; the next holder repairs, the parent buries it."""
        assert self.boxes is not None
        inbox = self.boxes.inboxes[worker if what == "give_back" else victim]
        mine = self.claimed[worker]
        before = [[*ring, *early] for ring, early in zip(self.queued, self.early, strict=True)]
        with self.boxes.stores.killed_before(store):
            if what == "take":
                inbox.take(number, worker)
            elif what == "early":
                inbox.take_early(worker, number)
            else:
                inbox.give_back(mine)
        found = self.boxes.bury(worker)
        now = [one.handles() for one in self.boxes.inboxes]
        where = inbox.worker
        # Before or after, nothing in between; and what was in hand is found.
        lost_or_moved = [handle for handle in before[where] if handle not in now[where]]
        gained = [handle for handle in now[where] if handle not in before[where]]
        assert sorted(found) == sorted(set(mine) - set(gained) | set(lost_or_moved))
        if what == "take":
            assert not gained
            assert now[where] == before[where][len(lost_or_moved) :]
        elif what == "early":
            assert not gained
            assert lost_or_moved in ([], self.early[where])
            assert now[where] == [one for one in before[where] if one not in lost_or_moved]
        else:
            assert not lost_or_moved
            assert now[where] == gained + before[where]
        self.free |= set(found)
        self.claimed[worker] = []
        self.early = [
            [one for one in early if one in there]
            for early, there in zip(self.early, now, strict=True)
        ]
        self.queued = [
            [one for one in there if one not in early]
            for early, there in zip(self.early, now, strict=True)
        ]

    @invariant()
    def consistent(self) -> None:
        if self.boxes is None:
            return
        self.boxes.check()
        for worker, inbox in enumerate(self.boxes.inboxes):
            assert inbox.handles() == self.queued[worker] + self.early[worker]
            for handle in self.claimed[worker]:
                assert self.boxes.state[handle] == states.word(states.CLAIMED, worker)


TestInboxes: Any = Inboxes.TestCase
TestInboxes.settings = settings(max_examples=150, stateful_step_count=40)
