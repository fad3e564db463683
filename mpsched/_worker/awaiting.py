"""Waiting for a child that is published. See README.md, "Fork-join"; protocol *Join* of `_deque`.

Meanwhile this worker runs the child itself, others of the same task, or descendants of the child; nothing
else (S2).
"""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged, fence
from mpsched._tasks import state as st
from mpsched._worker import away, contract, heldring, hot, long, outcome, publish, signals, stolen
from mpsched._worker.away import DONE, FAILED, FETCHED, INLINE, PINNED, PUBLISHED, PUBLISHING, Away
from mpsched._worker.hot import Floor, _done, pop, push
from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    from mpsched._worker.hot import Handle
    from mpsched._worker.worker import Worker

_PATIENT_S: Final = 0.05
"""Seconds that a child may wait for another worker in the debug mode `steal`."""

_ENDED: Final = frozenset({st.DONE, st.FAILED})
_WITH_OTHERS: Final = frozenset({st.CLAIMED, st.RUNNING, st.DYING})

_worker: Worker | None = None


def enter(worker: Worker) -> None:
    """Let joins of `worker` wait for others. Once, in its main thread."""
    global _worker
    _worker = worker
    away.wait = wait
    away.take_plain = take_plain
    away.published_is_done = is_done
    away.cancel_published = cancel
    away.is_cancelled = worker.is_cancelled
    away.advance = lambda record: _advance(worker, record)


def leave() -> None:
    """Wait for nobody any more; in a process that was forked off a worker."""
    global _worker
    _worker = None


def is_done(record: Away) -> bool:
    """Whether a PUBLISHED child has ended."""
    worker, entry = _worker, record.entry
    return worker is not None and entry >= 0 and worker.table.state[entry] & 255 in _ENDED


def cancel(record: Away, why: BaseException) -> bool:
    """Prevent the start of a PUBLISHED child, or ask it to stop; False if it has ended."""
    worker = _worker
    assert worker is not None
    with away.fork_lock:
        kind = _advance(worker, record) if record.kind == PUBLISHED else record.kind
        if kind == PUBLISHED:
            # CLAIMED or RUNNING: its thief looks before it starts, and its task whenever it asks.
            worker.table.cancel[record.entry] = 1
            return True
        if kind == PINNED:
            record.fail(why)
            record.told = True
    if kind == PINNED:
        record.close()
    return kind == PINNED


def wait(record: Away) -> None:
    """Wait until `record` is DONE or FAILED. Main thread; any thread once it is FETCHED."""
    worker = _worker
    assert worker is not None
    if record.kind == FETCHED:
        _step(worker, record)
        return
    # What failed here while this waits, and has to be found at its own join or at its task's end.
    aside: list[Handle[Any]] = []
    held = signals.hold()
    lingered = False
    fruitless = 0
    if long.stealing and long.width() > 1:
        _let_others(worker, record)
    try:
        while not _step(worker, record):
            if _run_own(worker, record, aside) or _leap(worker, record):
                fruitless = 0
                lingered = False  # who has just given something may give more at once
                continue
            if not lingered:
                lingered = True
                if _linger(worker, record):
                    continue
            if _sleep(worker, record):
                fruitless = 0
                continue
            fruitless += 1
            if fruitless > 4:
                # Something is there that nobody gives us (a stopped process holds its lock).
                time.sleep(min(0.001, 0.00001 * 2 ** min(fruitless, 10)))
    finally:
        for handle in reversed(aside):
            push(handle)
        if held:
            signals.release()


def take_plain(record: Away) -> bool:
    """End a PUBLISHED child that is DONE with a value of a plain type; False if there is more to it. Main thread.

    What `_step` and `tell` do, in one go, since nothing of the user's runs.
    """
    worker, entry = _worker, record.entry
    if worker is None or entry < 0 or worker.table.state[entry] & 255 != st.DONE:
        return False
    held = signals.hold()
    try:
        with away.fork_lock:
            if record.kind != PUBLISHED:
                return False  # the helper has fetched it meanwhile
            value = outcome.plain_value(worker, entry)
            if value is outcome.ODD:
                return False
            away.opened.remove(record)
            publish.taken(worker, record)
            record.told = True
            record.succeed(value)
    finally:
        if held:
            signals.release()
    return True


def _let_others(worker: Worker, record: Away) -> None:
    """Give another worker time to take the child (`MPSCHED_DEBUG=steal`); all may be busy, though."""
    words, layout = worker.words, worker.config.layout
    others = [layout.block(w) + lay.B_RUN for w in range(words[lay.H_LIVE]) if w != worker.index]
    until = time.monotonic() + _PATIENT_S
    while record.kind == PUBLISHED and time.monotonic() < until:
        entry = record.entry
        if entry < 0 or worker.table.state[entry] & 255 != st.QUEUED:
            return
        if all(words[run] for run in others):
            return  # nobody is free to take it
        time.sleep(0.000_05)


