"""One worker index and the process that has it."""

from __future__ import annotations

from typing import final


@final
class Slot:
    """What the supervisor knows of one worker index.

    Attributes:
        incarnation: number of its process, -1 before the first.
        pid: its process, 0 while there is none; last_pid: still there when the process is not.
        alive: it was started, and its end has not been seen.
        ready: it has said that it runs.
        done: what its index had finished when its process was started.
        failures: starts in a row that failed; reason: why the last one did.
        start_at: `time.monotonic()` of its next start, or None.
        wanted: it is started again when it ends; False for a spare that is not needed.
        pinned: it was told of that it keeps children that cannot be pickled.
        why: why the pool itself ends its process, or has it make room; None if it does not.
    """

    __slots__ = (
        "alive",
        "done",
        "failures",
        "incarnation",
        "last_pid",
        "pid",
        "pinned",
        "ready",
        "reason",
        "start_at",
        "wanted",
        "why",
    )

    def __init__(self, *, spare: bool = False) -> None:
        self.incarnation = -1
        self.pid = 0
        self.last_pid = 0
        self.alive = False
        self.ready = False
        self.done = 0
        self.failures = 0
        self.reason: str | None = None
        self.start_at: float | None = None if spare else 0.0
        self.wanted = not spare
        self.pinned = False
        self.why: str | None = None
