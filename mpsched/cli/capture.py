"""File descriptors 1 and 2: of the command, and of one call with `--capture`.

Rows leave the command by a private duplicate of descriptor 1. The number 1 itself becomes standard
error before the pool starts, and workers inherit it: neither a `print` nor a C library's `printf`
can reach the rows. See README.md, "The run", step 2.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Tap", "flush_all", "lines_above", "rows_apart"]

_KEPT: Final = 1 << 20  # bytes of one call's text; of more, the middle is left out
_flush_c: Callable[[], object] | None = None


@contextlib.contextmanager
def rows_apart() -> Iterator[int | None]:
    """Make descriptor 1 standard error, and give the old one under another number.

    Yields:
        The descriptor for rows, which no child inherits; None if standard output was closed.
    """
    _flush_python()
    try:
        rows: int | None = os.dup(1)
    except OSError:
        rows = None
    with contextlib.suppress(OSError):  # no standard error either: what is printed stays away
        os.dup2(2, 1)
    line_buffered()
    try:
        yield rows
    finally:
        flush_all()  # now, while descriptor 1 is not the rows'
        if rows is None:
            with contextlib.suppress(OSError):
                os.close(1)
        else:
            os.dup2(rows, 1)
            os.close(rows)


@contextlib.contextmanager
def lines_above(show: Callable[[str], object]) -> Iterator[None]:
    """Send what is written to descriptors 1 and 2, here and in children, to `show`, line by line.

    Context:
        `show` is called on a thread of this function. It must write to another descriptor.
    """
    flush_all()
    saved = [os.dup(1), os.dup(2)]
    reading, writing = os.pipe()
    stop_reading, stop_writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(
        target=_pass_on, args=(reading, stop_reading, show), name="mpsched-printed", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        flush_all()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        os.write(stop_writing, b"x")
        thread.join()
        for descriptor in (*saved, reading, stop_reading, stop_writing):
            os.close(descriptor)


def _pass_on(reading: int, stop: int, show: Callable[[str], object]) -> None:
    """Read until told to stop and nothing is left.

    Not until the end of the pipe: a process that FUNC left behind may hold it open for ever.
    """
    os.set_blocking(reading, False)
    rest = b""
    ending = False
    while True:
        if not ending:
            ready, _, _ = select.select([reading, stop], [], [])
            ending = stop in ready
        try:
            data = os.read(reading, 1 << 16)
        except BlockingIOError:
            if ending:
                break
            continue
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            show(b"\n".join(lines).decode("utf-8", "replace"))
    if rest:
        show(rest.decode("utf-8", "replace"))


class Tap:
    """Takes what one call writes to descriptors 1 and 2, C libraries included.

    Context:
        A worker's main thread, one call at a time. A thread that FUNC leaves behind writes into
        whatever is there when it writes.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file: IO[bytes] = os.fdopen(os.memfd_create("mpsched-capture"), "w+b", 0)
        else:
            import tempfile

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see `close`
        self._saved = [os.dup(1), os.dup(2)]

    def start(self) -> None:
        """Take from here on."""
        flush_all()
        self._file.seek(0)
        self._file.truncate()
        os.dup2(self._file.fileno(), 1)
        os.dup2(self._file.fileno(), 2)

    def stop(self) -> str:
        """Give the descriptors back, and return what was written."""
        flush_all()
        os.dup2(self._saved[0], 1)
        os.dup2(self._saved[1], 2)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        if size <= _KEPT:
            return self._file.read().decode("utf-8", "replace")
        first = self._file.read(_KEPT // 2).decode("utf-8", "replace")
        self._file.seek(size - _KEPT // 2)
        last = self._file.read().decode("utf-8", "replace")
        return f"{first}\n... {size - _KEPT:,} bytes left out ...\n{last}"

    def close(self) -> None:
        """Close what the tap has open."""
        self._file.close()
        for descriptor in self._saved:
            os.close(descriptor)


def line_buffered() -> None:
    """Let Python's streams write whole lines at once, though they are no terminal.

    Also where PYTHONUNBUFFERED would have them write each piece: two workers' lines would mix. It
    takes C's buffer too (`puts` then writes a text and its line end apart), which is given back.
    """
    unbuffered = getattr(sys.stdout, "write_through", False)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, write_through=False)
    if unbuffered and os.name == "posix":
        _buffer_c_lines()


def _buffer_c_lines() -> None:
    import ctypes

    by_line = 1  # _IOLBF, in glibc, musl and the BSDs
    size = ctypes.c_size_t(4096)
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for name in ("stdout", "__stdoutp"):  # the second on macOS
        with contextlib.suppress(ValueError):  # no such symbol
            stream = ctypes.c_void_p.in_dll(libc, name)
            # Never freed: C writes it out at the exit, when Python's memory may be gone.
            buffer = ctypes.c_void_p(libc.malloc(size))
            libc.setvbuf(stream, buffer, by_line, size)
            return


def flush_all() -> None:
    """Write out what Python's and C's streams hold back. Cheap if they hold nothing."""
    global _flush_c
    _flush_python()
    if _flush_c is None:
        _flush_c = _find_flush_c()
    _flush_c()


def _flush_python() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Closed or replaced by FUNC, or its reader is gone: nothing that a flush could save.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _find_flush_c() -> Callable[[], object]:
    """Return a function that flushes all C streams; one that does nothing where there is no way."""
    try:
        import ctypes

        fflush = ctypes.CDLL(None).fflush
    except (ImportError, OSError, TypeError, AttributeError):
        return lambda: None  # C libraries then write late, when their buffer is full
    return lambda: fflush(None)
