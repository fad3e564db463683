"""Inboxes and rings of children in plain memory, for tests that are many processes in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsched._deque.deque import Deque
from mpsched._deque.inbox import Inbox
from mpsched._deque.ring import TOMB
from mpsched._shm.layout import I_HEAD, I_TAIL, INBOX_HEADER, Layout
from mpsched._tasks import state as st
from tests.support.stores import StateView, Stores, View, as_memory

if TYPE_CHECKING:
    from collections.abc import Sequence


class Boxes:
    """The inboxes of a small pool, their task table, and who is allowed what.

    Attributes:
        stores: through which everything is stored.
        inboxes: one per worker.
        state: the state words, which check each move.
    """

    def __init__(self, workers: int, *, slots: int, entries: int = 16, start: int = 0) -> None:
        self.layout = Layout.plan(
            workers,
            entries=entries,
            inbox_slots=slots,
            inline_bytes=8,
            result_words=2,
            slab_bytes=8,
            function_bytes=8,
            function_slots=2,
            children=2,
            child_bytes=8,
            ring_slots=2,
        )
        self.stores = Stores()
        self.memory = memoryview(bytearray(self.layout.size_bytes)).cast("Q")
        words = as_memory(View(self.memory, self.stores))
        self.inboxes = [Inbox(words, self.layout, worker) for worker in range(workers)]
        first = self.layout.state
        self.state = StateView(self.memory[first : first + entries], self.stores)
        for inbox in self.inboxes:
            inbox._state = as_memory(self.state)
            Inbox.initialise(words, self.layout, inbox.worker)
            base = self.layout.inbox(inbox.worker)
            self.memory[base + I_HEAD] += start
            self.memory[base + I_TAIL] += start

    def push(self, worker: int, handles: Sequence[int]) -> None:
        """What the parent does: state words first, then the ring."""
        for handle in handles:
            self.state[handle] = st.word(st.QUEUED, worker)
        self.inboxes[worker].push(handles)

    def lay(self, worker: int, handle: int, from_ns: int) -> bool:
        """What the parent does with a root that has a time; False: something lies there already."""
        self.state[handle] = st.word(st.QUEUED, worker)
        if self.inboxes[worker].lay(handle, from_ns):
            return True
        self.free(handle)
        return False

    def free(self, handle: int) -> None:
        """Let an entry go."""
        self.state[handle] = st.FREE

    def bury(self, worker: int) -> list[int]:
        """What the parent does after a worker's death; returns the handles that it had claimed."""
        for inbox in self.inboxes:
            inbox.repair()
        claimed = st.word(st.CLAIMED, worker)
        found = [handle for handle in range(len(self.state)) if self.state[handle] == claimed]
        for handle in found:
            self.free(handle)
        return found

    def check(self) -> None:
        """Assert INBOX-1 to INBOX-3; no lock is held and nothing is to be repaired."""
        seen: list[int] = []
        for inbox in self.inboxes:
            inbox.check_invariants()
            seen += inbox.handles()
        assert len(set(seen)) == len(seen), f"a handle lies in two inboxes: {seen}"
        for handle in range(len(self.state)):
            state, worker = st.parts(self.state[handle])
            lies = [inbox.worker for inbox in self.inboxes if handle in inbox.handles()]
            assert lies == ([worker] if state == st.QUEUED else []), (handle, state, worker, lies)

    def snapshot(self) -> bytes:
        """Return everything that processes share."""
        return bytes(self.memory)

    def restore(self, snapshot: bytes) -> None:
        """Go back to an earlier `snapshot`."""
        self.memory.cast("B")[:] = snapshot

    def slots(self, worker: int) -> list[int | None]:
        """Return what lies between HEAD and TAIL; None for a slot that was taken back."""
        base, capacity = self.layout.inbox(worker), self.layout.inbox_slots
        span = range(self.memory[base + I_HEAD], self.memory[base + I_TAIL])
        first = base + INBOX_HEADER
        found = [self.memory[first + index % capacity] for index in span]
        return [None if handle == TOMB else handle for handle in found]


class Rings:
    """The rings of children of a small pool; a child is named by its home and its place there.

    Attributes:
        stores: through which everything is stored.
        deques: one per worker.
        state: the state words, which check each move.
    """

    def __init__(self, workers: int, *, slots: int, children: int = 8, start: int = 0) -> None:
        self.layout = Layout.plan(
            workers,
            entries=2,
            inbox_slots=2,
            inline_bytes=8,
            result_words=2,
            slab_bytes=8,
            function_bytes=8,
            function_slots=2,
            children=children,
            child_bytes=8,
            ring_slots=slots,
        )
        self.stores = Stores()
        self.memory = memoryview(bytearray(self.layout.size_bytes)).cast("Q")
        words = as_memory(View(self.memory, self.stores))
        self.deques = [Deque(words, self.layout, worker) for worker in range(workers)]
        first = self.layout.state
        self.state = StateView(self.memory[first : first + self.layout.total], self.stores)
        for ring in self.deques:
            ring._state = as_memory(self.state)
            Deque.initialise(words, self.layout, ring.worker)
            base = self.layout.ring(ring.worker)
            self.memory[base + I_HEAD] += start
            self.memory[base + I_TAIL] += start

    def handle(self, home: int, child: int) -> int:
        """Return the handle of a child."""
        return self.layout.children_of(home)[child]

    def state_of(self, home: int, child: int) -> int:
        """Return the state word of a child."""
        return int(self.state[self.handle(home, child)])

    def push(self, home: int, children: Sequence[int]) -> None:
        """What home does: state words first, then the ring."""
        handles = [self.handle(home, child) for child in children]
        for handle in handles:
            self.state[handle] = st.word(st.QUEUED, home)
        self.deques[home].push(handles)

    def free(self, home: int, child: int) -> None:
        """Let an entry go."""
        self.state[self.handle(home, child)] = st.FREE

    def check(self) -> None:
        """Assert the rings' invariants; no lock is held and nothing is to be repaired."""
        for ring in self.deques:
            ring.check_invariants()
            own = self.layout.children_of(ring.worker)
            queued = [h for h in own if self.state[h] == st.word(st.QUEUED, ring.worker)]
            assert sorted(ring.handles()) == queued, (ring.worker, ring.handles(), queued)

    def snapshot(self) -> bytes:
        """Return everything that processes share."""
        return bytes(self.memory)

    def restore(self, snapshot: bytes) -> None:
        """Go back to an earlier `snapshot`."""
        self.memory.cast("B")[:] = snapshot
