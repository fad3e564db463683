"""Waiting for one process by its pidfd, which never names another process; see README.md."""

from __future__ import annotations

import errno
import os
import select
import time

_TRACED_S = 5.0
"""Seconds to wait for a debugger that has a dead child in its hands."""


def available() -> bool:
    """Tell whether this platform has pidfds (Linux 5.3 and later).

    Raises:
        OSError: No descriptor is left to find out.
    """
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM}:  # an old kernel, or a filter in a container
            return False
        raise
    return True


def ended(pidfd: int, timeout: float | None = 0.0) -> bool:
    """Tell whether the process has ended, waiting up to `timeout` seconds (None: as long as needed)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else timeout * 1000.0))


def reap(pidfd: int) -> int | None:
    """Reap a child that has ended; return its status: the exit code, or minus the signal's number.

    None when somebody else has reaped it (`os.wait()` in user code, SIGCHLD ignored), or when it
    is no child of this process, or when a debugger keeps it: it has ended, how is not known.

    Raises:
        RuntimeError: It has not ended.
    """
    until = time.monotonic() + _TRACED_S
    while True:
        try:
            found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if not ended(pidfd):
            raise RuntimeError(f"reap() of a process that has not ended (pidfd {pidfd})")
        # Whoever follows it (`strace -f`, a debugger) is told first, and its parent a moment later.
        if time.monotonic() > until:
            return None
        time.sleep(0.001)
