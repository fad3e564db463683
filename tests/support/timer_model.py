"""What a timer heap does, said with one plain list and no haste."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpsched._timers.states import ALLOWED, State

LIVE = (State.PENDING, State.CLAIMED, State.RUNNING)


@dataclass(eq=False)
class Version:
    """One version of an id."""

    task_id: Any
    version: int
    run_at: float
    priority: int
    deadline: float | None
    group: str | None
    at: float | None
    state: State = State.PENDING
    attempt: int = 1
    paused: bool = False
    requested: bool = False
    missed: bool = False
    reported: bool = False
    since: float | None = None

    def move(self, to: State) -> None:
        """Change the state; only along the table."""
        assert to in ALLOWED[self.state], (self, to)
        self.state = to


class Model:
    """All versions there ever were, oldest first."""

    def __init__(self, order: str, aging: float, groups: dict[str, float] | None) -> None:
        self.order, self.aging, self.groups = order, aging, groups
        self.versions: list[Version] = []
        self.drops: list[tuple[Any, int, str]] = []
        self.seen = float("-inf")

    def newest(self, task_id: Any) -> Version | None:
        """Return the last version of an id."""
        return next((one for one in reversed(self.versions) if one.task_id == task_id), None)

    def pending(self) -> list[Version]:
        return [one for one in self.versions if one.state is State.PENDING]

    def drop(self, one: Version, to: State, why: str) -> None:
        one.move(to)
        self.drops.append((one.task_id, one.version, why))

    def add(self, new: Version) -> None:
        old = self.newest(new.task_id)
        if old is not None and old.state in (State.PENDING, State.CLAIMED):
            self.drop(old, State.CANCELLED, "superseded")
        self.versions.append(new)

    def cancel(self, task_id: Any, version: int | None) -> str:
        """Return the name of the result."""
        mine = [one for one in self.versions if one.task_id == task_id]
        if not mine or (version is not None and version > mine[-1].version):
            return "UNKNOWN"
        if mine[-1].state in LIVE and version in {None, mine[-1].version}:
            asked = mine[-1:]
        else:
            asked = [
                one
                for one in mine[:-1]
                if one.state is State.RUNNING and version in {None, one.version}
            ]
        if not asked:
            return "TOO_LATE"
        if asked[0].state is not State.RUNNING:
            self.drop(asked[0], State.CANCELLED, "cancelled")
            return "PREVENTED"
        for one in asked:
            one.requested = True
        return "REQUESTED"

    def miss(self, now: float) -> None:
        """End what is pending past its deadline."""
        late = [one for one in self.pending() if one.deadline is not None and one.deadline < now]
        for one in sorted(late, key=lambda one: (one.deadline, one.version)):
            one.missed = True
            self.drop(one, State.FAILED, "missed")

    def look(self, now: float) -> None:
        """Note since when things are due."""
        for one in self.pending():
            if not one.paused and one.run_at <= now and one.since is None:
                one.since = max(one.run_at, self.seen)
        self.seen = max(self.seen, now)

    def key(self, one: Version) -> tuple[float, float, int]:
        if self.order == "run_at":
            return one.run_at, -one.priority, one.version
        assert one.since is not None
        return -one.priority + self.aging * one.since, one.run_at, one.version

    def first(self, now: float) -> list[Version]:
        """Return what may be next: one version, or one for each group."""
        self.miss(now)
        self.look(now)
        due = [one for one in self.pending() if one.run_at <= now and not one.paused]
        if self.groups is None:
            return sorted(due, key=self.key)[:1]
        groups = {one.group for one in due}
        return [min((one for one in due if one.group == name), key=self.key) for name in groups]

    def wait(self, now: float) -> float | None:
        """Return how long until something is due or missed."""
        times = [one.run_at for one in self.pending() if not one.paused]
        times += [
            one.deadline
            for one in self.versions
            if one.state in (State.PENDING, State.CLAIMED)
            and one.deadline is not None
            and not (one.state is State.CLAIMED and one.deadline < now)
        ]
        return max(0.0, min(times) - now) if times else None
