"""What `close` did."""

from __future__ import annotations

from typing import NamedTuple


class CloseReport(NamedTuple):
    """The end of a pool, in numbers of tasks.

    Attributes:
        finished: tasks that finished between the call and the end.
        cancelled: tasks that never ran.
        killed: descriptions of tasks whose workers were ended.
        running: descriptions of tasks that still run (with `kill_after=None`).
        seconds: how long it took.
    """

    finished: int
    cancelled: int
    killed: tuple[str, ...]
    running: tuple[str, ...]
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether everything that was accepted has finished."""
        return not (self.cancelled or self.killed or self.running)
