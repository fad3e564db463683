"""Jobs that tests of schedulers send to workers, and what they ask."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import mpsched
from tests.support.gates import wait_until
from tests.support.tasks import cpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from tests.support.gates import Gate

    Array = np.ndarray[Any, Any]


def version_and_attempt() -> tuple[int, int]:
    """Return what the running task is told about itself."""
    task = mpsched.current_task()
    assert task is not None
    return task.version, task.attempt


def own_id() -> Any:
    """Return the id that the running task is told."""
    task = mpsched.current_task()
    assert task is not None
    return task.task_id


def is_own_id(task_id: object) -> bool:
    """Whether the running task is told this very object."""
    return own_id() is task_id


def elsewhere(gate: Gate, fn: Callable[[Gate], Any]) -> Any:
    """Have a child run on another worker: joined only once it has come to the gate there."""
    child = mpsched.spawn(fn, gate)
    gate.wait_for(1)
    return child.join()


def id_and_version(gate: Gate) -> tuple[Any, int]:
    """Arrive; return what the running task is told about itself."""
    gate.arrive()
    task = mpsched.current_task()
    assert task is not None
    return task.task_id, task.version


def fail_there(gate: Gate) -> None:
    """Arrive and raise."""
    gate.arrive()
    raise OSError("there")


def fail_before(attempt: int, error: type[BaseException]) -> int:
    """Raise in every attempt before `attempt`; then return its number."""
    task = mpsched.current_task()
    assert task is not None
    if task.attempt < attempt:
        raise error(f"attempt {task.attempt}")
    return task.attempt


def mark(folder: Path, name: object) -> object:
    """Leave a file, so that others see that this ran. Return `name`."""
    (folder / f"{name}~{time.monotonic_ns()}.ran").touch()
    return name


def mark_until_asked(folder: Path, name: object) -> str:
    """Leave a file, then wait for the signal for a long time; say whether it came."""
    mark(folder, name)
    task = mpsched.current_task()
    assert task is not None
    return "asked" if task.wait_cancelled(60) else "not asked"


def marked(folder: Path) -> list[str]:
    """Return the names of what ran, in order."""
    found = [path.name[: -len(".ran")].rsplit("~", 1) for path in folder.glob("*.ran")]
    return [name for name, when in sorted(found, key=lambda parts: int(parts[1]))]


def ask_for_itself(gate: Gate) -> bool:
    """Arrive; wait for the signal of the running task."""
    gate.arrive()
    task = mpsched.current_task()
    assert task is not None
    return task.wait_cancelled(60)


def sleep(seconds: float) -> float:
    """Sleep in a worker, whatever the caller's clock says."""
    time.sleep(seconds)
    return seconds


def call(fn: Callable[[], Any]) -> Any:
    """Call a function that came as an argument."""
    return fn()


def leave() -> None:
    """Try to end the interpreter."""
    raise SystemExit(3)


def die(flag: Path | None, *_args: Any) -> None:
    """Kill this process; with `flag`, a file that is not there yet, only once."""
    if flag is not None:
        if flag.exists():
            return
        flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(gate: Gate) -> None:
    """Arrive, wait for the opening, kill this process."""
    gate.hold()
    die(None)


def count(marks: Array, index: int, spin: int) -> bool:
    """Note that task `index` has run, then wait for its signal for a moment. In a worker."""
    marks[index] += 1
    task = mpsched.current_task()
    assert task is not None
    deadline = time.monotonic() + spin / 1e6
    while time.monotonic() < deadline:
        if task.cancelled:
            return True
    return task.cancelled


def until_asked(marks: Array, index: int) -> bool:
    """Note that task `index` has run, then wait for its signal; whether it came. In a worker."""
    marks[index] += 1
    task = mpsched.current_task()
    assert task is not None
    return task.wait_cancelled(60)


def meet_one(active: Array, seen: Array) -> int:
    """Count this worker in, wait until two are in and both have seen it, count it out. In a worker."""
    worker = mpsched.current_worker()
    assert worker is not None
    active[worker.index] = 1
    wait_until(lambda: active.sum() >= 2, "another worker")
    now = int(active.sum())
    seen[worker.index] = 1
    wait_until(lambda: seen.sum() >= 2, "the other one's look")
    active[worker.index] = 0
    return now


def hold_one_more(active: Array, seconds: float) -> int:
    """Count this worker in, look how many are, count it out. In a worker."""
    worker = mpsched.current_worker()
    assert worker is not None
    active[worker.index] = 1
    now = int(active.sum())
    time.sleep(seconds)
    active[worker.index] = 0
    return now


def endless(stop: Array) -> int:
    """Spawn children until told to stop. In a worker."""
    while not stop[0]:
        children = [mpsched.spawn(cpu, 500) for _ in range(20)]
        for child in children:
            child.join()
        stop[1] += len(children)
    return int(stop[1])
