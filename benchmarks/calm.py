"""Whether the machine was there: what a hypervisor kept of its CPUs' time, and who tries again then.

On a shared host a virtual CPU that wants to run may have to wait for others; Linux counts that as
"steal" (`man 5 proc`, `/proc/stat`). It delays everybody and says nothing about a pool, so a sample
during which much was taken is taken again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

STAT = Path("/proc/stat")
_STEAL = 8  # its column in the first line, counted from the word "cpu"


class Sample(NamedTuple):
    """One value, and which share of the CPUs' time the hypervisor kept meanwhile (0 to 1)."""

    value: float
    stolen: float


class Meter:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._ticks = stolen_ticks()

    def stolen(self) -> float:
        """The share of all CPUs' time that was kept so far; 0 where the system does not tell."""
        ticks = stolen_ticks() - self._ticks
        if ticks <= 0:
            return 0.0
        whole = (time.monotonic() - self._begun) * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
        return min(1.0, ticks / whole)


def stolen_ticks() -> int:
    """What the hypervisor kept since the machine was started, of all CPUs; 0 where nobody tells."""
    try:
        first = STAT.read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return 0
    return int(first[_STEAL]) if len(first) > _STEAL else 0


def calmest(
    take: Callable[[], Sample], *, limit: float, tries: int, seconds: float = 60.0
) -> Sample:
    """Take a sample again while too much was stolen; return the one from which least was.

    Which one counts depends on what was stolen alone, never on the value.

    Args:
        take: Takes one.
        limit: The share that is no reason to try again.
        tries: How many are taken at most.
        seconds: After which no other one is begun.
    """
    end = time.monotonic() + seconds
    best = take()
    for _ in range(tries - 1):
        if best.stolen <= limit or time.monotonic() >= end:
            break
        best = min(best, take(), key=lambda sample: sample.stolen)
    return best
