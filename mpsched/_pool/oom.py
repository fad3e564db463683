"""Whether the kernel killed somebody for memory since the pool was made."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final, final

from mpsched._base import cgroups

_VMSTAT: Final = Path("/proc/vmstat")


def _counted(path: Path) -> int:
    try:
        for line in path.read_text("ascii").splitlines():
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
        self._paths = [_VMSTAT, *(folder / "memory.events" for folder in groups)]
        self._seen = self._total()

    def _total(self) -> int:
        return max(_counted(path) for path in self._paths)

    def suspect(self, status: int | None) -> str | None:
        """Return "memory" if a process that ended with `status` may have been killed for memory."""
        if status != -signal.SIGKILL:
            return None
        now = self._total()
        grown, self._seen = now > self._seen, now
        return "memory" if grown else None
