"""How many workers a pool has when nobody says: the CPUs this process may really use.

See README.md, "CPUs". `os.cpu_count()` counts the machine, which in a container is far more than
the container gets; then every worker is throttled by the kernel for most of each period.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from mpsched._base import cgroups

if TYPE_CHECKING:
    from mpsched._base.cgroups import StrPath


def default_workers() -> int:
    """Return how many workers use this process's share of the machine, at least 1.

    It is the smaller of the CPUs in the affinity mask and the cgroup quota, rounded up: with a
    quota of 1.5 CPUs, one worker would leave a third of it unused.

    Context:
        Any thread of the parent. Reads a few small files, so call it once per pool.
    """
    allowed = affinity_count()
    quota = cgroup_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def affinity_count() -> int:
    """Return how many CPUs this process may be scheduled on, at least 1.

    Falls back to the CPUs of the machine where the system has no affinity masks (macOS).
    """
    if hasattr(os, "process_cpu_count"):  # 3.13; honours PYTHON_CPU_COUNT as well
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def cgroup_quota(proc_self: StrPath = cgroups.PROC_SELF) -> float | None:
    """Return the CPU time per time that cgroups grant this process, in CPUs; None if unlimited.

    The tightest quota of this process's group and of all groups around it counts, in cgroup v2 and
    in the `cpu` controller of v1; a machine may have both mounted.

    Args:
        proc_self: Folder with this process's `cgroup` and `mountinfo`. Where there is none (not
            Linux, or `/proc` is not mounted), nothing limits.
    """
    folders = cgroups.folders("cpu", proc_self)
    quotas = [quota for folder in folders if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _quota_of(folder: str) -> float | None:
    """Return the quota that one group's folder states, in CPUs; None if it states no limit.

    v2: `cpu.max` has `max 100000` or `150000 100000`, quota and period in microseconds.
    v1: `cpu.cfs_quota_us` has -1 or the quota, `cpu.cfs_period_us` the period.
    The root group has no such file. A file that is empty or not understood limits nothing: a
    default must not fail.
    """
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = [word for name in names for word in _words(folder, name)]
            quota, period = (int(word) for word in words)
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None


def _words(folder: str, name: str) -> list[str]:
    return cgroups.read(os.path.join(folder, name)).split()
