"""The inbox: roots that the parent dispatched to one worker, a ring that thieves may take from.

See README.md, "Inbox".

Rights: the parent pushes, lays an early root and removes (try-lock), the owner claims and gives back
(waits), thieves steal (try-lock).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mpsched._deque.ring import OP_EARLY, OP_GIVE, TOMB, Ring
from mpsched._shm.layout import (
    I_COUNT,
    I_DIRTY,
    I_EARLY,
    I_FROM,
    I_HEAD,
    I_OLD,
    I_TAIL,
    Layout,
)
from mpsched._shm.words import WEAK, fence
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Sequence


@final
class Inbox(Ring):
    """One worker's inbox, as any process of the pool sees it; lock `worker`."""

    __slots__ = ()

    def __init__(self, words: memoryview, layout: Layout, worker: int) -> None:
        state = words[layout.state : layout.state + layout.total]
        base = layout.inbox(worker)
        super().__init__(words, base, layout.inbox_slots, lock=worker, worker=worker, state=state)

    def give_back(self, handles: Sequence[int]) -> int:
        """Put CLAIMED roots of the owner back at the head, in order. Owner only.

        Linearization point: the store of HEAD. Returns how many of the *last* ones went in (as many
        as there is room for).
        """
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        count = min(len(handles), self.capacity - (tail - head))
        # Indices start at `capacity`, so the head can go back by a whole ring at any time.
        if not 0 <= tail - head <= self.capacity or head < count:
            raise self._damaged()
        if count <= 0:
            return 0
        slots, mask, state = self._slots, self._mask, self._state
        words[base + I_OLD] = head
        words[base + I_COUNT] = count
        for offset, handle in enumerate(handles[-count:]):
            slots[(head - count + offset) & mask] = handle
        # crash-point: inbox.give.slots
        words[base + I_DIRTY] = OP_GIVE | self.worker << 8
        # crash-point: inbox.give.dirty
        queued = st.word(st.QUEUED, self.worker)
        for handle in handles[-count:]:
            state[handle] = queued
        # crash-point: inbox.give.queued
        words[base + I_HEAD] = head - count
        # crash-point: inbox.give.head
        words[base + I_DIRTY] = 0
        return count

    # --- one that is there before its time: README.md, "Early roots" ---------------------------------

    @property
    def early(self) -> int:
        """Where EARLY is among the words of the segment, and FROM behind it."""
        return self._base + I_EARLY

    def lay(self, handle: int, from_ns: int) -> bool:
        """Put in a root that nobody takes before `from_ns`; its state word is QUEUED already. Parent.

        Linearization point: the store of EARLY. False if something else lies here, which would come
        before it.
        """
        words, base = self._words, self._base
        if words[base + I_EARLY] or words[base + I_HEAD] != words[base + I_TAIL]:
            return False
        words[base + I_FROM] = from_ns
        if WEAK:
            fence()  # for the owner, who looks at both without a lock
        words[base + I_EARLY] = handle + 1
        return True

    def take_early(self, claimer: int, now_ns: int) -> list[int]:
        """Move the early root from QUEUED to CLAIMED(claimer), if its time has come. Owner, thief.

        Linearization point: the store of 0 in EARLY.
        """
        words, base = self._words, self._base
        early = words[base + I_EARLY]
        if not early or now_ns < words[base + I_FROM]:
            return []
        handle = early - 1
        if handle >= len(self._state) or self._state[handle] != st.word(st.QUEUED, self.worker):
            raise self._damaged()
        words[base + I_OLD] = words[base + I_HEAD]
        words[base + I_COUNT] = 0
        words[base + I_DIRTY] = OP_EARLY | claimer << 8
        # crash-point: inbox.early.dirty
        self._state[handle] = st.CLAIMED | claimer << 8
        # crash-point: inbox.early.claimed
        words[base + I_EARLY] = 0
        # crash-point: inbox.early.taken
        words[base + I_DIRTY] = 0
        return [handle]

    def handles(self) -> list[int]:
        """As `Ring.handles`, and the early one, which is the last to come."""
        found = super().handles()
        early: int = self._words[self._base + I_EARLY]
        return [*found, early - 1] if early else found

    def remove(self, handle: int) -> bool:
        """As `Ring.remove`. No TOMB stays at either end: the parent counts slots as roots that wait."""
        words, base = self._words, self._base
        if words[base + I_EARLY] == handle + 1:
            words[base + I_EARLY] = 0
            return True
        if not super().remove(handle):
            return False
        slots, mask = self._slots, self._mask
        head = first = words[base + I_HEAD]
        tail = last = words[base + I_TAIL]
        while last > first and slots[(last - 1) & mask] == TOMB:
            last -= 1
        while first < last and slots[first & mask] == TOMB:
            first += 1
        if last != tail:
            words[base + I_TAIL] = last
        if first != head:
            words[base + I_HEAD] = first
        return True

    def _undo(self, operation: int, claimer: int, old: int, count: int) -> None:
        super()._undo(operation, claimer, old, count)
        if operation == OP_EARLY:
            # Taken if EARLY is 0; else it still lies here.
            early = self._words[self._base + I_EARLY]
            if early > len(self._state):
                raise self._damaged()
            if early and self._state[early - 1] == st.word(st.CLAIMED, claimer):
                self._state[early - 1] = st.word(st.QUEUED, self.worker)
        if operation == OP_GIVE:
            # The slots below the head are nobody's yet; the claimer is dead, and the parent finds
            # the roots by their state words: CLAIMED(dead), or QUEUED here without a slot.
            queued, claimed = st.word(st.QUEUED, self.worker), st.word(st.CLAIMED, claimer)
            for index in range(old - count, old):
                handle = self._slots[index & self._mask]
                if handle == TOMB:
                    continue
                if handle >= len(self._state):
                    raise self._damaged()
                if self._state[handle] == queued:
                    self._state[handle] = claimed

    @staticmethod
    def initialise(words: memoryview, layout: Layout, worker: int) -> None:
        """Set the indices of a new inbox. Parent only, before any worker starts."""
        Ring.reset(words, layout.inbox(worker), layout.inbox_slots)
