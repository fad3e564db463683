"""The state of a root or a published child: a word in the task table, and who may write it next.

See README.md, "States". A state word is `state | worker << 8`; `worker` is the inbox or ring that holds
a QUEUED one, home of a RETURNED one, and else the process that has it or had it last.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class TaskState(enum.IntEnum):
    """Phase of an entry; the value is the low byte of its state word."""

    FREE = 0  # no task. Written by the parent, a child's by home, who allocates it.
    QUEUED = 1  # a handle lies in inbox or ring `worker`. Written by whoever holds its lock.
    CLAIMED = 2  # out of every ring, in `worker`'s hands, not started. Written by `worker`.
    RUNNING = 3  # `worker` runs it. Written by `worker`; by the parent once `worker` is dead.
    REVOKED = 4  # taken back before its start at the parent's request. Written by the parent.
    # Of children only; written by home, by the parent once home is dead.
    DONE = 5  # `worker` has run it; its value lies in the entry.
    FAILED = 6  # `worker` has run it; its error lies in the entry.
    RETURNED = 7  # its thief died before it started it, or does not start it; `worker` is home.
    LOST = 8  # `worker` died while it ran it; nothing of it runs any more.
    DYING = 9  # `worker` died while it ran it; children of it still run. Written by the parent.


ALLOWED: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.FREE: frozenset({TaskState.QUEUED}),
    TaskState.QUEUED: frozenset({TaskState.CLAIMED, TaskState.FREE}),
    TaskState.CLAIMED: frozenset(
        {
            TaskState.RUNNING,
            TaskState.QUEUED,
            TaskState.REVOKED,
            TaskState.FREE,
            TaskState.RETURNED,
        }
    ),
    # FREE, a root: the record in the result ring is the end of a run; the parent may free and reuse
    # the entry as soon as it is published, so the worker writes no state after it.
    TaskState.RUNNING: frozenset(
        {TaskState.FREE, TaskState.DONE, TaskState.FAILED, TaskState.DYING, TaskState.LOST}
    ),
    # QUEUED: the answer came after the parent had given up waiting for it.
    TaskState.REVOKED: frozenset({TaskState.FREE, TaskState.QUEUED}),
    TaskState.DONE: frozenset({TaskState.FREE}),
    TaskState.FAILED: frozenset({TaskState.FREE}),
    TaskState.RETURNED: frozenset({TaskState.FREE}),
    TaskState.LOST: frozenset({TaskState.FREE}),
    TaskState.DYING: frozenset({TaskState.LOST}),
}

# Plain integers for the worker's inner loop: an IntEnum member costs an attribute look-up each.
FREE: Final = 0
QUEUED: Final = 1
CLAIMED: Final = 2
RUNNING: Final = 3
REVOKED: Final = 4
DONE: Final = 5
FAILED: Final = 6
RETURNED: Final = 7
LOST: Final = 8
DYING: Final = 9


def word(state: int, worker: int) -> int:
    """Return the state word of `state` at `worker`."""
    return state | worker << 8


def parts(value: int) -> tuple[TaskState, int]:
    """Split a state word into (state, worker)."""
    return TaskState(value & 255), value >> 8
