"""The states of a version of a task, who moves it, and the moves there are.

See README.md, "States". The heap's operations write states as plain integers, in place; the model test
checks every move that they make against `ALLOWED`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(enum.IntEnum):
    """Where a version stands; the comment says who may move it on."""

    PENDING = 0  # waits for its time, or for being taken. The heap's caller, by any call.
    CLAIMED = 1  # dispatched, not started; pending to users. Who claimed it, and cancel or replace.
    RUNNING = 2  # its function was entered. Who runs it; others only ask it to stop.
    COMPLETED = 3  # the function returned. Final.
    FAILED = 4  # it raised, or never started: its deadline was missed, it could not be sent. Final.
    CANCELLED = 5  # it never started, or stopped when it was asked to. Final.

    @property
    def public(self) -> str:
        """The name that users see: what is claimed is still pending for them."""
        return "pending" if self is State.CLAIMED else self.name.lower()


ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.CLAIMED, State.FAILED, State.CANCELLED}),
    State.CLAIMED: frozenset({State.RUNNING, State.PENDING, State.FAILED, State.CANCELLED}),
    # PENDING: by retry, as another attempt of the same version.
    State.RUNNING: frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.PENDING}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}

# Plain integers for the heap's inner loop: an enum's member costs two look-ups each.
PENDING: Final = 0
CLAIMED: Final = 1
RUNNING: Final = 2
COMPLETED: Final = 3
FAILED: Final = 4
CANCELLED: Final = 5

# No state of a version: marks an item that was left in a heap when its version moved to another place.
MOVED: Final = 6
