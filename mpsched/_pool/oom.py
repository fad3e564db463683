"""Whether the kernel killed somebody for memory since the pool was made."""

from __future__ import annotations

import os
import signal
import time
from typing import Final, final

from mpsched._base import cgroups

_VMSTAT: Final = "/proc/vmstat"
_TOGETHER_S: Final = 1.0
"""Seconds within which deaths belong to the kills that were counted."""


def _counted(path: str) -> int:
    try:
        for line in cgroups.read(path).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        return 0  # not told on this system: then nothing is suspected
    return 0


@final
class OomWatch:
    """Compares the kernel's counters of memory kills: the machine's and each control group's."""

    def __init__(self) -> None:
        groups = cgroups.folders("memory", cgroups.PROC_SELF)
        self._paths = [_VMSTAT, *(os.path.join(folder, "memory.events") for folder in groups)]
        self._seen = self._total()
        self._unclaimed = 0  # kills that no death of ours has been put down to
        self._at = 0.0

    def _total(self) -> int:
        return max(_counted(path) for path in self._paths)

    def suspect(self, status: int | None) -> str | None:
        """Return "memory" if a process that ended with `status` may have been killed for memory.

        Called once for each death: several may come from several kills.
        """
        if status != -signal.SIGKILL:
            return None
        total, now = self._total(), time.monotonic()
        if now - self._at > _TOGETHER_S:
            self._unclaimed = 0  # they were others, not ours
        if total > self._seen:
            self._unclaimed += total - self._seen
            self._seen, self._at = total, now
        if not self._unclaimed:
            return None
        self._unclaimed -= 1
        return "memory"
