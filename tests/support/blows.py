"""Jobs that count how often they began, and what befalls them then."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Marks = np.ndarray[Any, Any]


def begin(marks: Marks, index: int) -> int:
    """Count that job `index` has begun. Return how often it has."""
    marks[index] += 1
    return int(marks[index])


def begin_and_die(marks: Marks, index: int) -> int:
    """Count that job `index` has begun; the first time, kill the process."""
    begun = begin(marks, index)
    if begun == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return begun
