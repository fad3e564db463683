"""Views of a memory file that need no descriptor once they exist.

See README.md, "Payloads". `mmap.mmap` keeps a copy of the descriptor for each mapping before Python
3.13, so a list of a thousand arrays would use up a process's descriptors. Where it does, the C
library's `mmap` is called instead; where that cannot be, `mmap.mmap` is used and the limit stays.
"""

from __future__ import annotations

import mmap
import os
import sys

from mpsched._shm import hugepages, libc


def map_shared(fd: int, size: int, offset: int = 0) -> memoryview:
    """Map `size` bytes of a file: what is written is seen by every process that maps it.

    Args:
        fd: The file.
        size: Bytes, more than 0.
        offset: Where they start; a multiple of the page size.

    Returns:
        A writable view of bytes. The mapping lives as long as the view or anything made from it;
        `fd` may be closed at once.

    Raises:
        ValueError: the file has fewer bytes, so touching the view would kill the process.
        OSError: no address space or no mapping is left.
    """
    return _map(fd, size, offset, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def map_readonly(fd: int, size: int, offset: int = 0) -> memoryview:
    """Map `size` bytes of a file to read them; otherwise as `map_shared`.

    Not MAP_SHARED: before Linux 6.7 that is refused for a sealed file. The pages are the same.
    """
    return _map(fd, size, offset, mmap.MAP_PRIVATE, mmap.PROT_READ).toreadonly()


def map_copy_on_write(fd: int, size: int, offset: int = 0) -> memoryview:
    """Map `size` bytes of a file to read and change; otherwise as `map_shared`.

    A page that is written becomes this process's own; nobody else sees the change.
    """
    return _map(fd, size, offset, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)


def read_copy(fd: int, size: int, offset: int = 0) -> memoryview:
    """Return `size` bytes of a file in new private memory; otherwise as `map_shared`.

    The memory starts at a page, so what was aligned in the file still is.
    """
    _check_size(fd, size, offset)
    view = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    done = 0
    while done < size:
        done += os.preadv(fd, [view[done:]], offset + done)
    return view


def _check_size(fd: int, size: int, offset: int) -> None:
    there = os.fstat(fd).st_size
    if size <= 0 or there < offset + size:
        raise ValueError(f"cannot map {size:,} bytes at {offset:,} of a file that has {there:,}")


def _map(fd: int, size: int, offset: int, flags: int, prot: int) -> memoryview:
    _check_size(fd, size, offset)
    if hugepages.are_worth(size) and not offset and (library := libc.get()) is not None:
        return library.view(hugepages.map_file(library, fd, size, flags, prot), size)
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(fd, size, flags=flags, prot=prot, offset=offset, trackfd=False))
    library = libc.get()
    if library is None:
        return memoryview(mmap.mmap(fd, size, flags=flags, prot=prot, offset=offset))
    return library.view(library.mmap(None, size, prot, flags, fd, offset), size)
