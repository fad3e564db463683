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
    """`queued[w]` is what inbox w holds, `claimed[w]` what worker w has in hand, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: Boxes | None = None
        self.queued: list[list[int]] = [[] for _ in range(WORKERS)]
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
            there = handle in self.queued[worker]
            assert self.boxes.inboxes[worker].remove(handle) == there
            if there:
                self.queued[worker].remove(handle)
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
        what=st.sampled_from(["take", "give_back"]),
        number=st.integers(1, 5),
    )
    def die(self, worker: int, victim: int, store: int, what: str, number: int) -> None:
        """A worker dies in an operation; the next holder repairs, the parent buries it."""
        assert self.boxes is not None
        inbox = self.boxes.inboxes[victim if what == "take" else worker]
        mine = self.claimed[worker]
        before = [list(handles) for handles in self.queued]
        with self.boxes.stores.killed_before(store):
            inbox.take(number, worker) if what == "take" else inbox.give_back(mine)
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
        else:
            assert not lost_or_moved
            assert now[where] == gained + before[where]
        self.free |= set(found)
        self.claimed[worker] = []
        self.queued = now

    @invariant()
    def consistent(self) -> None:
        if self.boxes is None:
            return
        self.boxes.check()
        for worker, inbox in enumerate(self.boxes.inboxes):
            assert inbox.handles() == self.queued[worker]
            for handle in self.claimed[worker]:
                assert self.boxes.state[handle] == states.word(states.CLAIMED, worker)


TestInboxes: Any = Inboxes.TestCase
TestInboxes.settings = settings(max_examples=150, stateful_step_count=40)
