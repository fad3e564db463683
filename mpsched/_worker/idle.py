"""Parking: how a worker sleeps without missing work, and whom it asks first.

See README.md, "Parking". Announce, look at every source once more under its lock, then sleep on the
own bell with a safety timeout.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from mpsched._shm import layout as lay
from mpsched._shm.words import fence
from mpsched._worker import early, outcome, signals, stolen

if TYPE_CHECKING:
    from mpsched._worker.worker import Worker


_HURRY_NS: Final = 100_000
"""So long home is given to answer by itself; then its helper is asked, if children are coarse."""

_SOON_NS: Final = 5_000_000
"""For longer nobody stays awake for what is expected, whatever the word says."""


def is_expected(worker: Worker) -> bool:
    """Whether the parent expects to have a root in a moment (`Dispatcher.expect`)."""
    return bool(worker.words[lay.H_SOON] > time.monotonic_ns())


def sources(worker: Worker) -> bool:
    """Whether any source of work holds something: the one list of all sources.

    Takes each lock once; a ring whose lock is busy counts as work. Spares that were never started have
    none (SPARE-1).
    """
    if worker.stopping():
        return True
    for inbox in worker.inboxes[: worker.words[lay.H_LIVE]]:
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
                # One that is there before its time is its owner's, until that has come.
                if worker.words[inbox.early] and (own or early.is_due(worker.words, inbox)):
                    return True
            finally:
                worker.locks.release(inbox.worker)
    return _children(worker)


def _children(worker: Worker) -> bool:
    """Whether a ring of children holds something; as `sources`."""
    words, layout = worker.words, worker.config.layout
    for deque in worker.deques[: words[lay.H_LIVE]]:
        if deque is worker.deque or not words[layout.block(deque.worker) + lay.B_FORKS]:
            continue
        with worker.ring(deque, wait=False) as ours:
            if len(deque):
                return True
            if not ours:
                continue  # whoever has it looks at STATE after this, and rings
    return False


def ask(worker: Worker) -> bool:
    """Tell those who fork that this worker wants work of any of them; False if none forks.

    WAITS first; pairs with "WANT = 0, fence, read WAITS" in publish.py.
    """
    words, layout = worker.words, worker.config.layout
    words[worker.block + lay.B_WAITS] = lay.WAITS_ANY
    fence()
    somebody = False
    for other in range(words[lay.H_LIVE]):
        at = layout.block(other)
        if other != worker.index and words[at + lay.B_FORKS]:
            words[at + lay.B_WANT] = 1
            somebody = True
    return somebody


def others_have_more(worker: Worker) -> list[int]:
    """Return the workers that hold more than they run: claimed roots, items, perhaps children."""
    words, layout = worker.words, worker.config.layout
    found = []
    for other in range(words[lay.H_LIVE]):
        if other == worker.index:
            continue
        block = layout.block(other)
        if words[block + lay.B_CLAIMED] or words[block + lay.B_LEFT] or words[block + lay.B_FORKS]:
            found.append(other)
    return found


def ask_helpers(worker: Worker) -> None:
    """Ring the helpers of those who have more than they run."""
    for victim in others_have_more(worker):
        worker.helper_bells[victim].wake()


def linger(worker: Worker) -> int:
    """Look at the own inbox, and at rings of children, for some microseconds before parking.

    Where tasks take no longer than a wake-up, who submits one and waits for it submits the next at
    once: to be awake then saves both sides a system call and the scheduler's delay. Gives way to
    whoever else wants this core. A child that comes is run at once: who has asked for it is waited for.

    Returns:
        CAME if there is something to look for, RAN if a child was run, else 0.
    """
    forks = ask(worker)
    clock = time.monotonic_ns
    word = worker.words[lay.H_SOON]
    soon = min(word, clock() + _SOON_NS)
    short = 0 < worker.recent_ns < worker.settings.linger_s * 1e9
    if not forks and not short and soon <= clock():
        worker.words[worker.block + lay.B_WAITS] = 0
        return 0
    words, state = worker.words, worker.block + lay.B_STATE
    settings = worker.settings
    until = clock() + int((settings.fork_linger_s if forks else settings.linger_s) * 1e9)
    until = max(until, soon)
    # Before there is something to run in a hurry.
    held = forks and signals.hold()
    try:
        try:
            # Read by the dispatcher, which comes here first. Nobody is woken by it: whatever is missed
            # here is found by `park`.
            words[state] = lay.LINGERING
            victim = _look(worker, forks, until, word)
        finally:
            # Pairs with the look at STATE in Dispatcher.hand_early: that one is taken, before anything else.
            words[state] = lay.AWAKE
            fence()
        if words[worker.inbox.early]:
            return CAME
        if victim < 0:
            return 0 if victim == _NOBODY else CAME
        entry = stolen.take(worker, victim)
        if entry is None:
            return CAME
        stolen.run_held(worker, entry)
        return RAN
    finally:
        if held:
            signals.release()


CAME: Final = 1
RAN: Final = 2
_NOBODY: Final = -1
_PARENT: Final = -2


def _look(worker: Worker, forks: bool, until: int, word: int) -> int:
    """Return whose ring of children has something at last, or _PARENT, or _NOBODY when time is over.

    `word` is what H_SOON was when `until` was set.
    """
    words, inbox, clock = worker.words, worker.inbox, time.monotonic_ns
    early_one = inbox.early
    rings = worker.deques[: words[lay.H_LIVE]] if forks else []
    ends = [(*ring.ends, ring.worker) for ring in rings if ring is not worker.deque]
    # Of children that take so long home has perhaps begun the next one, and reads WANT no more.
    coarse = worker.child_ns > worker.settings.patience_s * 1e9
    hurry = clock() + _HURRY_NS if forks and coarse else until
    while True:
        if words[early_one] or len(inbox):
            return _PARENT
        for head, tail, victim in ends:
            if words[head] != words[tail]:
                return victim
        now = clock()
        if now >= until:
            # The parent may expect something else by now.
            word, seen = words[lay.H_SOON], word
            until = min(word, now + _SOON_NS)
            if word == seen or until <= now:
                return _NOBODY
        if now >= hurry:
            hurry = max(until, now + _SOON_NS)
            ask_helpers(worker)
        os.sched_yield()


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
        words[worker.block + lay.B_WAITS] = lay.WAITS_ANY
        words[state] = lay.PARKED
        fence()
        # crash-point: park.announced
        ask(worker)
        while True:
            outcome.let_go(worker)
            # 2. Look at every source once more.
            if sources(worker):
                return slept
            # 3. Sleep; the bell remembers a ring that came between 2 and here.
            victims = others_have_more(worker)
            if worker.keeps_blocks and (not victims or patience > settings.patience_s):
                outcome.let_go_of_blocks(worker)
            words[worker.block + lay.B_PARKS] += 1
            slept = True
            # crash-point: park.looked
            if worker.bell.wait(min(safety, patience) if victims else safety):
                return True
            if victims:
                # 4. Nobody answered for `patience` seconds: ask the helpers of those who have more.
                ask_helpers(worker)
                patience = min(patience * 2, settings.park_first_s)
                continue
            if sources(worker):
                # 5. Who has brought it may be about to ring, this worker or another one that then
                #    takes it. A lost wake-up is what still lies there when nobody has.
                if not worker.bell.wait(settings.park_first_s) and sources(worker):
                    words[worker.block + lay.B_RESCUES] += 1
                return True
            safety = min(safety * 2, settings.park_most_s)
    finally:
        # crash-point: park.woken
        # WAITS goes on saying ANY until something is taken: who is on its way still has to be counted.
        words[state] = lay.AWAKE
        fence()  # pairs with the look at STATE in Dispatcher.hand_early, as in linger
