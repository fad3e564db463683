"""Tasks for faults that users of other pools have met."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import mpsched

ENDINGS = {
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "base": BaseException,
    "generator": GeneratorExit,
    "stop": StopIteration,
    "cancelled": asyncio.CancelledError,
}


def identity(value: Any) -> Any:
    return value


def nothing() -> None:
    """Do nothing."""


def end_by(name: str) -> NoReturn:
    """Raise one of `ENDINGS`."""
    raise ENDINGS[name]("wanted")


def fib(ex: mpsched.WorkStealingExecutor, n: int) -> int:
    """Recursion by submit and result."""
    if n < 2:
        return n
    left = ex.submit(fib, ex, n - 1)
    return fib(ex, n - 2) + left.result()


def chain(ex: mpsched.WorkStealingExecutor, n: int) -> int:
    """Each call waits for one more task."""
    return 0 if n == 0 else 1 + ex.submit(chain, ex, n - 1).result()


def even(ex: mpsched.WorkStealingExecutor, n: int) -> bool:
    """Two functions that wait for each other."""
    return n == 0 or ex.submit(odd, ex, n - 1).result()


def odd(ex: mpsched.WorkStealingExecutor, n: int) -> bool:
    return n != 0 and ex.submit(even, ex, n - 1).result()


def private_kb() -> int:
    """Return what this process has of its own, not shared with others, in KB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Private_Clean"] + sizes["Private_Dirty"]


def sum_and_growth(array: Any) -> tuple[float, int]:
    """Read a whole array; return its sum and by how many KB this process has grown meanwhile."""
    before = private_kb()
    total = float(array.sum())
    return total, private_kb() - before
