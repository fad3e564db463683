"""A control group with little memory, made by a test that may make one."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from mpsched._base import cgroups
from tests.support.pools import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMITS = {
    # Of the first version of control groups, then of the second: memory, and swap with or without it.
    "memory.limit_in_bytes": "memory.memsw.limit_in_bytes",
    "memory.max": "memory.swap.max",
}


def kills_in(folder: Path) -> int | None:
    """How many processes of a group the kernel has ended for memory; None where it does not count."""
    for name in ("memory.events", "memory.oom_control"):
        if (folder / name).exists():
            counters = dict(map(str.split, (folder / name).read_text().splitlines()))
            if "oom_kill" in counters:
                return int(counters["oom_kill"])
    return None


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group below this process's own; who writes its pid into `cgroup.procs` there is in it.

    Skips the test where none can be made.
    """
    around = cgroups.folders("memory")
    if not around:
        pytest.skip("there are no control groups of memory")
    folder = Path(around[0], f"mpsched-test-{secrets.token_hex(4)}")
    try:
        folder.mkdir()
    except OSError as refused:
        pytest.skip(f"no control group can be made: {refused}")
    try:
        _restrict(folder, limit)
        yield folder
    finally:
        wait_until(lambda: _removed(folder), f"the end of what is in {folder}")


def _restrict(folder: Path, limit: int) -> None:
    for memory, swap in _LIMITS.items():
        if not (folder / memory).exists():
            continue
        try:
            (folder / memory).write_text(str(limit))
            if (folder / swap).exists():
                (folder / swap).write_text(str(0 if swap == "memory.swap.max" else limit))
            elif psutil.swap_memory().total:
                pytest.skip("what is too much would go to the swap here")
        except OSError as refused:
            pytest.skip(f"no limit of memory can be set: {refused}")
        return
    pytest.skip("control groups do not limit memory here")


def _removed(folder: Path) -> bool:
    try:
        os.rmdir(folder)
    except OSError:  # a process in it has not been reaped
        return False
    return True
