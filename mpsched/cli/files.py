"""Writing to descriptors, renaming and locking files, as all sinks of rows need it."""

from __future__ import annotations

import os
import select
import time

__all__ = ["is_locked", "lock", "replace_file", "write_all"]


def lock(descriptor: int) -> bool:
    """Keep a file for this process until the descriptor is closed, or the process killed.

    Returns:
        False if another process has it. True also where files cannot be locked.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are the user's to avoid
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems cannot
        return True
    return True


def is_locked(path: str) -> bool:
    """Whether another process keeps the file with `lock`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes, deadline: float | None = None) -> None:
    """Write all of `data`, waiting for a reader that is slow.

    Args:
        descriptor: Of a file, a pipe, a terminal.
        data: What to write.
        deadline: `time.monotonic()` after which a slow reader is not waited for.

    Raises:
        TimeoutError: The deadline has passed; a part may have been written.
        OSError: The descriptor takes no more; a part may have been written.
    """
    rest = memoryview(data)
    while rest:
        if deadline is None:
            some = rest
        else:
            some = rest[: select.PIPE_BUF]  # of which a pipe has room for all, or is not ready
            left = max(0.0, deadline - time.monotonic())
            if not select.select([], [descriptor], [], left)[1]:
                raise TimeoutError(f"nobody has read from descriptor {descriptor}")
        try:
            rest = rest[os.write(descriptor, some) :]
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
