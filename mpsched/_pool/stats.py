"""What a pool has done, as one frozen picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mpsched._shm import layout as lay

if TYPE_CHECKING:
    from collections.abc import Sequence


class WorkerStats(NamedTuple):
    """One worker's counters; they go on in the process that replaces it.

    Attributes:
        pid: process id; of the last one while there is none, 0 before the first, and for a spare that
            is not needed and has left.
        index: 0 to n-1.
        incarnation: how many processes had this index before.
        executed: roots finished (a piece of a map is one root).
        items: map items finished.
        busy_seconds: seconds in user code.
        steals, steal_attempts: successful visits to other inboxes, and all; stolen: roots so taken.
        returned: roots given back from behind a long one; splits: pieces of maps split for others.
        parks: times it went to sleep; rescues: of these, woken by the safety timeout with work there.
        locks, contended: ring locks taken; of these, not free at once.
        spawned: children, as far as they are counted: the first of each root, those with keywords or
            without arguments, and all where spawns are slow anyway (MPSCHED_DEBUG, `options(rng=...)`, a
            task with threads). Not the others, because counting each would cost a tenth of a spawn.
        published: children put where others may take them; pinned: that cannot be pickled.
        taken_back: published children that the worker took back for itself.
        child_steals: children taken from other workers, one at a time; child_empties: looks for one
            that found none; children_run: of those taken, finished.
        changed: stolen children that changed an argument, which the spawner does not see.
        lock_seconds: seconds spent waiting for ring locks and holding them, for children.
        deepest: most children of other workers that were nested on its stack at once, one joining
            another one's kin; not those that it had itself (in the totals: the most of all workers).
        uncompensated: times that a task blocked and no spare worker was left to stand in.
    """

    pid: int
    index: int  # type: ignore[assignment]  # not the method of a tuple
    incarnation: int
    executed: int
    items: int
    busy_seconds: float
    steals: int
    steal_attempts: int
    stolen: int
    returned: int
    splits: int
    parks: int
    rescues: int
    locks: int
    contended: int
    spawned: int = 0
    published: int = 0
    pinned: int = 0
    taken_back: int = 0
    child_steals: int = 0
    child_empties: int = 0
    children_run: int = 0
    changed: int = 0
    uncompensated: int = 0
    deepest: int = 0
    lock_seconds: float = 0.0


class PoolStats(NamedTuple):
    """A pool's counters: the workers' and their totals by the same names.

    Attributes:
        workers: one entry per worker, and per spare that has ever stood in for a blocked one.
        ready: tasks and maps that wait in the parent.
        inflight: roots that are dispatched and not final.
        deaths: worker processes that died (not those that were replaced on purpose).
        refill_delay_seconds: how long results have lately waited for the parent (a high percentile).
        window: roots that each worker is given ahead at present.
    """

    workers: tuple[WorkerStats, ...]
    ready: int
    inflight: int
    deaths: int
    refill_delay_seconds: float
    window: int
    executed: int
    items: int
    busy_seconds: float
    steals: int
    steal_attempts: int
    stolen: int
    returned: int
    splits: int
    parks: int
    rescues: int
    locks: int
    contended: int
    spawned: int = 0
    published: int = 0
    pinned: int = 0
    taken_back: int = 0
    child_steals: int = 0
    child_empties: int = 0
    children_run: int = 0
    changed: int = 0
    uncompensated: int = 0
    deepest: int = 0
    lock_seconds: float = 0.0


_COUNTERS: Final = {
    "executed": lay.B_EXECUTED,
    "items": lay.B_ITEMS,
    "steals": lay.B_STEALS,
    "steal_attempts": lay.B_STEAL_ATTEMPTS,
    "stolen": lay.B_STOLEN,
    "returned": lay.B_RETURNED,
    "splits": lay.B_SPLITS,
    "parks": lay.B_PARKS,
    "rescues": lay.B_RESCUES,
    "locks": lay.B_LOCKS,
    "contended": lay.B_CONTENDED,
    "spawned": lay.B_SPAWNED,
    "published": lay.B_PUBLISHED,
    "pinned": lay.B_PINNED,
    "taken_back": lay.B_TAKEN_BACK,
    "child_steals": lay.B_CHILD_STEALS,
    "child_empties": lay.B_CHILD_EMPTIES,
    "children_run": lay.B_CHILDREN_RUN,
    "changed": lay.B_CHANGED,
    "uncompensated": lay.B_UNCOMPENSATED,
}


def take(
    words: memoryview,
    layout: lay.Layout,
    pids: Sequence[int],
    *,
    ready: int,
    inflight: int,
    deaths: int,
    refill_delay_s: float,
    window: int,
) -> PoolStats:
    """Read the counters; each is right by itself, together they are of about the same moment."""
    workers = []
    for index in range(len(pids)):
        block = layout.block(index)
        counts = {name: int(words[block + at]) for name, at in _COUNTERS.items()}
        workers.append(
            WorkerStats(
                pid=pids[index],
                index=index,
                incarnation=int(words[block + lay.B_INCARNATION]),
                busy_seconds=words[block + lay.B_BUSY_NS] / 1e9,
                lock_seconds=words[block + lay.B_LOCK_NS] / 1e9,
                deepest=int(words[block + lay.B_DEEPEST]),
                **counts,
            )
        )
    totals = {name: sum(getattr(worker, name) for worker in workers) for name in _COUNTERS}
    return PoolStats(
        workers=tuple(workers),
        ready=ready,
        inflight=inflight,
        deaths=deaths,
        refill_delay_seconds=refill_delay_s,
        window=window,
        busy_seconds=sum(worker.busy_seconds for worker in workers),
        lock_seconds=sum(worker.lock_seconds for worker in workers),
        deepest=max(worker.deepest for worker in workers),
        **totals,
    )
