"""Jobs that tests of schedulers send to workers, and what they ask."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.gates import Gate


def version_and_attempt() -> tuple[int, int]:
    """Return what the running task is told about itself."""
    task = mpsched.current_task()
    assert task is not None
    return task.version, task.attempt


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
