"""Rows to a stream, in input order or as they come; and what every sink of rows can do."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Final, Protocol

from mpsched.cli.files import write_all
from mpsched.cli.problems import Broken
from mpsched.cli.spool import Spool

if TYPE_CHECKING:
    from mpsched.cli.inputs import Item

__all__ = ["ReaderGone", "Sink", "StreamSink"]


_PATIENCE: Final = 0.5  # seconds


class ReaderGone(Exception):
    """Nobody reads the rows any more (`| head`): the run ends without a word."""


class Sink(Protocol):
    """Where rows go. Main thread only."""

    def put(self, item: Item, row: bytes) -> None:
        """Take the row of an item that has ended; an empty one if it has none to show."""

    def flush(self) -> None:
        """Give the kernel what has been put.

        Raises:
            Broken: It cannot be written.
            ReaderGone: Nobody reads it.
        """

    def tick(self) -> None:
        """Do what is due: to be called several times a second, whether or not there are rows."""

    def finish(self) -> None:
        """Write what is left and put it in its final place; the run has ended."""

    def hurry(self) -> None:
        """The run is being given up: wait for nobody."""

    def discard(self) -> None:
        """Take back what can be taken back; the run has no result."""

    def close(self) -> None:
        """Give up descriptors; without `finish`, what has been flushed stays as it is."""


class StreamSink:
    """Rows to a descriptor: a pipe, a terminal, a file that the shell has opened."""

    def __init__(self, descriptor: int, *, ordered: bool) -> None:
        self._descriptor = descriptor
        self._spool = Spool() if ordered else None
        self._ready: list[bytes] = []
        self._deadline: float | None = None
        self._torn = False
        """Whether a write was cut short: what follows would be in the middle of a row."""
        self._poll: select.poll | None = None
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(descriptor, 0)  # errors only, which are always reported

    def put(self, item: Item, row: bytes) -> None:
        """Take the row of an item that has ended."""
        if self._spool is None:
            self._ready.append(row)
            return
        try:
            self._spool.put(item.i, row)
        except OSError as error:
            raise Broken(
                f"rows that wait for their turn cannot be kept: {error.strerror};"
                " --unordered writes them as they come"
            ) from None

    def flush(self) -> None:
        """Write the rows whose turn it is."""
        if self._spool is not None:
            held = 0
            for row in self._spool.ready():
                self._ready.append(row)
                held += len(row)
                if held > 1 << 20:
                    self._write()
                    held = 0
        self._write()

    def tick(self) -> None:
        """See whether the reader is gone, before the next row is there to tell.

        Raises:
            ReaderGone: It is.
        """
        if self._poll is not None and any(
            flags & select.POLLERR for _, flags in self._poll.poll(0)
        ):
            raise ReaderGone

    def finish(self) -> None:
        """Write the rows that are left; positions that have none are passed over."""
        if self._spool is not None:
            for row in self._spool.rest():
                self._ready.append(row)
                if len(self._ready) >= 1024:
                    self._write()
        self._write()

    def hurry(self) -> None:
        """From now on wait half a second in all for a reader that is slow, then give it up."""
        if hasattr(select, "PIPE_BUF"):  # where there is none, pipes cannot be waited for: Windows
            self._deadline = time.monotonic() + _PATIENCE

    def discard(self) -> None:
        """Do nothing: what has been written has been read."""

    def close(self) -> None:
        """Give up what waits."""
        if self._spool is not None:
            self._spool.close()

    def _write(self) -> None:
        data = b"".join(self._ready)
        self._ready.clear()
        if self._torn:
            raise ReaderGone
        self._torn = True  # until it is known to be whole: Ctrl-C may end it
        try:
            write_all(self._descriptor, data, self._deadline)
            self._torn = False
        except (BrokenPipeError, TimeoutError):
            raise ReaderGone from None
        except OSError as error:
            raise Broken(f"standard output cannot be written: {error.strerror}") from None
