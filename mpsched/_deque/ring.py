"""A FIFO ring of handles that one process fills and several empty: inbox and deque have one each.

See README.md, "Inbox". Every change is made under a lock of the pool's `KernelLocks`, but for a push of
home's (deque.py), and becomes visible by one store (its linearization point). A holder that is killed leaves
an undo record, which the next holder repairs before it looks at anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mpsched._shm.layout import I_COUNT, I_DIRTY, I_HEAD, I_OLD, I_TAIL, INBOX_HEADER
from mpsched._shm.words import WEAK, Damaged, fence
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Sequence

TOMB: Final = (1 << 64) - 1
"""A slot whose handle was taken out again: skipped by whoever meets it."""

OP_TAKE: Final = 1  # head forward: claim or steal
OP_GIVE: Final = 2  # head backward: give back (an inbox's only)
OP_EARLY: Final = 3  # the early root is taken; the head stays (an inbox's only)
_OPERATIONS: Final = frozenset({OP_TAKE, OP_GIVE, OP_EARLY})


class Ring:
    """A ring, as any process of the pool sees it.

    Invariants, true whenever the lock is free and DIRTY is 0: see README.md, INBOX-1 to INBOX-3.

    The caller holds lock `lock` for every method but `__len__`, which is a hint, and home's `push`.

    Attributes:
        worker: whose ring it is; QUEUED(worker) is the state of what lies in it.
        lock: which byte of the pool's `KernelLocks` guards it.
        capacity: slots.
    """

    __slots__ = ("_base", "_mask", "_slots", "_state", "_words", "capacity", "lock", "worker")

    def __init__(
        self, words: memoryview, base: int, slots: int, *, lock: int, worker: int, state: memoryview
    ) -> None:
        self.worker = worker
        self.lock = lock
        self.capacity = slots
        self._words = words
        self._base = base
        self._mask = slots - 1
        self._slots = words[base + INBOX_HEADER : base + INBOX_HEADER + slots]
        self._state = state

    @staticmethod
    def reset(words: memoryview, base: int, slots: int) -> None:
        """Set the indices of a new ring. Parent only, before any worker starts."""
        # They start at `slots`, so that the head may go back by a whole ring at any time.
        words[base + I_HEAD] = words[base + I_TAIL] = slots

    def close(self) -> None:
        """Let go of the segment, which cannot be unmapped before. The parent, at the pool's end."""
        self._slots.release()
        self._state.release()

    def __len__(self) -> int:
        """Slots in use. Exact under the lock, a hint without it."""
        words, base = self._words, self._base
        length: int = words[base + I_TAIL] - words[base + I_HEAD]
        if 0 <= length <= self.capacity:
            return length
        # Between the two reads somebody has moved the head; or they are damaged, and the next holder
        # says so.
        return 0 if length < 0 else self.capacity

    def _damaged(self) -> Damaged:
        """Return the error that says what is wrong here."""
        words, base = self._words, self._base
        head, tail, dirty, old, count = (
            words[base + at] for at in (I_HEAD, I_TAIL, I_DIRTY, I_OLD, I_COUNT)
        )
        return Damaged(
            f"the {type(self).__name__.lower()} of worker {self.worker} is damaged: head {head}, "
            f"tail {tail}, {self.capacity} slots, undo record {dirty:#x} {old} {count}; something has "
            "written into the shared memory of this pool"
        )

    @property
    def ends(self) -> tuple[int, int]:
        """Where HEAD and TAIL are among the words of the segment; equal as long as nothing is in the ring."""
        return self._base + I_HEAD, self._base + I_TAIL

    @property
    def tail(self) -> int:
        """Where the next handle will go. A word of the only one who pushes."""
        return int(self._words[self._base + I_TAIL])

    def repair(self) -> bool:
        """Undo what a killed holder left half done; the first thing after the lock is taken.

        Idempotent, so a holder killed inside it changes nothing. Returns True if there was something.

        Raises:
            Damaged: Its words are not what a ring's can be.
        """
        words, base = self._words, self._base
        dirty = words[base + I_DIRTY]
        if not dirty:
            return False
        # crash-point: ring.repair.begun
        operation, claimer = dirty & 255, dirty >> 8
        old, count = words[base + I_OLD], words[base + I_COUNT]
        if operation not in _OPERATIONS or count > self.capacity:
            raise self._damaged()
        if words[base + I_HEAD] == old:
            # Killed before its linearization point.
            self._undo(operation, claimer, old, count)
        # crash-point: ring.repair.undone
        words[base + I_DIRTY] = 0
        return True

    def verify(self) -> None:
        """Look at all that is in the ring. The parent, once per death: a worker may have died of it.

        Raises:
            Damaged: Its words, or what lies in a slot, are not what a ring's can be.
        """
        if max(self.handles(), default=0) >= len(self._state):
            raise self._damaged()

    def _undo(self, operation: int, claimer: int, old: int, count: int) -> None:
        if operation == OP_TAKE:
            # What it had marked is still in the ring.
            queued, claimed = st.word(st.QUEUED, self.worker), st.word(st.CLAIMED, claimer)
            for index in range(old, old + count):
                handle = self._slots[index & self._mask]
                if handle == TOMB:
                    continue
                if handle >= len(self._state):
                    raise self._damaged()
                if self._state[handle] == claimed:
                    self._state[handle] = queued

    def push(self, handles: Sequence[int]) -> None:
        """Append handles whose state word is QUEUED(worker) already. There is room.

        The parent pushes with the lock, home without it (deque.py).

        Linearization point: the store of TAIL. Whoever is interrupted or killed before it has
        pushed nothing; slots past TAIL mean nothing, so there is no undo record.
        """
        words, base = self._words, self._base
        tail = words[base + I_TAIL]
        slots, mask = self._slots, self._mask
        for handle in handles:
            slots[tail & mask] = handle
            tail += 1
        # crash-point: ring.push.slots
        if WEAK:
            fence()  # the slots before TAIL, for who reads them without having waited for a lock
        # Pairs with the look at all sources in idle.park (step 2).
        try:
            words[base + I_TAIL] = tail
        except ValueError:
            raise self._damaged() from None
        # crash-point: ring.push.tail

    def take(self, limit: int, claimer: int, until: int | None = None) -> list[int]:
        """Move up to `limit` of the oldest from QUEUED to CLAIMED(claimer).

        Linearization point of all of them: the store of HEAD. Returns the handles, oldest first; none
        only if there are none.

        Args:
            limit: How many at most.
            claimer: Who calls.
            until: TAIL as the caller has read it: nothing that was pushed since is taken.
        """
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL] if until is None else until
        if WEAK:
            fence()  # TAIL before the slots
        if tail - head > self.capacity:
            raise self._damaged()
        slots, mask, state = self._slots, self._mask, self._state
        start = head
        while start < tail and slots[start & mask] == TOMB:
            start += 1
        count = min(start + limit, tail) - head
        if count <= 0:
            if tail < head and until is None:
                raise self._damaged()
            return []
        if limit == 1:
            handles = [slots[start & mask]] if start < tail else []
        else:
            first, last = head & mask, (head + count) & mask
            raw = slots[first:last] if first < last else None
            found: list[int] = (
                raw.tolist() if raw is not None else slots[first:].tolist() + slots[:last].tolist()
            )
            handles = [handle for handle in found if handle != TOMB]
        words[base + I_OLD] = head
        words[base + I_COUNT] = count
        # crash-point: ring.take.noted
        words[base + I_DIRTY] = OP_TAKE | claimer << 8
        # crash-point: ring.take.dirty
        claimed = st.CLAIMED | claimer << 8
        try:
            for handle in handles:
                state[handle] = claimed
                # crash-point: ring.take.claiming
        except IndexError:
            # No handle. The undo record stays open, and its repair says the same.
            raise self._damaged() from None
        # crash-point: ring.take.claimed
        words[base + I_HEAD] = head + count
        # crash-point: ring.take.head
        words[base + I_DIRTY] = 0
        # crash-point: ring.take.clean
        return handles

    def remove(self, handle: int) -> bool:
        """Take one QUEUED handle out again by leaving a TOMB in its slot. Parent, or home.

        Linearization point: the store of the slot. Returns False if it is not here any more.
        """
        slots, mask = self._slots, self._mask
        for index in self._span():
            if slots[index & mask] == handle:
                # crash-point: ring.remove.found
                slots[index & mask] = TOMB
                # crash-point: ring.remove.tomb
                return True
        return False

    def handles(self) -> list[int]:
        """Return the handles in the ring, oldest first."""
        slots, mask = self._slots, self._mask
        return [slots[index & mask] for index in self._span() if slots[index & mask] != TOMB]

    def _span(self) -> range:
        """Return the indices in use; no more than there are slots."""
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        if not 0 <= tail - head <= self.capacity:
            raise self._damaged()
        return range(head, tail)

    def check_invariants(self) -> None:
        """Assert INBOX-1 to INBOX-3 as far as one ring shows them; the lock is held, DIRTY is 0."""
        words, base = self._words, self._base
        head, tail = words[base + I_HEAD], words[base + I_TAIL]
        assert words[base + I_DIRTY] == 0, f"dirty {words[base + I_DIRTY]:#x}"
        assert head <= tail <= head + self.capacity, f"head {head}, tail {tail}"
        handles = self.handles()
        assert len(set(handles)) == len(handles), f"a handle twice in {handles}"
        queued = st.word(st.QUEUED, self.worker)
        for handle in handles:
            assert self._state[handle] == queued, f"{handle} is {st.parts(self._state[handle])}"
