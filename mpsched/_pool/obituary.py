"""What is said of workers that died: errors of their tasks, and words for an exit status."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mpsched.errors import WorkerDied

if TYPE_CHECKING:
    from mpsched._pool.task import Task


def how(status: int | None) -> str:
    """Return how a process ended, for messages."""
    if status is None:
        return "its exit status is not known"
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit code {status}"


def death(
    task: Task, index: int, pid: int, status: int | None, cause: str | None, where: str
) -> WorkerDied:
    """Return the error of a task whose worker died; `where` goes into its text."""
    text = f"the worker that ran {task.describe()}{where} (pid {pid}) died: {how(status)}"
    if cause:
        text += f"; suspected cause: {cause}"
    return WorkerDied(
        text,
        exitcode=status,
        signal=signal.Signals(-status).name if status is not None and status < 0 else None,
        pid=pid,
        task_id=task.id,
        attempt=task.attempt,
        worker=index,
        started=True,
        cause=cause,
    )


def killed_by_close(task: Task) -> BaseException:
    """Return the error of a task that ran when `close` ended the workers."""
    return WorkerDied(
        f"the worker that ran {task.describe()} was ended: the pool was closed with kill_after",
        signal="SIGKILL",
        exitcode=-signal.SIGKILL,
        task_id=task.id,
        attempt=task.attempt,
        cause="close",
    )
