"""Parking: how a worker sleeps without missing work, and whom it asks first.

See README.md, "Parking". Announce, look at every source once more under its lock, then sleep on the
own bell with a safety timeout.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from mpsched._shm import layout as lay
from mpsched._shm.words import fence

if TYPE_CHECKING:
    from mpsched._worker.worker import Worker


def sources(worker: Worker) -> bool:
    """Whether any source of work holds something: the one list of all sources.

    Takes each lock once; a ring whose lock is busy counts as work.
    """
    if worker.stopping():
        return True
    for inbox in worker.inboxes:
        own = inbox is worker.inbox
        with worker.ring_lock:
            try:
                if own:
                    worker.locks.acquire(inbox.worker)
                elif not worker.locks.try_acquire(inbox.worker):
                    if len(inbox):
                        return True
                    continue
                inbox.repair()
                if len(inbox):
                    return True
            finally:
                worker.locks.release(inbox.worker)
    return False


def others_have_more(worker: Worker) -> list[int]:
    """Return the workers that hold more than they run: claimed roots, or items of a map's piece."""
    words, layout = worker.words, worker.config.layout
    found = []
    for other in range(layout.workers):
        if other == worker.index:
            continue
        block = layout.block(other)
        if words[block + lay.B_CLAIMED] or words[block + lay.B_LEFT]:
            found.append(other)
    return found


def linger(worker: Worker) -> bool:
    """Look at the own inbox for some microseconds before parking; True if something came.

    Where tasks take no longer than a wake-up, who submits one and waits for it submits the next at
    once: to be awake then saves both sides a system call and the scheduler's delay. Gives way to
    whoever else wants this core.
    """
    if not 0 < worker.recent_ns < worker.settings.linger_s * 1e9:
        return False
    inbox, clock = worker.inbox, time.monotonic_ns
    words, state = worker.words, worker.block + lay.B_STATE
    until = clock() + int(worker.settings.linger_s * 1e9)
    try:
        # Read by the dispatcher, which comes here first. Nobody is woken by it: whatever is missed
        # here is found by `park`.
        words[state] = lay.LINGERING
        while not len(inbox):
            if clock() >= until:
                return False
            os.sched_yield()
    finally:
        words[state] = lay.AWAKE
    return True


def park(worker: Worker) -> bool:
    """Sleep until there is something to do. Returns when it pays to look for work again.

    Returns:
        False if it did not sleep, because there is something to look at.
    """
    settings = worker.settings
    words, state = worker.words, worker.block + lay.B_STATE
    slept = False
    safety = settings.park_first_s
    patience = settings.patience_s
    worker.flush_stdio()
    try:
        # 1. Announce. Pairs with the parent's look at STATE after a push (dispatch.py) and with
        #    Worker.wake_parked.
        words[state] = lay.PARKED
        fence()
        while True:
            # 2. Look at every source once more.
            if sources(worker):
                return slept
            # 3. Sleep; the bell remembers a ring that came between 2 and here.
            victims = others_have_more(worker)
            words[worker.block + lay.B_PARKS] += 1
            slept = True
            if worker.bell.wait(min(safety, patience) if victims else safety):
                return True
            if victims:
                # 4. Nobody answered for `patience` seconds: ask the helpers of those who have more.
                for victim in others_have_more(worker):
                    worker.helper_bells[victim].wake()
                patience = min(patience * 2, settings.park_first_s)
                continue
            if sources(worker):
                words[worker.block + lay.B_RESCUES] += 1
                return True
            safety = min(safety * 2, settings.park_most_s)
    finally:
        words[state] = lay.AWAKE
