"""A ring of children against a list: any sequence of what home and thieves do, with kills in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mpsched._deque.ring import Ring
from mpsched._shm.layout import I_HEAD, I_TAIL
from mpsched._tasks import state as states
from mpsched._tasks.children import Children
from tests.support.boxes import Rings
from tests.support.stores import as_memory

if TYPE_CHECKING:
    from mpsched._deque.deque import Deque

HOME = 0
THIEVES = [1, 2]


class Published(RuleBasedStateMachine):
    """`queued` is what the ring holds, with None for a gap; `taken` which thief has which child."""

    rings: Rings
    deque: Deque

    @initialize(
        slots=st.sampled_from([1, 2, 4, 8]),
        start=st.sampled_from([0, 1, 5, (1 << 32) - 3, (1 << 63) - 3]),
    )
    def make(self, slots: int, start: int) -> None:
        self.rings = Rings(3, slots=8, start=0)
        # A plan has two slots at least; a ring of one works all the same.
        for ring in self.rings.deques:
            ring.capacity, ring._mask, ring._slots = slots, slots - 1, ring._slots[:slots]
            base = self.rings.layout.ring(ring.worker)
            self.rings.memory[base + I_HEAD] = self.rings.memory[base + I_TAIL] = slots + start
        self.deque = self.rings.deques[HOME]
        self.home = Children(self.table(), self.rings.layout, HOME)
        self.queued: list[int | None] = []
        self.taken: dict[int, int] = {}

    def table(self) -> Any:
        """Return as much of a task table as `Children` looks at."""
        first, rings = self.rings.layout, self.rings

        class Table:
            state = as_memory(rings.state)
            cancel = rings.memory[first.cancel : first.cancel + first.total]
            ident = rings.memory[first.ident : first.ident + first.total]
            started = rings.memory[first.started : first.started + first.total]

        return Table

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        handles: list[int] = []
        while len(handles) < min(count, self.deque.room()):
            handle = self.home.allocate()
            if handle is None:
                assert self.home.in_use == self.home.capacity
                break
            self.rings.state[handle] = states.word(states.QUEUED, HOME)
            handles.append(handle)
        self.deque.push(handles)
        self.queued += handles

    @rule(thief=st.sampled_from(THIEVES), limit=st.integers(1, 3))
    def take(self, thief: int, limit: int) -> None:
        found = self.deque.take(limit, thief)
        there = [handle for handle in self.queued if handle is not None]
        assert found == there[: len(found)]
        assert bool(found) == bool(there)
        self._left(found, thief)

    def _left(self, found: list[int], thief: int) -> None:
        """The ring has lost its oldest, and the gaps before them."""
        for handle in found:
            while self.queued.pop(0) != handle:
                pass
            self.taken[handle] = thief
        if not any(handle is not None for handle in self.queued) and not found:
            self.queued.clear()

    @rule(number=st.integers(0, 7))
    def take_back(self, number: int) -> None:
        handle = self.rings.handle(HOME, number)
        there = handle in self.queued
        assert self.deque.take_back(handle) == there
        if there:
            self.queued[self.queued.index(handle)] = None
            self.home.free(handle)

    @rule(number=st.integers(0, 7), end=st.sampled_from([states.DONE, states.FAILED]))
    def finish(self, number: int, end: int) -> None:
        """A thief runs what it has; home collects it."""
        handle = self.rings.handle(HOME, number)
        if handle in self.taken:
            thief = self.taken.pop(handle)
            self.rings.state[handle] = states.word(states.RUNNING, thief)
            assert self.home.collectable() == []
            self.rings.state[handle] = states.word(end, thief)
            assert self.home.collectable() == [handle]
            self.home.free(handle)

    @rule(thief=st.sampled_from(THIEVES), store=st.integers(0, 9), limit=st.integers(1, 3))
    def die(self, thief: int, store: int, limit: int) -> None:
        """A thief is killed in `take`; the next holder repairs, and the parent gives back what it had."""
        before = [handle for handle in self.queued if handle is not None]
        with self.rings.stores.killed_before(store):
            self.deque.take(limit, thief)
        self.deque.repair()
        now = self.deque.handles()
        assert now == before[len(before) - len(now) :]
        self._left(before[: len(before) - len(now)], thief)
        if not now:
            self.queued.clear()
        for handle in [handle for handle, who in self.taken.items() if who == thief]:
            assert self.rings.state[handle] == states.word(states.CLAIMED, thief)
            self.rings.state[handle] = states.word(states.RETURNED, HOME)
            del self.taken[handle]
            assert self.home.collectable() == [handle]
            self.home.free(handle)

    @invariant()
    def consistent(self) -> None:
        self.rings.check()
        there = [handle for handle in self.queued if handle is not None]
        assert self.deque.handles() == there
        assert len(self.deque) <= self.deque.capacity
        assert self.home.in_use == len(there) + len(self.taken)
        assert Ring.__len__(self.deque) >= len(there)


TestPublished: Any = Published.TestCase
TestPublished.settings = settings(max_examples=150, stateful_step_count=40)
