"""Huge pages for large memory files. See README.md, "Huge pages"."""

from __future__ import annotations

import functools
import mmap
import os
import sys
from typing import TYPE_CHECKING, Final

from mpsched._shm import libc

if TYPE_CHECKING:
    from mpsched._shm.libc import Libc

_COLLAPSE: Final = 25  # MADV_COLLAPSE, Linux 6.1; the module `mmap` has not got it
_FIXED: Final = 0x10  # MAP_FIXED, likewise
_NOTHING: Final = 0  # PROT_NONE, likewise

_SIZE: Final = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"

_LEAST: Final = 2
"""Huge pages in a file that are worth asking for."""

_STEP: Final = 32
"""Huge pages asked for at once, in some 10 ms. Smaller: each call waits for all processors once. Larger: a
program that is asked to end does so later."""


@functools.cache
def page_size() -> int:
    """Return the bytes of a huge page; 0 where there are none."""
    if sys.platform != "linux":
        return 0
    try:
        with open(_SIZE, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def are_worth(size: int) -> bool:
    """Whether a file of `size` bytes is to have huge pages, if it can."""
    page = page_size()
    return bool(page) and size >= _LEAST * page


def lay(fd: int, size: int) -> None:
    """Let a file of `size` bytes, without memory, have as many huge pages as fit into it.

    If the system has none to give, or no memory, nothing else happens: what the file has then is zero,
    or not there.
    """
    page = page_size()
    library = libc.get()
    if library is None:
        return
    whole = size - size % page
    try:
        address = map_file(library, fd, whole, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError:
        return
    try:
        for start in range(0, whole, _STEP * page):
            end = min(start + _STEP * page, whole)
            for at in range(start, end, page):
                os.pwrite(fd, b"\0", at)  # where there is nothing, there is nothing to collapse
            if not library.madvise(address + start, end - start, _COLLAPSE):
                return  # an older kernel, or no huge page is free
    except OSError:
        return  # no memory: who writes or reserves the file finds out, and says how much was asked for
    finally:
        library.munmap(address, whole)


def map_file(library: Libc, fd: int, size: int, flags: int, prot: int, offset: int = 0) -> int:
    """Map a file where a huge page may start; return the address.

    Raises:
        OSError: No address space or no mapping is left.
    """
    page = page_size()
    # More than is needed, without memory; then the file goes into the middle of it, and the rest away.
    free = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = library.mmap(None, size + page, _NOTHING, free, -1)
    end = start + size + page
    at = start + -start % page
    try:
        library.mmap(at, size, prot, flags | _FIXED, fd, offset)
    except BaseException:
        library.munmap(start, size + page)
        raise
    if at > start:
        library.munmap(start, at - start)
    behind = at + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if behind < end:
        library.munmap(behind, end - behind)
    return at
