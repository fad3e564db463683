"""How much memory this process may still take before the kernel starts to kill.

See README.md, "Memory". A memory file has no limit of its own, so the kernel never refuses one that
is too large: it hands out pages until nothing is left and then kills a process, ours or another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mpsched._base import cgroups

if TYPE_CHECKING:
    from mpsched._base.cgroups import StrPath

_MEMINFO: Final = "/proc/meminfo"

# v2 (limit, used) and v1; v1 states "no limit" as a number near 2**63.
_LIMIT_FILES: Final = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_bytes(
    proc_self: StrPath = cgroups.PROC_SELF, meminfo: StrPath = _MEMINFO
) -> int | None:
    """Return the bytes that can still be taken; None where the system does not say.

    The least of what the machine has left and what each control group around this process still
    grants. What can be written to swap or dropped from the file cache counts as available.

    Context:
        Any process, any thread. Reads some ten small files: about 100 us.
    """
    machine = _table(meminfo, scale=1024)  # in "kB"
    if "MemAvailable" not in machine:
        return None
    swap = machine.get("SwapFree", 0)
    left = [machine["MemAvailable"] + swap]
    for folder in cgroups.folders("memory", proc_self):
        for limit_name, used_name in _LIMIT_FILES:
            limit, used = (_number(os.path.join(folder, name)) for name in (limit_name, used_name))
            if limit is not None and used is not None:
                stat = _table(os.path.join(folder, "memory.stat"))
                cache = stat.get("inactive_file", 0) + stat.get("active_file", 0)
                left.append(max(0, limit - used + cache + swap))
    return min(left)


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is no file or no number (`max`)."""
    try:
        return int(cgroups.read(path))
    except (OSError, ValueError):
        return None


def _table(path: StrPath, scale: int = 1) -> dict[str, int]:
    """Return the `name number` lines of a file, numbers times `scale`; {} if there is none."""
    try:
        lines = cgroups.read(os.fspath(path)).splitlines()
    except (OSError, ValueError):
        return {}
    found = {}
    for line in lines:
        name, *numbers = line.replace(":", " ").split()
        if numbers and numbers[0].isdigit():
            found[name] = int(numbers[0]) * scale
    return found
