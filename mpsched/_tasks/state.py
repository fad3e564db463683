"""The state of one dispatched root: a word in the task table, and who may write it next.

See README.md, "States". A state word is `state | worker << 8`; `worker` is the inbox that holds a
QUEUED root and the process that has a CLAIMED, RUNNING or REVOKED one.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class TaskState(enum.IntEnum):
    """Phase of an entry; the value is the low byte of its state word."""

    FREE = 0  # no task. Written by the parent, which allocates it.
    QUEUED = 1  # a handle lies in inbox `worker`. Written by whoever holds that inbox's lock.
    CLAIMED = 2  # out of every ring, in `worker`'s hands, not started. Written by `worker`.
    RUNNING = 3  # `worker` runs it. Written by `worker`; by the parent once `worker` is dead.
    REVOKED = 4  # taken back before its start at the parent's request. Written by the parent.


ALLOWED: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.FREE: frozenset({TaskState.QUEUED}),
    TaskState.QUEUED: frozenset({TaskState.CLAIMED, TaskState.FREE}),
    TaskState.CLAIMED: frozenset(
        {TaskState.RUNNING, TaskState.QUEUED, TaskState.REVOKED, TaskState.FREE}
    ),
    # The record in the result ring is the end of a run: the parent may free and reuse the entry as
    # soon as it is published, so the worker writes no state after it.
    TaskState.RUNNING: frozenset({TaskState.FREE}),
    # QUEUED: the answer came after the parent had given up waiting for it.
    TaskState.REVOKED: frozenset({TaskState.FREE, TaskState.QUEUED}),
}

# Plain integers for the worker's inner loop: an IntEnum member costs an attribute look-up each.
FREE: Final = 0
QUEUED: Final = 1
CLAIMED: Final = 2
RUNNING: Final = 3
REVOKED: Final = 4


def word(state: int, worker: int) -> int:
    """Return the state word of `state` at `worker`."""
    return state | worker << 8


def parts(value: int) -> tuple[TaskState, int]:
    """Split a state word into (state, worker)."""
    return TaskState(value & 255), value >> 8
