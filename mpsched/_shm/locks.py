"""Locks between processes that the kernel releases when their holder is killed.

See README.md, "Locks". One byte of an anonymous file per lock, locked with `fcntl.lockf`: record
locks belong to the process, so they neither nest nor exclude its own threads. Whoever uses one from
two threads of a process puts a `threading.Lock` before it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final, final

lockf = fcntl.lockf
_WAIT: Final = fcntl.LOCK_EX
_TRY: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN


@final
class KernelLocks:
    """A file of one-byte record locks; lock `i` is byte `i`.

    `acquire` and `release` are a system call each (0.6 us); releasing what is not held is harmless,
    which is what makes `try: acquire ... finally: release` safe against KeyboardInterrupt.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def acquire(self, index: int) -> None:
        """Wait for lock `index`. Only the owner of the structure that it guards may wait."""
        while True:
            try:
                lockf(self.fd, _WAIT, 1, index)
            except OSError as error:
                # The kernel sees a cycle through another thread of the same process; ours never
                # holds two locks, so trying again ends.
                if error.errno != errno.EDEADLK:
                    raise
            else:
                return

    def try_acquire(self, index: int) -> bool:
        """Take lock `index` if it is free; thieves and the parent use this form only."""
        try:
            lockf(self.fd, _TRY, 1, index)
        except OSError as error:
            if error.errno in {errno.EACCES, errno.EAGAIN}:
                return False
            raise
        return True

    def release(self, index: int) -> None:
        """Unlock lock `index`; harmless if this process does not hold it."""
        lockf(self.fd, _UNLOCK, 1, index)

    def holder(self, index: int) -> int:
        """Return the process that holds lock `index`; 0 if none does, or the system does not tell.

        Reads the locks of the whole machine: for accidents only.
        """
        inode = os.fstat(self.fd).st_ino
        try:
            with open("/proc/locks", encoding="ascii") as locks:
                lines = [line.split() for line in locks]
        except OSError:
            return 0
        for _number, kind, *rest in lines:
            if kind == "POSIX":  # who waits for one has an arrow here
                _advisory, _write, pid, place, first, last = rest
                if place.rpartition(":")[2] == str(inode) and first == last == str(index):
                    return int(pid)
        return 0

    def close(self) -> None:
        """Close the file; this drops every lock that this process holds in it."""
        fd, self.fd = self.fd, -1  # the number may be another file's at once
        os.close(fd)
