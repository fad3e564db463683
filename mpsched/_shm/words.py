"""Aligned 8-byte words in shared memory, and the fence between a store and a load.

See README.md, "Words". A store to or a load from a `memoryview` cast to `Q` is one aligned 8-byte
machine access on every platform that CPython supports here; nothing wider is ever torn-safe.
"""

from __future__ import annotations

import os
import threading
from typing import Final

MASK: Final = (1 << 64) - 1

_RMW = threading.Lock()
_take, _give = _RMW.acquire, _RMW.release
# x86 orders everything but a store followed by a load of another address; one interlocked
# instruction orders that too, and an uncontended lock is one. Other processors (ARM) may also move a
# later load above a lock's release, so there a trip into the kernel is made instead.
_X86: Final = (os.uname().machine if hasattr(os, "uname") else "").lower() in {
    "x86_64",
    "amd64",
    "i686",
    "i386",
}


def _fence_x86() -> None:
    if _take(False):  # by position: keywords cost as much as the instruction
        _give()
    else:
        # Another thread is between the two lines, and a lock that is taken is only read.
        _fence_kernel()


def _fence_kernel() -> None:
    os.sched_yield() if hasattr(os, "sched_yield") else os.getppid()


fence = _fence_x86 if _X86 else _fence_kernel
"""Order this process's earlier stores before its later loads (a Dekker pair needs one each side)."""

WEAK: Final = not _X86
"""Whether stores may also be seen in another order than they were made: then `fence` goes between."""


class Damaged(RuntimeError):
    """A word of the segment says what no process of the pool can have written. See README.md, "Damage".

    Raised by whoever is about to follow it. It ends a worker, and fails the pool if the parent meets it.
    """


def signed(word: int) -> int:
    """Return the two's complement value of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
