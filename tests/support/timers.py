"""Short ways to look into a heap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpsched import Due, VersionedTimerHeap

if TYPE_CHECKING:
    from collections.abc import Hashable


def function() -> None:
    """What a test schedules when it does not matter what."""


def take(heap: VersionedTimerHeap, now: float) -> Due:
    """Take what is due; there must be something."""
    due = heap.next(now)
    assert isinstance(due, Due), due
    heap.check_invariants()
    return due


def drain(heap: VersionedTimerHeap, now: float) -> list[Hashable]:
    """Run all that is due; return the ids in order."""
    ids: list[Hashable] = []
    while isinstance(due := heap.next(now), Due):
        ids.append(due.task_id)
        assert heap.finish(due, "completed")
    heap.check_invariants()
    return ids


def state(heap: VersionedTimerHeap, task_id: Hashable) -> str | None:
    """Return the state of an id's newest version."""
    status = heap.status(task_id)
    return None if status is None else status.state


class Drops(list[tuple[Any, str]]):
    """An `on_drop` that keeps (id, version, why)."""

    def __call__(self, due: Due, why: str) -> None:
        self.append(((due.task_id, due.version), why))
