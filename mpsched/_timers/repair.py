"""Putting the registers in order after an operation was cut short. See README.md, "Repair"."""

# ruff: noqa: SLF001 - a step of the book itself, in a file of its own
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mpsched._timers.entry import Entry, drop, due_of
from mpsched._timers.lazyqueue import SMALL
from mpsched._timers.states import CANCELLED, CLAIMED, MOVED, PENDING, RUNNING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mpsched._timers.book import TimerBook


def repair(book: TimerBook) -> None:
    """Make every register anew from the entries; may be cut short itself, and begun again."""
    queue = book._queue
    ready = queue.ready
    in_ready = [] if ready is None else ready.entries()
    replaced = [entry for ones in book._replaced.values() for entry in ones]
    # `_current` first: of a version that was being moved, its entry is the valid one.
    found: dict[int, Entry] = {}
    for entry in (
        *book._current.values(),
        *replaced,
        *queue.heap,
        *(item[3] for item in queue.front),
        *queue.run,
        *queue.later,
        *in_ready,
    ):
        if not hasattr(entry, "extra"):
            continue  # its making was cut short; `extra` comes last
        known = found.setdefault(entry.version, entry)
        if known is not entry and entry.state == PENDING:
            entry.state = MOVED

    newest, older = _sorted_out(book, found, replaced)
    book._replaced = older  # before `_current` loses what is in here
    _forget_the_rest(book, found, newest, in_ready)
    alive = [*newest.values(), *(entry for ones in older.values() for entry in ones)]
    waits = [entry for entry in alive if entry.state == PENDING]
    book._claims = sum(one.state == CLAIMED for one in alive)
    book._overdue = {}  # told once more: their deadlines are added again
    book._walls = {
        one.version: one.task_id for one in waits if one.extra and one.extra.at is not None
    }
    book._paused = sum(one.extra is not None and one.extra.paused for one in waits)
    book._deadlines.renew()
    for entry in newest.values():
        if entry.extra is not None and entry.extra.deadline is not None:
            entry.extra.watched = False
            if entry.state <= CLAIMED:
                book._enlist(entry, entry.extra)
    if ready is not None:
        ready.purge()
    there = {id(entry) for entry in in_ready}
    live = [one for one in waits if id(one) not in there and not (one.extra and one.extra.paused)]
    queue.edge = -math.inf
    queue.full = SMALL
    queue.front[:] = []
    queue.run[:] = []
    queue.heap[:] = []
    queue.later[:] = live
    queue.stale = queue.margin = 0


def _sorted_out(
    book: TimerBook, found: dict[int, Entry], replaced: list[Entry]
) -> tuple[dict[Hashable, Entry], dict[Hashable, list[Entry]]]:
    """Return the newest version of each id, and the older ones that run."""
    newest: dict[Hashable, Entry] = {}
    older: dict[Hashable, list[Entry]] = {}
    # One that is in both registers was about to be replaced.
    was_replaced = {
        entry.version for entry in replaced if book._current.get(entry.task_id) is not entry
    }
    for _version, entry in sorted(found.items()):
        if entry.state not in {PENDING, CLAIMED, RUNNING}:
            continue
        before = newest.pop(entry.task_id, None)
        if before is not None:
            if before.state == RUNNING:
                older.setdefault(entry.task_id, []).append(before)
            else:
                before.state = CANCELLED
                if book._on_drop is not None:
                    book._on_drop(due_of(before), "superseded")
        newest[entry.task_id] = entry
    for task_id, entry in list(newest.items()):
        if entry.version in was_replaced:  # by one that is over
            older.setdefault(task_id, []).append(newest.pop(task_id))
    return newest, older


def _forget_the_rest(
    book: TimerBook,
    found: dict[int, Entry],
    newest: dict[Hashable, Entry],
    in_ready: list[Entry],
) -> None:
    """Keep of what is over its end only, and in `_current` what is the newest."""
    over = [entry for entry in found.values() if entry.state > RUNNING]
    for task_id, entry in list(book._current.items()):
        if newest.get(task_id) is not entry:
            del book._current[task_id]
            if hasattr(entry, "extra") and entry.state > RUNNING:
                book._ends.put(task_id, entry)
    book._current.update(newest)
    queue = book._queue
    for entry in (*over, *queue.heap, *queue.later, *in_ready, *book._ends.all()):
        if entry.state > RUNNING and hasattr(entry, "fn"):
            drop(entry)