def _step(worker: Worker, record: Away) -> bool:
    """Do what the state of the awaited child allows; True if it has ended."""
    raw = None
    with away.fork_lock:
        kind = record.kind
        if kind == PUBLISHED:
            kind = _advance(worker, record)
        if kind == PINNED:
            record.kind = INLINE
        elif kind == FETCHED:
            # Two threads may come here.
            raw, record.value, record.kind = record.value, None, away.THREADED
    if kind == PINNED:
        record.run()
    elif raw is not None:
        value, problem = outcome.unpickle(raw)
        if record.entry >= 0:
            with away.fork_lock:
                publish.free(worker, record)
        fn, x, rest = record.fn, record.x, record.rest
        if problem is None:
            record.succeed(value)
        else:
            record.fail(problem)
        if raw.changed is not None:
            # Last: with a filter that makes errors of warnings, the join raises it.
            contract.warn(fn, x, rest, raw.changed)
    elif kind == away.THREADED:
        time.sleep(0.000_5)
    return record.kind in {DONE, FAILED}


def _advance(worker: Worker, record: Away) -> int:
    """Follow the state word of a PUBLISHED child, `fork_lock` held; return the record's kind.

    PINNED: it is out of the ring and has no entry any more; whoever wants it runs it here.
    """
    table, entry = worker.table, record.entry
    word = table.state[entry]
    phase = word & 255
    if phase == st.QUEUED:
        with worker.ring(worker.deque):
            ours = worker.deque.take_back(entry)
            if not ours and table.state[entry] == word:
                raise _lost(worker, record, word)
        if ours:
            # crash-point: join.taken-back
            worker.words[worker.block + lay.B_TAKEN_BACK] += 1
            publish.free(worker, record)
            record.kind = PINNED
    elif phase == st.RETURNED:
        # crash-point: join.returned
        cancelled = table.cancel[entry]
        publish.free(worker, record)
        record.kind = PINNED
        if cancelled:
            record.fail(TaskCancelled("the child was cancelled before it started"))
    elif phase in _ENDED:
        publish.take_outcome(worker, record)
    elif phase == st.LOST:
        status = table.length[entry] & 0xFFFFFFFF
        status = status - (1 << 32) if status >> 31 else status
        publish.lose(worker, record, word >> 8, table.started[entry], status)
    elif phase not in _WITH_OTHERS:
        heldring.end_damaged(_lost(worker, record, word))
    return record.kind


def _lost(worker: Worker, record: Away, word: int) -> Damaged:
    """Return the error that says that nobody has a published child."""
    return Damaged(
        f"child {record.ident:#x} of worker {worker.index} has the state word {word:#x}, and is in nobody's "
        "hands; something has written into the shared memory of this pool"
    )


def _run_own(worker: Worker, record: Away, aside: list[Handle[Any]]) -> bool:
    """Run one unstarted child of the joining task; False if there is none.

    All on the stack is the task's own: the awaited child has left on the left, so what is left is
    younger, and only the joining task has spawned since.
    """
    if hot.want[0]:
        hot.answer()
    chosen, handle = _newest_private(aside), None
    if chosen is not None:
        record_here, handle = chosen
    else:
        found = _youngest_away(worker, record)
        if found is None:
            return False
        record_here = found
    record_here.run()
    if handle is not None and record_here.kind == FAILED:
        aside.append(handle)
    return True


def _newest_private(aside: list[Handle[Any]]) -> tuple[Away, Handle[Any]] | None:
    with away.fork_lock:
        while True:
            top = away.top()
            if type(top) is Floor:
                return None
            pop()
            fn = top._fn
            if fn is _done:
                continue
            if type(fn) is Away:
                if fn.kind == FAILED and not fn.told:
                    aside.append(top)
                continue
            record = top._fn = Away(INLINE, fn, top._x, top._rest)
            top._x, top._rest = hot.NOTHING, ()
            return record, top


def _youngest_away(worker: Worker, awaited: Away) -> Away | None:
    wanted = {st.RETURNED} if long.stealing else {st.QUEUED, st.RETURNED}
    with away.fork_lock:
        for record in reversed(away.opened):
            if record.serial <= awaited.serial:
                return None
            if record.kind == PUBLISHED and worker.table.state[record.entry] & 255 in wanted:
                _advance(worker, record)
            if record.kind in {PUBLISHING, PINNED}:
                record.kind = INLINE
                return record
    return None


