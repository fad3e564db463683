"""Nameless memory files, and the memory in them. See README.md, "Payloads".

A file that is written through a mapping kills the writer (SIGBUS) when no memory is left. So what is
here is written or reserved by system calls, which fail with an `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

from mpsched._shm import hugepages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Bytes between two looks at the memory that is left (0.6 ms each). Smaller: the look costs more
# than 2 % of the writing. Larger: more is taken unseen.
_LOOK_EVERY: Final = 64 << 20

# Bytes asked of the kernel at once. Smaller: more system calls. Larger: a program with a fast
# interval timer starts over again and again, since a signal undoes a reservation that is under way.
_STEP: Final = 4 << 20

_unseen = 0  # bytes since the last look; two threads may lose an addition, which delays a look


def make(parts: Sequence[tuple[int, memoryview]], size: int) -> int:
    """Return a new file of `size` bytes that holds each part at its offset.

    Nobody can change the file any more: on Linux it is sealed.

    Args:
        parts: (offset, bytes); together they touch every page of the file.
        size: Bytes of the file; may be 0.

    Raises:
        OSError: No descriptor or no memory is left; the text says how much was asked for.
    """
    with _explained(size):
        fd = _nameless("mpsched-payload")
        try:
            _lay_huge_pages(fd, size)
            for offset, part in parts:
                _write(fd, part, offset)
            _seal(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd


def make_open() -> int:
    """Return a new file without bytes, to which `append` writes.

    Raises:
        OSError: No descriptor is left.
    """
    with _explained(0):
        return _nameless("mpsched-payloads")


def append(fd: int, parts: Sequence[tuple[int, memoryview]], size: int) -> None:
    """Write parts, of `size` bytes together, at their offsets in a file of `make_open`.

    Raises:
        OSError: As for `make`.
    """
    with _explained(size):
        for offset, part in parts:
            _write(fd, part, offset)


def make_zeroed(size: int) -> int:
    """Return a new file of `size` zero bytes, more than 0, that every process may write.

    All memory is reserved, so no writer is killed for want of it.

    Raises:
        OSError: As for `make`.
    """
    with _explained(size):
        fd = _nameless("mpsched-shared")
        try:
            _lay_huge_pages(fd, size)
            for offset in range(0, size, _STEP):
                _reserve(fd, offset, min(_STEP, size - offset))
        except BaseException:
            os.close(fd)
            raise
        return fd


@contextlib.contextmanager
def _explained(size: int) -> Iterator[None]:
    try:
        _look(size)
        yield
    except OSError as error:
        text = error.strerror or str(error)
        raise OSError(error.errno, f"cannot get {size:,} bytes of shared memory: {text}") from error


def _look(size: int) -> None:
    """Refuse what the machine or a control group cannot give.

    The kernel itself hands out pages until it has to kill a process.
    """
    global _unseen
    _unseen += size
    if _unseen < _LOOK_EVERY:
        return
    _unseen = 0
    from mpsched._base import memory

    left = memory.available_bytes()
    if left is not None and size > left:
        raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}, {left:,} bytes are left")


def _nameless(name: str) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o600)  # it begins with 0777, and `/proc/PID/fd` is a way to it
        except BaseException:
            os.close(fd)
            raise
        return fd
    import tempfile

    fd, path = tempfile.mkstemp(prefix="mpsched-")
    os.unlink(path)
    return fd


def _lay_huge_pages(fd: int, size: int) -> None:
    if hugepages.are_worth(size):
        os.ftruncate(fd, size)
        hugepages.lay(fd, size)


def _write(fd: int, part: memoryview, offset: int) -> None:
    done = 0
    while done < len(part):
        done += os.pwrite(fd, part[done : done + _STEP], offset + done)


def _reserve(fd: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, size)
    else:  # macOS
        _write(fd, memoryview(bytes(size)), offset)


def _seal(fd: int) -> None:
    if hasattr(os, "memfd_create"):
        import fcntl

        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
