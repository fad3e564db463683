"""Spare workers: who stands in for workers whose tasks block and say so.

See README.md, "Spares". Supervisor only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, final

from mpsched._shm import layout as lay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._pool.core import Pool
    from mpsched._pool.slot import Slot

_KEEP_S: Final = 1.0
"""Seconds for which a spare that is not needed stays, and after which one that failed is tried again."""


@final
class Spares:
    """Decides how many spares run; the supervisor starts and buries them like any worker.

    Spares have the worker indices from the pool's width on, and are started lowest first.
    """

    def __init__(self, pool: Pool, slots: Sequence[Slot]) -> None:
        self._pool = pool
        self._slots = slots
        self._first = pool.width
        self._surplus_since: float | None = None
        self._rest_until = 0.0
        self._warned = False

    def _wanted(self) -> list[int]:
        return [
            index for index in range(self._first, len(self._slots)) if self._slots[index].wanted
        ]

    def check(self) -> None:
        """Start or stop spares as workers block and go on."""
        blocked = self._blocked()
        wanted = self._wanted()
        if not blocked and not wanted:
            self._warned = False
            return
        now = time.monotonic()
        most = len(self._slots) - self._first
        if blocked > most and not self._warned:
            self._warned = True
            self._pool.events.note(
                "uncompensated",
                f"{blocked} tasks block at once, and the pool has {most} spare workers: the others' "
                "cores stay idle until one goes on",
            )
        need = min(blocked, most)
        if len(wanted) >= need:
            self._shrink(wanted, need, now)
            return
        self._surplus_since = None
        if now >= self._rest_until:
            for index in range(self._first, len(self._slots)):
                if len(wanted) < need and index not in wanted:
                    self._start(index)
                    wanted.append(index)

    def _blocked(self) -> int:
        words, layout = self._pool.segment.words, self._pool.layout
        return sum(
            words[layout.block(worker) + lay.B_BLOCKED] != 0 for worker in range(words[lay.H_LIVE])
        )

    def _start(self, index: int) -> None:
        words, block = self._pool.segment.words, self._pool.layout.block(index)
        slot = self._slots[index]
        words[block + lay.B_STOP] = 0
        words[block + lay.B_SPARE] = 1
        slot.wanted = True
        if index >= words[lay.H_LIVE]:
            self._pool.leader.read_from(index)
            # crash-point: spare.read
            words[lay.H_LIVE] = index + 1
        if (
            not slot.alive
        ):  # else it has not left yet, and need not, or is started again when it has
            slot.start_at = 0.0

    def _shrink(self, wanted: list[int], need: int, now: float) -> None:
        if len(wanted) == need:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since >= _KEEP_S:
            self._surplus_since = now
            index = wanted[-1]
            self._slots[index].wanted = False
            self._slots[index].start_at = None
            self._pool.segment.words[self._pool.layout.block(index) + lay.B_STOP] = 1
            self._pool.bells[index].wake()

    def has(self, slot: Slot) -> bool:
        """Whether a slot is a spare's."""
        return slot in self._slots[self._first :]

    def failed(self, slot: Slot) -> None:
        """A spare could not be started: no reason for the pool to fail. Tried again after a while."""
        slot.wanted = False
        slot.failures = 0
        self._rest_until = time.monotonic() + _KEEP_S

    def next(self) -> float | None:
        """Return the `time.monotonic()` of the next look; None: whoever begins to block rings."""
        return time.monotonic() + _KEEP_S / 2 if self._wanted() or self._blocked() else None
