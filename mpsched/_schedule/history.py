"""What has become of attempts: one record for each, the last so many. See README.md, "History"."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class Run(NamedTuple):
    """One attempt of a version, or a version that never started.

    Times are seconds on the scheduler's monotonic clock (`s.now()`).

    Attributes:
        task_id: the id it was scheduled under.
        version: which version of that id.
        attempt: 1, and one more for each retry.
        due: when it was to start.
        started: when its function's process began with it; None if it never did, or if nobody can tell.
        finished: when it ended; of one whose worker died, when that was noticed.
        worker: index of the worker that ran it; None if none did, or a thread.
        outcome: "completed", "failed", "timed_out", "cancelled", "missed", "superseded" (a newer version
            has replaced it before it started) or "kept" (not run, and listed by `close`).
        why: more about the outcome, "" if there is nothing to say.
    """

    task_id: Hashable
    version: int
    attempt: int
    due: float
    started: float | None
    finished: float
    worker: int | None
    outcome: str
    why: str = ""

    @property
    def lateness(self) -> float | None:
        """Seconds from when it was due to its start; None if it never started."""
        return None if self.started is None else self.started - self.due

    @property
    def occurrence(self) -> tuple[Hashable, int, float]:
        """What names this planned run, in all its attempts: (task_id, version, due of the first)."""
        return self.task_id, self.version, self.due


@final
class History:
    """The last `most` records, and counts of all. The desk's lock is held, but for `runs`."""

    def __init__(self, most: int) -> None:
        # Plain tuples: a record is made for every attempt, and read by few.
        self._runs: deque[tuple[object, ...]] = deque(maxlen=most)
        self.outcomes: dict[str, int] = {}
        self.lateness = [0] * len(BOUNDS_S) + [0]

    def add(
        self,
        task_id: Hashable,
        version: int,
        attempt: int,
        due: float,
        started: float | None,
        finished: float,
        worker: int | None,
        outcome: str,
        why: str = "",
    ) -> None:
        """Keep a record."""
        self._runs.append((task_id, version, attempt, due, started, finished, worker, outcome, why))
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if started is not None:
            # Powers of two of microseconds: the bit length is the place.
            micros = int((started - due) * 1e6)
            self.lateness[min(micros.bit_length() if micros > 0 else 0, _LAST)] += 1

    def last(self) -> Run:
        """Return the record that was added last."""
        return Run(*self._runs[-1])  # type: ignore[arg-type]

    def runs(self, task_id: Hashable | None = None) -> list[Run]:
        """Return the records, or those of one id, oldest first."""
        records = list(self._runs)
        return [
            Run(*one)  # type: ignore[arg-type]
            for one in records
            if task_id is None or one[0] == task_id
        ]

    def recent(self, count: int) -> Iterable[Run]:
        """Yield the last `count` records."""
        start = max(0, len(self._runs) - count)
        return [Run(*one) for one in islice(list(self._runs), start, None)]  # type: ignore[arg-type]


BOUNDS_S = tuple(2.0**power / 1e6 for power in range(26))
"""Upper bounds of the classes of lateness: 1 us, 2 us, ... 34 s; the last class has none."""
_LAST = len(BOUNDS_S)


def peak(runs: Iterable[Run]) -> int:
    """Return how many of them ran at once, at most."""
    steps = []
    for run in runs:
        if run.started is not None and run.worker is not None:
            steps.append((run.started, 1))
            steps.append((max(run.finished, run.started), -1))
    steps.sort()  # ends before starts of the same instant
    most = active = 0
    for _when, step in steps:
        active += step
        most = max(most, active)
    return most
