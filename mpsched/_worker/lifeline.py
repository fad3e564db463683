"""A process that is killed by the kernel when another process ends; see README.md, "Lifeline".

One process holds the write end of a pipe and nobody else does. A process that is tied to it has
asked the kernel for SIGKILL when that end is closed, which also happens when its holder is killed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal


def available() -> bool:
    """Tell whether this platform can tie processes (Linux can)."""
    return hasattr(fcntl, "F_SETSIG") and hasattr(os, "O_ASYNC")


def create() -> tuple[int, int]:
    """Make a lifeline; return (end to tie to, end to hold). Neither is inherited by exec."""
    return os.pipe2(os.O_CLOEXEC)


def tie(end: int) -> int:
    """Die by SIGKILL as soon as the process that holds the other end has ended.

    Works while this process computes in C code, sleeps or is stopped: no line of it has to run.
    Call it once the holding end is closed here; this function takes `end` over, and returns the
    descriptor that has to stay open.

    Raises:
        OSError: `end` is not a lifeline, or /proc is not mounted.
    """
    # The signal's receiver belongs to the open file description, which all tied processes share as
    # long as they use the inherited descriptor. Opening it again gives one of this process's own.
    own = os.open(f"/proc/self/fd/{end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(end)
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    # The holder may have ended before the line above: then no signal comes any more.
    ended = select.poll()
    ended.register(own, 0)  # 0: a hang-up is always reported
    if ended.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)
    return own
