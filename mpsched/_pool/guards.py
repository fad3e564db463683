"""Where a pool may not be used, and what it needs from the process."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

from mpsched._pool.waiting import Condition
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
        # Another thread may have held its lock.
        pool.room = Condition()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
