"""The pool's shared memory: one anonymous segment, made by the parent, mapped by every process.

See README.md, "Segment". An anonymous memory file has no name, so nothing can be left behind,
whoever dies; a container's small /dev/shm does not bound it, and no resource tracker is started.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import final


def anonymous_file(name: str, size: int) -> int:
    """Return the descriptor of a nameless file of `size` bytes, all zero, for its owner only.

    `memfd_create` where there is one (Linux); elsewhere a temporary file that is unlinked at once.

    Raises:
        OSError: no descriptor or no memory is left.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="mpsched-")
        os.unlink(path)
    try:
        os.fchmod(fd, 0o600)  # a memfd begins with 0777, and `/proc/PID/fd` is a way to it
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


@final
class Segment:
    """A mapping of `size` bytes that every process of one pool shares.

    Attributes:
        fd: descriptor of the file behind it; inherited or passed, never reopened by name.
        size: bytes.
        bytes: the whole segment, one byte an item.
        words: the whole segment, one aligned unsigned 64-bit word an item.
    """

    __slots__ = ("_map", "bytes", "fd", "size", "words")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")

    @classmethod
    def create(cls, size: int) -> Segment:
        """Make a new segment of `size` bytes (rounded up to pages), all zero. Parent only."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return cls(anonymous_file("mpsched-segment", size), size)

    def close(self, *, unmap: bool = True) -> None:
        """Unmap and close. A view that somebody still holds keeps the mapping until it goes.

        Without `unmap` that is so for the views of this object too: somebody may be about to use them.
        """
        if unmap:
            with contextlib.suppress(BufferError):
                self.words.release()
                self.bytes.release()
                self._map.close()
        os.close(self.fd)
