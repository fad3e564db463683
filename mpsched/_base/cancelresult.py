"""What became of a request to cancel: one answer for tasks of a pool and of a scheduler."""

from __future__ import annotations

import enum
from typing import final


@final
class CancelResult(enum.Enum):
    """The answer to a cancel. Only `PREVENTED` is true.

    Attributes:
        PREVENTED: it has not started, and never will.
        REQUESTED: it runs (or is about to, and could not be held back): its signal is set, or its
            end ordered.
        TOO_LATE: it was over already.
        UNKNOWN: there is nothing of that name.
    """

    PREVENTED = "prevented"
    REQUESTED = "requested"
    TOO_LATE = "too late"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        return self is CancelResult.PREVENTED
