"""Home's partition of the task table: which entries its published children have.

See README.md, "Children". Only home allocates and frees, in one process; the parent takes over when
home is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._shm.layout import Layout
    from mpsched._tasks.table import TaskTable

# --- META word of a child: kind or outcome | flags | function number << 24 -------------------------
C_PICKLE: Final = 1  # area = pickle of (function bytes or None, args)
C_FILES: Final = 2  #  area = pickle of (home's pid, in-band bytes or None, files)
C_PLAIN: Final = 3  #  area = `marshal` of (module or "", its name or bytes, first, rest)
O_VALUE: Final = 1  #  area = the value, pickled
O_ERROR: Final = 2  #  area = the error, as failure.py has it
O_VALUE_FILES: Final = 3  # area = pickle of (thief's pid, in-band bytes or None, files)
O_ERROR_FILES: Final = 4  # as O_VALUE_FILES, an error
O_PLAIN: Final = 5  #  area = `marshal` of the value, which is of a plain type
C_MASK: Final = 15
C_CHANGED: Final = 16  # the thief found an argument changed

_SERIAL: Final = (1 << 48) - 1
_FINAL: Final = frozenset({st.DONE, st.FAILED, st.RETURNED, st.LOST})


@final
class Children:
    """Allocates entries for one worker's children. Home only; the caller excludes its two threads.

    Entries that are not FREE at first are a predecessor's, killed while thieves had its children.
    They stay taken until they are final (`reclaim`), so that a late outcome hits nobody else.

    Attributes:
        in_use: entries that are not free: own ones and a predecessor's.
    """

    __slots__ = ("_free", "_next", "_own", "_table", "_theirs", "capacity", "in_use")

    def __init__(self, table: TaskTable, layout: Layout, worker: int) -> None:
        handles = layout.children_of(worker)
        self._table = table
        self.capacity = len(handles)
        self._theirs = {handle for handle in handles if table.state[handle] != st.FREE}
        self._own: set[int] = set()
        # Popped at the end: what was freed last is in some cache.
        self._free = [handle for handle in reversed(handles) if handle not in self._theirs]
        # Goes on where the predecessor ended: no ident is ever used again.
        last = max(ident & _SERIAL for ident in table.ident[handles.start : handles.stop].tolist())
        self._next = worker << 48 | last + 1
        self.in_use = len(self._theirs)

    def allocate(self) -> int | None:
        """Take a free entry and give it an ident of its own; None if there is none."""
        free = self._free
        if not free and not self.reclaim():
            return None
        handle = free.pop()
        table, ident = self._table, self._next
        table.cancel[handle] = 0
        table.started[handle] = 0
        table.ident[handle] = ident
        self._next = ident + 1
        self._own.add(handle)
        self.in_use += 1
        return handle

    def mark(self) -> int:
        """Return the ident of the next child: all that are allocated from now on have it or a higher one."""
        return self._next

    def free(self, handle: int) -> None:
        """Let an own entry go, which no ring holds any more (DEQUE-5)."""
        self._own.remove(handle)
        self._table.state[handle] = st.FREE
        self._free.append(handle)
        self.in_use -= 1

    def collectable(self) -> list[int]:
        """Return the own entries whose outcome, or whose return, can be taken over."""
        state = self._table.state
        return [handle for handle in self._own if state[handle] & 255 in _FINAL]

    def reclaim(self) -> int:
        """Free the entries of a predecessor that are final now; returns how many."""
        state = self._table.state
        found = [handle for handle in self._theirs if state[handle] & 255 in _FINAL | {st.FREE}]
        for handle in found:
            self._theirs.remove(handle)
            state[handle] = st.FREE
            self._free.append(handle)
        self.in_use -= len(found)
        return len(found)
