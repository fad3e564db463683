"""The inbox: roots that the parent dispatched to one worker, a FIFO ring that thieves may take from.

See README.md, "Inbox". Every change is made under lock `worker` of the pool's `KernelLocks` and
becomes visible by one store of HEAD or TAIL (its linearization point). A holder that is killed leaves
an undo record, which the next holder repairs before it looks at anything else.

Rights: the parent pushes (try-lock), the owner claims and gives back (waits), thieves steal
(try-lock), the parent removes (try-lock).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mpsched._shm.layout import I_COUNT, I_DIRTY, I_HEAD, I_OLD, I_TAIL, INBOX_HEADER, Layout
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Sequence

TOMB: Final = (1 << 64) - 1
"""A slot whose root the parent took back: skipped by whoever meets it."""

OP_TAKE: Final = 1  # head forward: claim or steal
OP_GIVE: Final = 2  # head backward: give back


@final
class Inbox:
    """One worker's inbox, as any process of the pool sees it.

    Invariants, true whenever the lock is free and DIRTY is 0:

    - INBOX-1: `HEAD <= TAIL <= HEAD + slots`; both only name slots, neither is ever reset.
    - INBOX-2: a slot in `[HEAD, TAIL)` is TOMB or a handle whose state word is QUEUED(worker).
    - INBOX-3: a handle lies in at most one slot of at most one inbox.

    The caller holds the lock for every method but `__len__`, which is a hint.
    """

    __slots__ = ("_base", "_mask", "_slots", "_state", "_words", "capacity", "worker")

    def __init__(self, words: memoryview, layout: Layout, worker: int) -> None:
        base = layout.inbox(worker)
        self.worker = worker
        self.capacity = layout.inbox_slots
        self._words = words
        self._base = base
        self._mask = layout.inbox_slots - 1
        self._slots = words[base + INBOX_HEADER : base + INBOX_HEADER + layout.inbox_slots]
        self._state = words[layout.state : layout.state + layout.entries]

    def close(self) -> None:
        """Let go of the segment, which cannot be unmapped before. The parent, at the pool's end."""
        self._slots.release()
        self._state.release()

    def __len__(self) -> int:
        """Slots in use. Exact under the lock, a hint without it."""
        words, base = self._words, self._base
        return max(0, words[base + I_TAIL] - words[base + I_HEAD])

    @property
    def tail(self) -> int:
        """Where the next root will go. The parent's own word."""
        return int(self._words[self._base + I_TAIL])

    def repair(self) -> bool:
        """Undo what a killed holder left half done; the first thing after the lock is taken.

        Idempotent, so a holder killed inside it changes nothing. Returns True if there was something.
        """
        words, base = self._words, self._base
        dirty = words[base + I_DIRTY]
        if not dirty:
            return False
        operation, claimer = dirty & 255, dirty >> 8
        old, count = words[base + I_OLD], words[base + I_COUNT]
        queued = st.word(st.QUEUED, self.worker)
        if operation == OP_TAKE and words[base + I_HEAD] == old:
            # Killed before its linearization point: what it had marked is still in the ring.
            claimed = st.word(st.CLAIMED, claimer)
            for index in range(old, old + count):
                handle = self._slots[index & self._mask]
                if handle != TOMB and self._state[handle] == claimed:
                    self._state[handle] = queued
        elif operation == OP_GIVE and words[base + I_HEAD] == old:
            # The slots below the head are nobody's yet; the claimer is dead, and the parent finds
            # the roots by their state words: CLAIMED(dead), or QUEUED here without a slot.
            claimed = st.word(st.CLAIMED, claimer)
            for index in range(old - count, old):
                handle = self._slots[index & self._mask]
                if handle != TOMB and self._state[handle] == queued:
                    self._state[handle] = claimed
        words[base + I_DIRTY] = 0
        return True

    def push(self, handles: Sequence[int]) -> None:
        """Append handles whose state word is QUEUED(worker) already. Parent only; there is room.

        Linearization point: the store of TAIL. A parent that is interrupted before it has pushed
        nothing; slots past TAIL mean nothing, so there is no undo record.
        """
        words, base = self._words, self._base
        tail = words[base + I_TAIL]
        slots, mask = self._slots, self._mask
        for offset, handle in enumerate(handles):
            slots[(tail + offset) & mask] = handle
        # Pairs with the owner's look at its sources in idle.park (step 2), under this lock.
        words[base + I_TAIL] = tail + len(handles)

    def take(self, limit: int, claimer: int) -> list[int]:
        """Move up to `limit` of the oldest roots from QUEUED to CLAIMED(claimer).

        Linearization point of all of them: the store of HEAD. Returns the handles, oldest first; none
        only if there are none.
        """
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        slots, mask, state = self._slots, self._mask, self._state
        start = head
        while start != tail and slots[start & mask] == TOMB:
            start += 1
        count = min(start + limit, tail) - head
        if count <= 0:
            return []
        first, last = head & mask, (head + count) & mask
        raw = slots[first:last] if first < last else None
        found: list[int] = (
            raw.tolist() if raw is not None else slots[first:].tolist() + slots[:last].tolist()
        )
        handles = [handle for handle in found if handle != TOMB]
        words[base + I_OLD] = head
        words[base + I_COUNT] = count
        words[base + I_DIRTY] = OP_TAKE | claimer << 8
        claimed = st.word(st.CLAIMED, claimer)
        for handle in handles:
            state[handle] = claimed
        words[base + I_HEAD] = head + count
        words[base + I_DIRTY] = 0
        return handles

    def give_back(self, handles: Sequence[int]) -> int:
        """Put CLAIMED roots of the owner back at the head, in order. Owner only.

        Linearization point: the store of HEAD. Returns how many of the *last* ones went in (as many
        as there is room for).
        """
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        # Indices start at `capacity`, so the head can go back by a whole ring at any time.
        count = min(len(handles), self.capacity - (tail - head))
        if count <= 0:
            return 0
        slots, mask, state = self._slots, self._mask, self._state
        words[base + I_OLD] = head
        words[base + I_COUNT] = count
        for offset, handle in enumerate(handles[-count:]):
            slots[(head - count + offset) & mask] = handle
        words[base + I_DIRTY] = OP_GIVE | self.worker << 8
        queued = st.word(st.QUEUED, self.worker)
        for handle in handles[-count:]:
            state[handle] = queued
        words[base + I_HEAD] = head - count
        words[base + I_DIRTY] = 0
        return count

    def remove(self, handle: int) -> bool:
        """Take one QUEUED root out again by leaving a TOMB in its slot. Parent only.

        Linearization point: the store of the slot. Returns False if it is not here any more.
        """
        words, base = self._words, self._base
        slots, mask = self._slots, self._mask
        for index in range(words[base + I_HEAD], words[base + I_TAIL]):
            if slots[index & mask] == handle:
                slots[index & mask] = TOMB
                return True
        return False

    def handles(self) -> list[int]:
        """Return the handles in the ring, oldest first."""
        words, base = self._words, self._base
        slots, mask = self._slots, self._mask
        span = range(words[base + I_HEAD], words[base + I_TAIL])
        return [slots[index & mask] for index in span if slots[index & mask] != TOMB]

    def check_invariants(self) -> None:
        """Assert INBOX-1 to INBOX-3 as far as one inbox shows them; the lock is held, DIRTY is 0."""
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        assert words[base + I_DIRTY] == 0, f"dirty {words[base + I_DIRTY]:#x}"
        assert head <= tail <= head + self.capacity, f"head {head}, tail {tail}"
        handles = self.handles()
        assert len(set(handles)) == len(handles), f"a handle twice in {handles}"
        queued = st.word(st.QUEUED, self.worker)
        for handle in handles:
            assert self._state[handle] == queued, f"{handle} is {st.parts(self._state[handle])}"

    @staticmethod
    def initialise(words: memoryview, layout: Layout, worker: int) -> None:
        """Set the indices of a new inbox. Parent only, before any worker starts."""
        base = layout.inbox(worker)
        words[base + I_HEAD] = words[base + I_TAIL] = layout.inbox_slots
