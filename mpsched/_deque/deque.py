"""The public end of a split deque: the ring of children that one worker has published.

See README.md, "Split deque". The private end is home's alone and never in shared memory (`_worker`).

Rights: home pushes (without the lock: nobody else moves TAIL, and HEAD only goes forward here) and takes
back (waits for the lock), thieves take (try-lock), the parent removes what a dead home has left (try-lock).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mpsched._deque.ring import Ring
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._shm.layout import Layout


@final
class Deque(Ring):
    """One worker's ring of children, as any process of the pool sees it; lock `workers + worker`."""

    __slots__ = ()

    def __init__(self, words: memoryview, layout: Layout, worker: int) -> None:
        state = words[layout.state : layout.state + layout.total]
        super().__init__(
            words,
            layout.ring(worker),
            layout.ring_slots,
            lock=layout.workers + worker,
            worker=worker,
            state=state,
        )

    def room(self) -> int:
        """Return how many handles can be pushed, at least. Home."""
        return self.capacity - len(self)

    def take_back(self, handle: int) -> bool:
        """Take a child out again, if no thief has it. Home only.

        Linearization point: the store of TOMB in its slot. Returns False if it was taken. The entry
        stays QUEUED until home frees it.
        """
        if self._state[handle] != st.word(st.QUEUED, self.worker):
            return False
        return self.remove(handle)

    @staticmethod
    def initialise(words: memoryview, layout: Layout, worker: int) -> None:
        """Set the indices of a new ring. Parent only, before any worker starts."""
        Ring.reset(words, layout.ring(worker), layout.ring_slots)
