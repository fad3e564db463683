"""Gates: tasks that run until the test says so, in whichever process they are.

A gate is a folder. A task that passes through it leaves a file there and waits for another; so a
test knows how many tasks have begun, and decides when they end. It is pickled by its path.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

DEADLINE_S = 60.0  # only a hang takes so long


def wait_until(
    condition: Callable[[], object], what: str = "the condition", timeout_s: float = DEADLINE_S
) -> None:
    """Wait until `condition()` is true.

    Raises:
        TimeoutError: It was not true within `timeout_s` seconds; `what` names it.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.002)


class Gate:
    """Holds tasks until `open()`; made by the test in an empty folder, passed to tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._open = folder / "open"

    def open(self) -> None:
        """Let all tasks go, now and later."""
        self._open.touch()

    @property
    def is_open(self) -> bool:
        """Whether tasks may go."""
        return self._open.exists()

    def arrivals(self) -> list[str]:
        """Return the names of the tasks that have come, in the order in which they came."""
        found = [name.rsplit("~", 2) for name in os.listdir(self.folder) if name.endswith(".here")]
        # Not by the file's time: it moves in steps in which many tasks may come.
        return [name for name, when, _pid in sorted(found, key=lambda parts: int(parts[1]))]

    def wait_for(self, count: int) -> list[str]:
        """Wait until `count` tasks have come; return their names in order."""
        wait_until(lambda: len(self.arrivals()) >= count, f"{count} tasks at the gate")
        return self.arrivals()

    def arrive(self, name: object = "task") -> None:
        """Note that a task has begun. In a worker."""
        (self.folder / f"{name}~{time.monotonic_ns()}~{os.getpid()}.here").touch()

    def hold(self, name: object = "task") -> object:
        """Note that a task has begun, wait for `open()`, return `name`. In a worker."""
        self.arrive(name)
        wait_until(lambda: self.is_open, "the opening of the gate")
        return name

    def hold_until_cancelled(self, name: object = "task") -> str:
        """Note that a task has begun; return "cancelled" once it was asked to stop. In a worker."""
        task = mpsched.current_task()
        assert task is not None
        self.arrive(name)
        wait_until(lambda: task.cancelled or self.is_open, "the cancellation")
        return "cancelled" if task.cancelled else "opened"

    def hold_until_raised(self, name: object = "task") -> None:
        """Note that a task has begun; raise TaskCancelled once it was asked to stop. In a worker."""
        task = mpsched.current_task()
        assert task is not None
        self.arrive(name)
        wait_until(lambda: task.cancelled or self.is_open, "the cancellation")
        task.raise_if_cancelled()

    def log(self, value: T) -> T:
        """Note that `value` was processed, and return it. In a worker."""
        self.arrive(value)
        return value


def yielding(gate: Gate, values: list[T]) -> Iterator[T]:
    """Give values to a map one by one; each is noted at the gate when it is asked for."""
    for value in values:
        gate.arrive(value)
        yield value
