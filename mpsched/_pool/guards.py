"""Where a pool may not be used, and what it needs from the process."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from typing import TYPE_CHECKING

from mpsched.errors import ForkedPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._pool.core import Pool


def in_event_loop() -> bool:
    """Whether the calling thread runs an asyncio event loop, which must not be blocked."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_descriptors(workers: int) -> None:
    """Raise a clear error if the process may not open what a pool needs."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 16
    need = 6 * workers + 16
    if used + need > soft:
        raise OSError(
            24,
            f"a pool of {workers} workers needs {need} descriptors, {used} are open and the limit "
            f"is {soft}: use fewer workers or raise it (ulimit -n)",
        )


pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def live_pools() -> Sequence[Pool]:
    """Return the pools of this process."""
    return list(pools)


def forked() -> ForkedPool:
    """Return what the use of a pool in a forked child raises."""
    return ForkedPool(
        "this process was forked from the one that made the pool, which its workers do not "
        "know: make a pool of its own here"
    )


def _after_fork() -> None:
    for pool in list(pools):
        pool.forked = True
        pool.refusal = forked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
