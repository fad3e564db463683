"""The C library's functions for mappings, where they can be called. See README.md, "Payloads".

The module `mmap` keeps a copy of the descriptor for each mapping before Python 3.13, cannot say where a
mapping is to lie, and keeps the GIL while it gives advice.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import final


@functools.cache
def get() -> Libc | None:
    """Return the functions; None where they cannot be called."""
    try:
        return Libc()
    except (ImportError, OSError, AttributeError):
        return None


@final
class Libc:
    """`mmap`, `munmap` and `madvise`. `ctypes` is imported at the first large payload."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._failed = ctypes.c_void_p(-1).value
        library = ctypes.CDLL(None, use_errno=True)
        self._mmap = library.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        self._munmap = library.munmap
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._madvise = library.madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def mmap(
        self, address: int | None, size: int, prot: int, flags: int, fd: int, offset: int = 0
    ) -> int:
        """Return the address of a new mapping.

        Raises:
            OSError: The system refuses it.
        """
        found: int = self._mmap(address, size, prot, flags, fd, offset)
        if found == self._failed:
            code = self._ctypes.get_errno()
            raise OSError(code, f"cannot map {size:,} bytes: {os.strerror(code)}")
        return found

    def munmap(self, address: int, size: int) -> None:
        """Take `size` bytes out of the process's address space."""
        self._munmap(address, size)

    def madvise(self, address: int, size: int, advice: int) -> bool:
        """Give advice; False if the system does not take it."""
        return not self._madvise(address, size, advice)

    def view(self, address: int, size: int) -> memoryview:
        """Return a mapping's bytes. It is unmapped when nothing refers to them any more."""
        block = (self._ctypes.c_ubyte * size).from_address(address)
        # Views hold `block`, so this runs when the last of them is gone. Not at exit: then the
        # memory goes with the process, and something may still look at it on the way.
        weakref.finalize(block, self._munmap, address, size).atexit = False
        return memoryview(block).cast("B")
