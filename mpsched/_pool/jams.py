"""Inboxes that a stopped process keeps closed. See README.md, "Audit". Supervisor only."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, final

from mpsched._pool import limits
from mpsched._shm import layout as lay
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._pool.core import Pool

_LOOKS: Final = 3


@final
class Jams:
    """Counts for each inbox the looks in a row at which roots lay in it, and its lock could not be had."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shut: dict[int, int] = {}

    def opened(self, inbox: int) -> None:
        """The lock of this inbox could be had."""
        self._shut.pop(inbox, None)

    def shut(self, inbox: int) -> None:
        """The lock of this inbox, in which roots lie, could not be had; from the third time on, act."""
        self._shut[inbox] = self._shut.get(inbox, 0) + 1
        if self._shut[inbox] >= _LOOKS:
            self._free(inbox)

    def _free(self, inbox: int) -> None:
        """End whoever has the lock, if it is stopped and runs nothing: then it costs nobody anything."""
        pool = self._pool
        pid = pool.dispatcher.locks.holder(inbox)
        for worker in range(pool.layout.workers):
            if (
                pid
                and pool.supervisor.pid_of(worker) == pid
                and limits.stopped(pid)
                and not self._runs(worker)
            ):
                why = f"it was stopped while it had the inbox of worker {inbox}"
                pool.supervisor.kill(worker, signal.SIGKILL, why)

    def _runs(self, worker: int) -> bool:
        """Whether a worker, which is stopped, runs a root, or another one's child."""
        pool = self._pool
        if pool.segment.words[pool.layout.block(worker) + lay.B_RUN]:
            return True
        running, state = st.word(st.RUNNING, worker), pool.table.state
        return any(
            state[task.handle] == running
            for task in list(pool.dispatcher.inflight.values())
            if task.handle >= 0 and not pool.supervisor.burial.trees.holds(task)
        )
