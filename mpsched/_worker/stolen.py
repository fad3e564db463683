"""Running another worker's child. See README.md, "Fork-join"; protocol *Steal* of `_deque`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mpsched._shm import layout as lay
from mpsched._shm.words import WEAK, fence
from mpsched._tasks import children as ch, failure, state as st
from mpsched._tasks.table import FUNCTION_SHIFT
from mpsched._worker import away, blocking, contract, hot, long, outcome, signals
from mpsched.errors import DecodeError, TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.worker import Worker


def steal(worker: Worker) -> bool:
    """Take one child of any worker that forks, and run it; False if there was none. Empty stack."""
    words, layout = worker.words, worker.config.layout
    count = words[lay.H_LIVE]
    first = worker.roll() % count
    for offset in range(count):
        victim = (first + offset) % count
        if victim == worker.index or not words[layout.block(victim) + lay.B_FORKS]:
            continue
        entry = take(worker, victim)
        if entry is not None:
            run(worker, entry)
            return True
    return False


def take(worker: Worker, victim: int, still: Callable[[], bool] | None = None) -> int | None:
    """Take the oldest child of `victim`; None if there is none, or somebody else is there.

    Args:
        worker: This worker.
        victim: Whose ring.
        still: Asked under the lock of that ring; False: take nothing. What is pushed after that is not taken.
    """
    deque = worker.deques[victim]
    if not len(deque):
        worker.words[worker.block + lay.B_CHILD_EMPTIES] += 1
        return None
    with worker.ring(deque, wait=False) as ours:
        if not ours:
            return None
        until = None
        if still is not None:
            # In this order: home may push meanwhile, what is below something else.
            until = deque.tail
            if WEAK:
                fence()
            if not still():
                return None
        handles = deque.take(1, worker.index, until)
    if not handles:
        return None
    # crash-point: steal.taken
    words, block = worker.words, worker.block
    words[block + lay.B_WAITS] = 0
    words[block + lay.B_CHILD_STEALS] += 1
    return handles[0]


def run(worker: Worker, entry: int) -> None:
    """Run a child that this worker has taken; signals wait but for the child's own code."""
    held = signals.hold()
    try:
        run_held(worker, entry)
    finally:
        if held:
            signals.release()


def run_held(worker: Worker, entry: int) -> None:
    """Run a child, from the announcement to the outcome; signals are held already."""
    table, words, block = worker.table, worker.words, worker.block
    home = worker.config.layout.home_of(entry)
    outermost = not worker.run
    before, handle = worker.current, table.place[entry]
    key = table.root[entry]
    worker.run = words[block + lay.B_RUN] = key
    worker.current = handle
    nested = worker.stolen
    nested.append(entry)
    words[block + lay.B_DEEPEST] = max(words[block + lay.B_DEEPEST], len(nested))
    # Pairs with the parent's "root's CANCEL, fence, look at RUN" (trees.py): it sees that this worker
    # has something of the root, or this worker sees that there is no root any more.
    fence()
    # crash-point: steal.announced
    begun = time.monotonic_ns()
    if table.cancel[handle] or table.cancel[entry]:
        # Cancelled, or its root is lost: nothing of it begins here any more. Home decides.
        # crash-point: steal.refused
        state, owner, took = st.RETURNED, home, 0
    else:
        record, note = _called(worker, entry, handle)
        took = time.monotonic_ns() - begun
        if worker.kept:
            # Before this outcome is stored: what is kept for it is not told from the old by the state yet.
            outcome.let_go(worker)
        state, owner = outcome.store(worker, entry, record, note), worker.index
        words[block + lay.B_CHILDREN_RUN] += 1
        del record
    # crash-point: steal.stored
    nested.pop()
    worker.current = before
    if WEAK:
        fence()  # the outcome before the state
    # From here on the entry is home's.
    table.state[entry] = state | owner << 8
    # crash-point: steal.done
    if outermost:
        # Both: what roots take on average is no business of this.
        worker.child_ns = took
        worker.busy_ns += took
        words[block + lay.B_BUSY_NS] += took
        if hot.forking:
            long.end()
        if blocking.entered:
            blocking.end_all(worker)
        end_run(worker, key)
    # crash-point: steal.ended
    # Pairs with the joiner's "STATE = JOINING, fence, look at the state word" (awaiting.py).
    fence()
    at = worker.config.layout.block(home)
    if words[at + lay.B_STATE] == lay.JOINING and words[at + lay.B_JOINING] == 1 + entry:
        worker.bells[home].wake()
        # crash-point: steal.rung


def _called(worker: Worker, entry: int, handle: int) -> tuple[away.Away, str]:
    """Return the record of the call, which has ended, and what its error is to be noted with."""
    table = worker.table
    record = away.Away(away.INLINE)
    plain = table.meta[entry] == ch.C_PLAIN
    # What this worker publishes from now on is below this child (CHILDREN-4).
    table.below[entry] = worker.children.mark()
    table.state[entry] = st.RUNNING | worker.index << 8
    # crash-point: steal.running
    try:
        fn, x, rest = record.fn, record.x, record.rest = outcome.call(worker, entry)
    except (DecodeError, OSError) as problem:
        record.fail(problem)
        return record, ""
    if table.cancel[entry]:
        # Once more: an import in the arguments may have taken long. (Its scope does not want it.)
        record.fail(TaskCancelled("the child was cancelled before it started"))
        return record, ""
    fn, args, kwargs = (fn, (x, *rest), {}) if plain else long.call_of(fn, x, rest)
    # A plain function and plain arguments: there is nothing that it could change.
    before = () if plain and contract.is_bare(fn) else contract.prints(fn, args, kwargs)
    begun = time.monotonic_ns()
    try:
        record.run()
    except RecursionError as problem:  # there was not even room to note it
        record.fail(problem)
    # crash-point: steal.called
    # What it was worth to its home.
    table.started[entry] = time.monotonic_ns() - begun
    number = contract.changed(before, fn, args, kwargs) if before else None
    if number is not None:
        words, counter = worker.words, worker.block + lay.B_CHANGED
        words[counter] += 1
        table.meta[entry] = ch.C_CHANGED | number << FUNCTION_SHIFT
    else:
        table.meta[entry] = 0
    if record.error is None:
        return record, ""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return (
        record,
        f"child of task {worker.name_of(handle)}: {failure.short_call(name, args, kwargs)}",
    )


def end_run(worker: Worker, key: int) -> None:
    """Say that nothing of a root is here any more; start nothing while the parent kills for it."""
    words, block = worker.words, worker.block
    worker.run = words[block + lay.B_RUN] = 0
    # The parent stores KILL and then looks at RUN: one of the two sees the other (LIMITS-1).
    fence()
    while words[block + lay.B_KILL] == key:
        time.sleep(0.001)
