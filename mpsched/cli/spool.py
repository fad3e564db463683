"""Rows that wait for their turn: in memory while they are few, else in an unlinked file."""

from __future__ import annotations

import tempfile
from array import array
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Spool"]

_IN_MEMORY: Final = 8 << 20  # bytes of rows


class Spool:
    """Takes rows in any order and gives them in order of their positions.

    One slow input at the front holds back all that end behind it, and there may be millions.

    Invariants:
        Every position below `_next` has been given; a position is in `_held`, or in the file
        with its offset in `_offsets`, or has not come.
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._next = 0
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._offsets = array("q")  # of position _base + index; -1: not in the file
        self._base = 0
        self._in_file = 0

    def put(self, i: int, row: bytes) -> None:
        """Take the row of position `i`: a whole line, or empty for none.

        Raises:
            OSError: It had to go to the file, and there is no room.
        """
        if i == self._next or self._held_bytes + len(row) <= self._in_memory:
            self._held[i] = row
            self._held_bytes += len(row)
        else:
            self._spill(i, row)

    def ready(self) -> Iterator[bytes]:
        """Return the rows whose turn it is."""
        while (row := self._take(self._next)) is not None:
            self._next += 1
            yield row

    def rest(self) -> Iterator[bytes]:
        """Return all rows that are left, in order, though some between them never came."""
        while self._held or self._in_file:
            yield from self.ready()
            self._next += 1

    def close(self) -> None:
        """Give up the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, i: int) -> bytes | None:
        row = self._held.pop(i, None)
        if row is not None:
            self._held_bytes -= len(row)
            return row
        index = i - self._base
        if self._file is None or not 0 <= index < len(self._offsets) or self._offsets[index] < 0:
            return None
        self._file.seek(self._offsets[index])
        row = self._file.readline()
        self._in_file -= 1
        if self._in_file == 0:
            self._file.seek(0)
            self._file.truncate()
            del self._offsets[:]
        return row

    def _spill(self, i: int, row: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - see `close`
                prefix="mpsched-rows-"
            )
        if self._in_file == 0:
            self._base = self._next
        missing = i - self._base + 1 - len(self._offsets)
        if missing > 0:
            self._offsets.extend(array("q", [-1]) * missing)
        self._offsets[i - self._base] = self._file.seek(0, 2)
        self._file.write(row or b"\n")
        self._in_file += 1
