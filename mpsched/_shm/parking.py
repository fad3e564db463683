"""Where a process sleeps until another one wakes it.

See README.md, "Parking". A token is a hint: extra ones are harmless, and every sleeper looks at all
its sources again after waking. An eventfd where there is one (Linux), else a non-blocking pipe;
neither has a name.
"""

from __future__ import annotations

import math
import os
import select
from typing import Final, final

MAX_WAIT_MS: Final = (1 << 31) - 1  # what poll() takes; a longer wait wakes early and looks again


@final
class Parker:
    """One sleeper's bell: `wake` from anywhere, `wait` from the one thread that owns it.

    Attributes:
        read_fd: what to poll; inherited by every process of the pool.
        write_fd: what `wake` writes to; the same as `read_fd` for an eventfd.
    """

    __slots__ = ("_poll", "read_fd", "write_fd")

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)

    @classmethod
    def create(cls) -> Parker:
        """Make a new one. Parent only.

        Raises:
            OSError: no descriptor is left.
        """
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return cls(fd, fd)
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return cls(read_fd, write_fd)

    def fds(self) -> tuple[int, int]:
        """Return (read_fd, write_fd), what another process builds its own `Parker` from."""
        return self.read_fd, self.write_fd

    def wake(self) -> None:
        """Leave a token; wakes the owner if it sleeps. Any process, any thread; never blocks."""
        if self.write_fd < 0:
            return  # closed: nobody sleeps here any more
        try:
            # An eventfd takes exactly eight bytes; in a pipe they are eight tokens, which is fine.
            os.write(self.write_fd, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return  # full of tokens: the owner will wake

    def wait(self, timeout: float | None) -> bool:
        """Sleep until a token comes or `timeout` seconds are over (None: no limit).

        Returns:
            True if there was a token; all tokens are taken.
        """
        ms = None if timeout is None else min(max(0, math.ceil(timeout * 1e3)), MAX_WAIT_MS)
        if not self._poll.poll(ms):
            return False
        self.drain()
        return True

    def drain(self) -> None:
        """Take all tokens without waiting."""
        try:
            os.read(self.read_fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptors of this process."""
        read_fd, write_fd = self.read_fd, self.write_fd
        # First forgotten, then closed: the number may be another file's at once.
        self.read_fd = self.write_fd = -1
        os.close(read_fd)
        if write_fd != read_fd:
            os.close(write_fd)
