"""Texts from streams: lines or NUL-terminated names, from files and from standard input."""

from __future__ import annotations

import contextlib
import io
import os
import select
from typing import IO, TYPE_CHECKING, Final

from mpsched.cli.problems import Broken

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Reader", "Stop", "block_ends", "records"]

_CHUNK: Final = 1 << 18  # bytes


class Stop:
    """Tells the thread that reads the inputs to give up, though standard input is silent."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self.is_set = False

    def set(self) -> None:
        """Let every read of standard input, now and later, find its end. Any thread."""
        if not self.is_set:
            self.is_set = True
            os.write(self._writing, b"x")

    def fileno(self) -> int:
        """Return a descriptor that is readable when set."""
        return self._reading

    def close(self) -> None:
        """Close the descriptors; nobody may read any more."""
        os.close(self._reading)
        os.close(self._writing)


class _Stdin(io.RawIOBase):
    """Standard input whose reads end when `stop` is set.

    Not `sys.stdin`: a thread that sleeps in its lock cannot be ended, and breaks the exit.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if hasattr(select, "poll"):  # where there is none, pipes cannot be waited for: Windows
            select.select([0, self._stop.fileno()], [], [])
        if self._stop.is_set:
            return 0
        data = os.read(0, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Reader:
    """Opens what names and lines are read from, and knows how much of it has been read."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self.read_bytes = 0
        self.total_bytes: int | None = 0
        """None once a stream without a size has been opened."""

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading; `-` is standard input.

        Raises:
            Broken: It cannot be opened. (What the command line names has been looked at before.)
        """
        if name == "-":
            self.total_bytes = None
            with io.BufferedReader(_Stdin(self._stop), _CHUNK) as stream:
                yield stream
            return
        try:
            file = open(name, "rb", _CHUNK)  # noqa: SIM115 - closed below
        except OSError as error:
            raise Broken(f"{name} cannot be read: {error.strerror}") from None
        with file:
            yield file

    def expect(self, name: str) -> None:
        """Count a file that will be read to the expected bytes."""
        with contextlib.suppress(OSError):
            if self.total_bytes is not None:
                self.total_bytes += os.stat(name).st_size


def records(stream: IO[bytes], separator: bytes) -> Iterator[bytes]:
    """Return a stream's records without their separators; a last one need not have one."""
    if separator == b"\n":
        for line in stream:
            yield line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
        return
    rest = b""
    while data := stream.read1(_CHUNK):  # type: ignore[attr-defined]
        *whole, rest = (rest + data).split(separator)
        yield from whole
    if rest:
        yield rest


def block_ends(path: str, size: int) -> Iterator[tuple[int, int]]:
    """Return byte ranges of a file that cover it, each of about `size` and ending behind a newline.

    Raises:
        Broken: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            total = os.fstat(file.fileno()).st_size
            start = 0
            while start < total:
                stop = min(start + size, total)
                if stop < total:
                    file.seek(stop - 1)  # the byte before: it may be the newline itself
                    file.readline()
                    stop = file.tell()
                yield start, stop
                start = stop
    except OSError as error:
        raise Broken(f"{path} cannot be read: {error.strerror}") from None
