"""The three systems, each running the same two maps at the same width with its defaults."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mpsched

from .analysis import FileRow, Timed, file_task, function_task, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Functions of fewer lines are left out of the second map: they resemble each other by chance.
LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker did: items run, CPU seconds in them, work taken from others."""

    items: int
    busy: float
    steals: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one system gave, and the seconds it took, the start of its pool included."""

    system: str
    files: list[FileRow]
    shapes: list[str]
    file_seconds: float
    function_seconds: float
    shares: list[Share]


def threads(width: int) -> Executor:
    """Threads of this process; where there is a GIL they take turns."""
    return ThreadPoolExecutor(width, initializer=prepare)


def processes(width: int) -> Executor:
    """The standard library's process pool, with its platform's start method."""
    return ProcessPoolExecutor(width, initializer=prepare)


def stealing(width: int) -> Executor:
    """The pool of this project."""
    return mpsched.WorkStealingExecutor(width, initializer=prepare)


# In this order: ProcessPoolExecutor may fork, which is safe only while no thread runs, and the
# threads of a closed ThreadPoolExecutor are gone.
SYSTEMS: dict[str, Callable[[int], Executor]] = {
    "threads": threads,
    "ProcessPoolExecutor": processes,
    "mpsched": stealing,
}


def run(system: str, width: int, paths: list[str]) -> Outcome:
    """Map the files, then the functions found in them.

    Args:
        system: A key of `SYSTEMS`.
        width: How many workers.
        paths: The files.
    """
    begun = time.perf_counter()
    with SYSTEMS[system](width) as executor:
        files = list(executor.map(file_task, paths))
        file_seconds = time.perf_counter() - begun
        sources = [text for row in files for text in functions_of(row.value)]
        begun = time.perf_counter()
        shapes = list(executor.map(function_task, sources))
        function_seconds = time.perf_counter() - begun
        steals = steals_by_pid(executor)
    return Outcome(
        system=system,
        files=[timed.value for timed in files],
        shapes=[timed.value for timed in shapes],
        file_seconds=file_seconds,
        function_seconds=function_seconds,
        shares=shares([*files, *shapes], steals),
    )


def functions_of(row: FileRow) -> list[str]:
    """The source text of each function to look at, in the order of `row.functions`."""
    lines = Path(row.path).read_bytes().decode("utf-8", "replace").splitlines(keepends=True)
    found = [f for f in row.functions if f.lines >= LOOKED_AT]
    return ["".join(lines[f.line - 1 : f.line - 1 + f.lines]) for f in found]


def steals_by_pid(executor: Executor) -> dict[int, int] | None:
    """Steals of each worker process, for the system that counts them."""
    if isinstance(executor, mpsched.WorkStealingExecutor):
        return {worker.pid: worker.steals for worker in executor.stats().workers}
    return None


def shares(
    results: Sequence[Timed[FileRow] | Timed[str]], steals: dict[int, int] | None
) -> list[Share]:
    """Count what each worker did from the names on the results, the busiest first."""
    items: Counter[tuple[int, int]] = Counter()
    busy: dict[tuple[int, int], float] = {}
    for timed in results:
        items[timed.worker] += 1
        busy[timed.worker] = busy.get(timed.worker, 0.0) + timed.seconds
    return [
        Share(items[worker], busy[worker], None if steals is None else steals.get(worker[0], 0))
        for worker in sorted(busy, key=busy.__getitem__, reverse=True)
    ]
