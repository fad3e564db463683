"""Whether the kernel killed somebody for memory since the pool was made."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final, final

from mpsched._base import cgroups

if TYPE_CHECKING:
    from mpsched._base.cgroups import StrPath

_VMSTAT: Final = "/proc/vmstat"
_OF_GROUPS: Final = ("memory.events", "memory.oom_control")
"""Where a control group of the second, of the first version counts its kills."""
_TOGETHER_S: Final = 1.0
"""Seconds within which deaths belong to the kills that were counted."""


@final
class OomWatch:
    """Compares the kernel's count of memory kills: of this program's control group, else the machine's.

    Where a group counts, a kill in somebody else's container makes no death of ours look like one.

    Args:
        proc_self: Folder with this process's `cgroup` and `mountinfo`.
        vmstat: The machine's counters.
    """

    def __init__(self, proc_self: StrPath = cgroups.PROC_SELF, vmstat: StrPath = _VMSTAT) -> None:
        self._path = _counter(proc_self, vmstat)
        self._seen = _counted(self._path) or 0
        self._unclaimed = 0  # kills that no death of ours has been put down to
        self._at = 0.0

    def suspect(self, status: int | None) -> str | None:
        """Return "memory" if a process that ended with `status` may have been killed for memory.

        Called once for each death: several may come from several kills.
        """
        if status != -signal.SIGKILL:
            return None
        total, now = _counted(self._path) or 0, time.monotonic()
        if now - self._at > _TOGETHER_S:
            self._unclaimed = 0  # they were others, not ours
        if total > self._seen:
            self._unclaimed += total - self._seen
            self._seen, self._at = total, now
        if not self._unclaimed:
            return None
        self._unclaimed -= 1
        return "memory"


def _counter(proc_self: StrPath, vmstat: StrPath) -> StrPath:
    """Return the file that counts kills of the smallest group around this process that has one."""
    for folder in cgroups.folders("memory", proc_self):
        for name in _OF_GROUPS:
            path = os.path.join(folder, name)
            if _counted(path) is not None:
                return path
    return vmstat


def _counted(path: StrPath) -> int | None:
    """Return the number of kills that a file tells of; None: of none, and nothing is suspected."""
    try:
        for line in cgroups.read(path).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        return None
    return None
