"""A root that was handed over before its time: who waits for that, and takes it then.

See README.md, "Early roots". Its owner waits awake, for half a millisecond or so: no store, no choice and no
wake-up is left to be made when the time has come.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged, fence

if TYPE_CHECKING:
    from mpsched._deque.inbox import Inbox
    from mpsched._worker.worker import Worker

_NEAR_NS: Final = 20_000
"""From so long before the time on the inbox's lock is taken to look whether it has come."""

_FAR_NS: Final = 1_000_000_000
"""Nobody hands anything over so long before its time."""


def await_own(worker: Worker) -> bool:
    """Wait for the time of the early root in the own inbox, and claim it. The main thread, with an empty stack.

    Nothing else is taken meanwhile: what comes before it has it taken back, and children are run at home.

    Returns:
        False if it was taken back.
    """
    words, at = worker.words, worker.inbox.early
    state = worker.block + lay.B_STATE
    clock, give_way = time.monotonic_ns, os.sched_yield
    # As while it lingers: nothing runs here, and no bell is needed.
    words[state] = lay.LINGERING
    # crash-point: early.awaited
    try:
        if early := words[at]:
            worker.look_ahead(early - 1)
        while words[at]:
            left = words[at + 1] - clock()
            if left <= _NEAR_NS:
                # Again and again until the time has come: then this way is warm, and half as long.
                if worker.take_early():
                    return True
                continue
            if left > _FAR_NS:
                raise Damaged(
                    f"worker {worker.index} was given a root {left / 1e9:.0f} s before its time; something "
                    "has written into the shared memory of this pool"
                )
            give_way()
        return False
    finally:
        # Pairs with the look at STATE in Dispatcher.hand_early, as in idle.linger.
        words[state] = lay.AWAKE
        fence()


def is_due(words: memoryview, inbox: Inbox) -> bool:
    """Whether an inbox holds an early root whose time has come. A hint without its lock."""
    return bool(words[inbox.early]) and words[inbox.early + 1] <= time.monotonic_ns()
