"""What `close` did."""

from __future__ import annotations

from typing import NamedTuple


class CloseReport(NamedTuple):
    """The end of a pool: what became of each task that was open at the call. A map counts as one.

    Tasks are named as in errors: "task 17 'name'".

    Attributes:
        finished: number of tasks that came to their end, by themselves or when they were asked to.
        cancelled: number of tasks that never started; a map of which a part did not.
        killed: tasks whose workers were ended.
        running: tasks that still run (with `kill_after=None`).
        seconds: how long it took.
        finished_tasks, cancelled_tasks: which ones.
    """

    finished: int
    cancelled: int
    killed: tuple[str, ...]
    running: tuple[str, ...]
    seconds: float
    finished_tasks: tuple[str, ...] = ()
    cancelled_tasks: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything that was accepted has finished."""
        return not (self.cancelled or self.killed or self.running)


NOTHING = CloseReport(0, 0, (), (), 0.0)
"""The report of a pool that had no open task."""
