"""The parent's partition of the task table: which entry holds which task, and where frames lie.

See README.md, "Entries". Allocation is the dispatcher's (under its section), freeing the leader's;
each touches only what the other has let go of, by single operations that the GIL makes atomic.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final, final

from mpsched._tasks import state as st
from mpsched._tasks.table import ATTEMPT_SHIFT, INLINE, TaskTable

if TYPE_CHECKING:
    from mpsched._pool.task import Task
    from mpsched._shm.layout import Layout

_SMALLEST: Final = 256


@final
class Slab:
    """Blocks of shared memory for frames that do not fit inline; sizes are powers of two.

    A freed block is reused for its size only. `allocate` returns a byte offset, 0 if none is left.
    """

    __slots__ = ("_free", "_most", "_next", "_size")

    def __init__(self, size: int, most: int) -> None:
        self._size = size
        self._most = most
        self._next = _SMALLEST  # offset 0 means "inline"
        self._free: dict[int, deque[int]] = {}

    @staticmethod
    def block(size: int) -> int:
        """Return the size of the block that `size` bytes get."""
        return max(_SMALLEST, 1 << (size - 1).bit_length())

    def allocate(self, size: int) -> int:
        """Return the offset of a block of at least `size` bytes, or 0."""
        block = self.block(size)
        if block > self._most:
            return 0
        free = self._free.setdefault(block, deque())
        if free:
            return free.pop()
        if self._next + block > self._size:
            return 0
        at = self._next
        self._next += block
        return at

    def free(self, place: int, size: int) -> None:
        """Take a block back."""
        self._free[self.block(size)].append(place)


@final
class Entries:
    """Which task has which entry.

    Attributes:
        placed: the task of each entry, None where it is free.
    """

    __slots__ = ("_next", "_used", "_zeros", "placed", "slab", "table")

    def __init__(self, table: TaskTable, layout: Layout, slab_most: int) -> None:
        self.table = table
        self._zeros = memoryview(bytes(8 * layout.entries)).cast("Q")
        self.placed: list[Task | None] = [None] * layout.entries
        self._used = bytearray(layout.entries)
        self._next = 0
        self.slab = Slab(layout.slab_bytes, slab_most)

    def allocate(self, count: int) -> range:
        """Take up to `count` neighbouring free entries; may be fewer, is empty if none is free."""
        used, size = self._used, len(self._used)
        start = used.find(0, self._next)
        if start < 0:
            start = used.find(0)
            if start < 0:
                return range(0)
        stop = used.find(1, start, start + count)
        if stop < 0:
            stop = min(size, start + count)
        used[start:stop] = b"\1" * (stop - start)
        self._next = stop if stop < size else 0
        return range(start, stop)

    def in_use(self) -> int:
        """Return how many entries are not free."""
        return sum(self._used)

    def sweep(self) -> None:
        """Free what an exception has left neither in use nor free. Both sections are held."""
        for handle, task in enumerate(self.placed):
            if self._used[handle] and (task is None or task.handle != handle):
                self.placed[handle] = None
                self._used[handle] = 0

    def attempt(self, handle: int) -> int:
        """Return which attempt of its task an entry is for."""
        return (self.table.meta[handle] >> ATTEMPT_SHIFT) & 0xFFFF

    def free(self, handle: int) -> None:
        """Let an entry go. Harmless if it is free."""
        task = self.placed[handle]
        self.table.state[handle] = st.FREE
        self.placed[handle] = None
        # A task that is queued again may have another entry already.
        if task is not None and task.handle == handle:
            task.handle = -1
            place, task.place = task.place, INLINE
            if place != INLINE:
                self.slab.free(place, len(task.frame))
        self._used[handle] = 0

    def free_inline(self, handles: list[int]) -> None:
        """Let entries go whose frames lie inline, and whose tasks do not name them any more."""
        count = len(handles)
        if not count:
            return
        first, stop = handles[0], handles[-1] + 1
        if stop - first == count and handles == list(range(first, stop)):
            # Dispatched together, claimed together: each field in one go.
            self.table.state[first:stop] = self._zeros[:count]
            self.placed[first:stop] = [None] * count
            self._used[first:stop] = bytes(count)
            return
        state, placed, used = self.table.state, self.placed, self._used
        for handle in handles:
            state[handle] = st.FREE
            placed[handle] = None
            used[handle] = 0

    def write_burst(self, span: range, tasks: list[Task], state_word: int) -> bool:
        """Fill neighbouring entries, each field in one go; False if a frame is too large for that."""
        table = self.table
        frames = [task.frame for task in tasks]
        size = table.inline_bytes
        if max(map(len, frames)) > size:
            return False
        start, stop = span.start, span.stop
        self.placed[start:stop] = tasks
        for handle, task in zip(span, tasks, strict=True):
            task.handle = handle
        table.write_frames(start, frames)
        table.ident[start:stop] = array("Q", [task.id for task in tasks])
        table.meta[start:stop] = array(
            "Q", [task.meta | (task.attempt & 0xFFFF) << 8 for task in tasks]
        )
        zeros = self._zeros[: stop - start]
        table.cancel[start:stop] = zeros
        table.started[start:stop] = zeros
        table.state[start:stop] = array("Q", [state_word]) * (stop - start)
        return True

    def write(self, handle: int, task: Task, state_word: int) -> bool:
        """Fill an entry for the task's next attempt; False if the slab has no room for its frame.

        The state word comes last: a handle means nothing before its inbox holds it.
        """
        table = self.table
        frame = task.frame
        place = INLINE
        if len(frame) > table.inline_bytes:
            place = self.slab.allocate(len(frame))
            if place == INLINE:
                return False
        task.place = place
        task.handle = handle
        self.placed[handle] = task
        table.write_frame(handle, frame, place)
        table.ident[handle] = task.id
        table.meta[handle] = task.meta | (task.attempt & 0xFFFF) << 8
        table.cancel[handle] = 0
        table.started[handle] = 0
        table.state[handle] = state_word
        return True
