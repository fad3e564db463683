"""Writing to descriptors and renaming files, as all sinks of rows need it."""

from __future__ import annotations

import os
import select

__all__ = ["replace_file", "write_all"]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, waiting for a reader that is slow.

    Raises:
        OSError: The descriptor takes no more; a part may have been written.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the shared pipe non-blocking
            select.select([], [descriptor], [])


def replace_file(new: str, old: str) -> None:
    """Rename `new` over `old`, and bring the rename to the disk where folders can be synced.

    Raises:
        OSError: It cannot be renamed.
    """
    os.replace(new, old)
    try:
        folder = os.open(os.path.dirname(os.path.abspath(old)), os.O_RDONLY)
    except OSError:  # Windows cannot open folders; it orders renames itself
        return
    try:
        os.fsync(folder)
    except OSError:
        pass  # some network file systems cannot; the rename itself has been done
    finally:
        os.close(folder)
