"""`OUT.partial`: rows in the order in which their inputs ended, until the run has ended.

See README.md, "OUT, OUT.partial, OUT.mpsched".
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from mpsched.cli.companion import companion_path
from mpsched.cli.files import is_locked, lock, replace_file, write_all
from mpsched.cli.problems import Broken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched.cli.companion import Companion
    from mpsched.cli.inputs import Item

__all__ = ["FileSink", "Rows", "copy_rows", "in_use", "partial_path", "temporary_path"]

_SYNC_SECONDS: Final = 1.0
_MISSING: Final = -1


def partial_path(out: str) -> str:
    """Return where the rows of an unfinished OUT are."""
    return out + ".partial"


def in_use(out: str) -> str:
    """Return what to say when another run writes `OUT.partial`."""
    return (
        f"another mpsched map is writing {partial_path(out)}: wait until it has ended, or give"
        " another --out"
    )


def temporary_path(out: str) -> str:
    """Return where OUT is put in order; what lies there from an earlier run is of no value."""
    return out + ".tmp"


class Rows:
    """Where each row is in a file of rows: 8 bytes per position."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self.count = 0
        """Rows of value."""
        self.in_order = True
        """Whether the file holds just the rows of value, by their positions."""
        self.clean = True
        """Whether the file holds just the rows of value."""

    def add(self, i: int, offset: int) -> None:
        """Note the row of position `i`, the last in the file; of several the last counts."""
        if i >= len(self._offsets):
            self._offsets.extend(array("q", [_MISSING]) * (i + 1 - len(self._offsets)))
        else:
            self.in_order = False
        if self._offsets[i] == _MISSING:
            self.count += 1
        else:
            self.clean = False
        self._offsets[i] = offset

    def by_position(self) -> Iterator[int]:
        """Return the offsets in input order."""
        return (offset for offset in self._offsets if offset != _MISSING)

    def by_offset(self) -> Iterator[int]:
        """Return the offsets as they are in the file."""
        return iter(sorted(self.by_position()))


@dataclass(slots=True)
class _Opened:
    companion: Companion
    rows: Rows
    descriptor: int
    size: int
    """Bytes of whole rows in `OUT.partial`."""


class FileSink:
    """Rows to OUT, by way of `OUT.partial`."""

    def __init__(
        self, out: str, begin: Callable[[], tuple[Companion, Rows]], *, ordered: bool
    ) -> None:
        """Remember; nothing is written before there is a row.

        So a run that ends at its first call, with status 2, leaves everything as it was.

        Args:
            out: The file that the user wants.
            begin: Makes `OUT.partial` and the companion; tells what rows there are.
            ordered: Whether OUT is to be in input order.
        """
        self._out = out
        self._path = partial_path(out)
        self._begin = begin
        self._ordered = ordered
        self._waiting: list[tuple[Item, bytes]] = []
        self._opened: _Opened | None = None
        self._dirty = False
        self._synced = time.monotonic()

    def put(self, item: Item, row: bytes) -> None:
        """Take the row of an item that has ended."""
        if row:
            self._waiting.append((item, row))

    def flush(self) -> None:
        """Append what has been put, in one write.

        Raises:
            Broken: Disk full, or the like. The rows that it took as a whole stay.
        """
        if not self._waiting:
            return
        opened = self._open()
        try:
            # First the stamps: a row without one runs again, a stamp without a row is nothing.
            opened.companion.append(item for item, _ in self._waiting)
            write_all(opened.descriptor, b"".join(row for _, row in self._waiting))
        except OSError as error:
            self._keep_whole_rows(opened)
            self._waiting.clear()
            raise Broken(
                f"{self._path} cannot be written: {error.strerror};"
                f" {opened.rows.count:,} rows are safe in it"
            ) from None
        for item, row in self._waiting:
            opened.rows.add(item.i, opened.size)
            opened.size += len(row)
        self._waiting.clear()
        self._dirty = True

    def _keep_whole_rows(self, opened: _Opened) -> None:
        """Cut the file behind the last row that was written as a whole."""
        with contextlib.suppress(OSError):
            written = os.fstat(opened.descriptor).st_size - opened.size
            for item, row in self._waiting:
                written -= len(row)
                if written < 0:
                    break
                opened.rows.add(item.i, opened.size)
                opened.size += len(row)
            os.ftruncate(opened.descriptor, opened.size)

    def tick(self) -> None:
        """Bring the rows to the disk, at most once a second.

        Raises:
            Broken: The disk does not take them.
        """
        if self._dirty and time.monotonic() - self._synced >= _SYNC_SECONDS:
            self._sync()

    def finish(self) -> None:
        """Put the rows in order, and OUT in its place.

        Raises:
            Broken: There is no room for the ordered copy; `OUT.partial` has all rows.
        """
        self.flush()
        rows = self._open().rows
        self._sync()
        try:
            if rows.in_order if self._ordered else rows.clean:
                replace_file(self._path, self._out)
                return
            self._copy(rows.by_position() if self._ordered else rows.by_offset())
            replace_file(temporary_path(self._out), self._out)
            os.unlink(self._path)
        except OSError as error:
            raise Broken(
                f"{self._out} cannot be written: {error.strerror}; all"
                f" {rows.count:,} rows are in {self._path}, and --resume puts them in order"
            ) from None
        finally:
            with contextlib.suppress(OSError):  # gone under its new name, if all is well
                os.unlink(temporary_path(self._out))

    def hurry(self) -> None:
        """Do nothing: no reader is waited for."""

    def discard(self) -> None:
        """Remove `OUT.partial` and the companion."""
        if self._opened is None:
            return
        self._dirty = False
        self.close()
        for path in (self._path, companion_path(self._out)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def close(self) -> None:
        """Close the files; the rows stay in `OUT.partial`."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            try:
                if self._dirty:
                    self._bring_to_disk(opened)
            finally:
                os.close(opened.descriptor)
                opened.companion.close()

    def _open(self) -> _Opened:
        if self._opened is None:
            if is_locked(self._path):  # before `begin` empties or replaces it
                raise Broken(in_use(self._out))
            companion, rows = self._begin()
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                descriptor = os.open(self._path, flags, 0o666)
            except OSError as error:
                companion.close()
                raise Broken(f"{self._path} cannot be written: {error.strerror}") from None
            if not lock(descriptor):
                os.close(descriptor)
                companion.close()
                raise Broken(in_use(self._out))
            self._opened = _Opened(companion, rows, descriptor, os.fstat(descriptor).st_size)
        return self._opened

    def _sync(self) -> None:
        self._bring_to_disk(self._open())
        self._synced = time.monotonic()

    def _bring_to_disk(self, opened: _Opened) -> None:
        self._dirty = False
        try:
            opened.companion.sync()
            os.fsync(opened.descriptor)
        except OSError as error:
            raise Broken(f"{self._path} cannot be written: {error.strerror}") from None

    def _copy(self, offsets: Iterator[int]) -> None:
        with (
            open(self._path, "rb") as source,
            open(temporary_path(self._out), "wb") as target,
        ):
            copy_rows(source, offsets, target)


def copy_rows(source: IO[bytes], offsets: Iterator[int], target: IO[bytes]) -> None:
    """Copy lines at these offsets, and bring them to the disk."""
    for offset in offsets:
        source.seek(offset)
        target.write(source.readline())
    target.flush()
    os.fsync(target.fileno())
