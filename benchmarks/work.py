"""The functions that are measured. Workers import them by name, so they live in a module."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def noop(value: int) -> int:
    """Return the argument: what is left is the cost of the call."""
    return value


def pid(_: int) -> int:
    """Return the process that runs this."""
    return os.getpid()


def spin(microseconds: float) -> float:
    """Keep a core busy by the clock; returns the seconds it really took.

    By the clock, not by counting: so an item is as long on a slow machine. It means that threads
    that wait for the GIL spin too, and that threads cannot be measured with it.
    """
    begun = now = time.perf_counter()
    end = begun + microseconds / 1e6
    while now < end:
        now = time.perf_counter()
    return now - begun


def nap_and_say(path: str) -> None:
    """Make a file, by which others see that this runs, and sleep for a minute."""
    with open(path, "x"):
        pass
    time.sleep(60.0)


def nap(seconds: float) -> float:
    """Occupy a worker without using a core."""
    time.sleep(seconds)
    return seconds


def sum_pages(array: NDArray[np.float64]) -> float:
    """Read one number of each page of an array."""
    return float(array[::512].sum())


def own_bytes_after_reading(array: NDArray[np.float64]) -> int:
    """Read a whole array; returns this worker's anonymous memory while it holds the array.

    Anonymous memory is the heap and pages that were copied when they were written. Files and
    shared memory, which several workers may map, are not in it.
    """
    float(array.sum())
    return anonymous_bytes()


def anonymous_bytes() -> int:
    """Anonymous memory of this process in bytes.

    Raises:
        OSError: The system has no `/proc/self/smaps_rollup` (it is Linux's).
    """
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no line 'Anonymous:'")


def stamp(_: object = None) -> float:
    """Return when this line was reached, on the clock that all processes of a machine share."""
    return time.monotonic()


def stamped_spin(microseconds: float) -> tuple[float, float]:
    """Keep a core busy; return when it began and when it ended."""
    begun = time.monotonic()
    spin(microseconds)
    return begun, time.monotonic()


def spawn_for(seconds: float) -> int:
    """Spawn children without end, a hundred at a time, each of a tenth of a millisecond."""
    import mpsched

    end = time.monotonic() + seconds
    spawned = 0
    while time.monotonic() < end:
        with mpsched.scope() as scope:
            for _ in range(100):
                scope.spawn(spin, 100.0)
        spawned += 100
    return spawned