def _runners(worker: Worker, record: Away) -> list[tuple[int, int, int, int]]:
    """Return who may have descendants of a child: (worker, entry, its state word, its ident) of each.

    First the one that runs it, then the one that this one waits for, and so on.
    """
    table, words, layout = worker.table, worker.words, worker.config.layout
    found: list[tuple[int, int, int, int]] = []
    entry = record.entry
    if entry < 0:
        return []
    while len(found) < layout.workers:
        word, ident = table.state[entry], table.ident[entry]
        if word & 255 != st.RUNNING:
            break
        if not found and ident != record.ident:
            break  # the helper has fetched the outcome, and used the entry again
        if found:
            # The one before still runs what it ran when it said for what it waits: so that was a
            # descendant too.
            _, before, its_word, its_ident = found[-1]
            if table.state[before] != its_word or table.ident[before] != its_ident:
                break
        runner = word >> 8
        if runner == worker.index:
            break
        found.append((runner, entry, word, ident))
        joining = words[layout.block(runner) + lay.B_JOINING]
        if not joining:
            break
        entry = joining - 1
    return found


def _leap(worker: Worker, record: Away) -> bool:
    """Take a descendant of the awaited child and run it; False if none could be had."""
    table = worker.table
    for runner, entry, word, ident in _runners(worker, record):

        def still(entry: int = entry, word: int = word, ident: int = ident) -> bool:
            # Under the lock of the ring: then what is in it is below this child (Theorem 2).
            return table.state[entry] == word and table.ident[entry] == ident

        taken = stolen.take(worker, runner, still)
        if taken is not None:
            # crash-point: join.leapt
            stolen.run(worker, taken)
            return True
    return False


def _changed(worker: Worker, record: Away, word: int) -> bool:
    """Whether there may be something to do for who waits."""
    if record.kind != PUBLISHED or worker.table.state[record.entry] != word:
        return True
    return any(len(worker.deques[runner]) for runner, *_ in _runners(worker, record))


def _ask(worker: Worker, word: int) -> None:
    """Ask the worker that runs the awaited child for what is below it; pairs with publish.answer."""
    if word & 255 == st.RUNNING:
        words, layout, runner = worker.words, worker.config.layout, word >> 8
        words[worker.block + lay.B_WAITS] = 1 + runner
        words[layout.block(runner) + lay.B_WANT] = 1


def _linger(worker: Worker, record: Away) -> bool:
    """Ask, and look for some microseconds before sleeping; True if something came.

    To be woken takes longer than many children do.
    """
    entry = record.entry
    if record.kind != PUBLISHED:
        return True
    words, waits = worker.words, worker.block + lay.B_WAITS
    word = worker.table.state[entry]
    until = time.monotonic_ns() + int(worker.settings.fork_linger_s * 1e9)
    try:
        _ask(worker, word)
        while time.monotonic_ns() < until:
            if _changed(worker, record, word):
                return True
            os.sched_yield()
    finally:
        words[waits] = 0
    return False


def _rung(worker: Worker, patience: float) -> bool:
    """Sleep on the bell; a handler of the task may end the wait here."""
    held = signals.held()
    if not held:
        return worker.bell.wait(patience)
    signals.release()
    try:
        return worker.bell.wait(patience)
    finally:
        signals.hold()


def _sleep(worker: Worker, record: Away) -> bool:
    """Sleep until the child has ended or something below it can be had; False if it did not sleep."""
    settings, words = worker.settings, worker.words
    block, entry = worker.block, record.entry
    word = worker.table.state[entry]
    if record.kind != PUBLISHED or word & 255 not in {st.CLAIMED, st.RUNNING, st.DYING}:
        return False
    slept = False
    patience = settings.patience_s
    worker.flush_stdio()
    try:
        _ask(worker, word)
        words[block + lay.B_JOINING] = 1 + entry
        words[block + lay.B_STATE] = lay.JOINING
        # Pairs with the thief's "DONE, fence, read STATE" (stolen.run), and with the parent's (trees.py).
        fence()
        # crash-point: join.announced
        while not _changed(worker, record, word):
            words[block + lay.B_PARKS] += 1
            slept = True
            # crash-point: join.looked
            if _rung(worker, patience):
                break
            # Nobody answered: ask the helper, which can while that worker's main thread computes.
            for other, *_ in _runners(worker, record):
                worker.helper_bells[other].wake()
            patience = min(patience * 2, settings.park_first_s)
    finally:
        # crash-point: join.woken
        words[block + lay.B_STATE] = lay.AWAKE
        words[block + lay.B_WAITS] = 0
        words[block + lay.B_JOINING] = 0
    return slept
