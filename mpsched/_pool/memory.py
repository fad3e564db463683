"""How much memory each worker holds: who is to make room, and who is ended for it.

See README.md, "Memory". Supervisor only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._shm import layout as lay
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._pool.core import Pool
    from mpsched._pool.limits import Limits
    from mpsched._pool.slot import Slot
    from mpsched._pool.task import Task
    from mpsched._pool.trees import Trees

_EVERY_S: Final = 0.1
"""Seconds between looks while the pool has work; a look takes some 30 us for each worker."""


@final
class MemoryWatch:
    """Watches the workers of one pool that was made with `max_rss` or `max_rss_hard`."""

    def __init__(self, pool: Pool, slots: Sequence[Slot], limits: Limits, trees: Trees) -> None:
        self._pool = pool
        self._slots = slots
        self._limits = limits
        self._trees = trees
        self._soft = pool.options.max_rss
        self._hard = pool.options.max_rss_hard
        self.on = self._soft is not None or self._hard is not None
        self._at = 0.0
        self._idle = False  # and was at the last look: then nobody grows
        self._warned = False
        self._processes: dict[int, Any] = {}
        if self.on:
            # Between two tasks they look whether they are to make room (layout.py, B_SPARE).
            for worker in range(pool.width):
                pool.segment.words[pool.layout.block(worker) + lay.B_SPARE] = lay.WATCHED

    def next(self) -> float | None:
        """Return the `time.monotonic()` of the next look, or None."""
        if not self.on or (self._idle and self._pool.idle()):
            return None
        return self._at

    def check(self) -> None:
        """Take a look if one is due."""
        if not self.on:
            return
        now = time.monotonic()
        if now < self._at:
            return
        self._at = now + _EVERY_S
        self._idle = self._pool.idle()
        held = self._held()
        for worker, slot in enumerate(self._slots):
            rss = held.get(slot.pid, 0)
            if self._hard is not None and rss > self._hard and self._end(worker, rss):
                continue
            most = self._soft if self._soft is not None else self._hard
            if most is not None and rss > most:
                self._recycle(worker, slot, rss, most)

    def look_at_new(self) -> None:
        """Have a look taken soon: a worker is ready, and perhaps too large before it runs anything."""
        self._idle = False

    def done_by(self, worker: int) -> int:
        """Return how much a worker's index has ever finished."""
        words, block = self._pool.segment.words, self._pool.layout.block(worker)
        return int(words[block + lay.B_EXECUTED] + words[block + lay.B_CHILDREN_RUN])

    def _held(self) -> dict[int, int]:
        """Return the resident bytes of each process that runs."""
        import psutil

        known, held = self._processes, {}
        self._processes = {}
        for slot in self._slots:
            if not (slot.pid and slot.ready):
                continue
            try:
                process = known.get(slot.pid) or psutil.Process(slot.pid)
                held[slot.pid] = process.memory_info().rss
            except psutil.Error:
                continue  # it has just ended
            self._processes[slot.pid] = process
        return held

    def _recycle(self, worker: int, slot: Slot, rss: int, most: int) -> None:
        if slot.why is not None:
            return  # it was told already
        name = "max_rss" if self._soft is not None else "max_rss_hard"
        if self.done_by(worker) == slot.done:
            words = self._pool.segment.words
            idle = words[self._pool.layout.block(worker) + lay.B_STATE] in lay.IDLE
            if idle and not self._warned:
                self._warned = True
                self._pool.events.note(
                    "max_rss",
                    f"it holds {_mb(rss)} before it has run anything, more than {name}={_mb(most)}: "
                    "its replacement would too; raise the limit",
                    worker=worker,
                    pid=slot.pid,
                )
            return
        slot.why = f"it holds {_mb(rss)}, more than {name}={_mb(most)}"
        self._pool.segment.words[self._pool.layout.block(worker) + lay.B_STOP] = 1
        self._pool.bells[worker].wake()

    def _end(self, worker: int, rss: int) -> bool:
        """End a worker because of what it runs; False if it runs nothing."""
        assert self._hard is not None
        why = f"its worker held {_mb(rss)}, more than max_rss_hard={_mb(self._hard)}"
        task = self._root_of(worker)
        if task is not None:
            if task.killed is None:
                task.killed, task.why = "memory", why
                self._limits.kill_soon(task)
            return True
        # No root of its own: then it runs another one's child, if anything.
        run = self._pool.segment.words[self._pool.layout.block(worker) + lay.B_RUN]
        return bool(run) and self._trees.end_part(worker, run, why)

    def _root_of(self, worker: int) -> Task | None:
        running, state = st.word(st.RUNNING, worker), self._pool.table.state
        for task in list(self._pool.dispatcher.inflight.values()):
            if task.handle >= 0 and state[task.handle] == running and not self._trees.holds(task):
                return task
        return None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
