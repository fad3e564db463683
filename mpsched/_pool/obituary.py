"""What is said of workers that died: errors of their tasks, and words for an exit status."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from mpsched.errors import WorkerDied

if TYPE_CHECKING:
    from mpsched._pool.task import Task


class Death(NamedTuple):
    """The end of a worker's process.

    Attributes:
        worker: its index, pid: its process.
        status: exit code, or minus the signal's number; None: not known.
        cause: what is suspected behind it ("memory"), or None.
    """

    worker: int
    pid: int
    status: int | None
    cause: str | None = None


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


def death(task: Task, end: Death, where: str = "") -> WorkerDied:
    """Return the error of a task whose worker died; `where` goes into its text."""
    status, cause = end.status, end.cause
    text = f"the worker that ran {task.describe()}{where} (pid {end.pid}) died: {how(status)}"
    if cause:
        text += f"; suspected cause: {cause}"
    if task.options.retries:
        text += f" (attempt {task.attempt} of {task.options.retries + 1})"
    return _died(task, text, end)


def too_large(task: Task, end: Death, where: str = "") -> WorkerDied:
    """Return the error of a task whose worker was ended because it held too much memory."""
    text = f"{task.describe()}{where} was ended: {task.why} (attempt {task.attempt})"
    return _died(task, text, end._replace(cause="memory"))


def _died(task: Task, text: str, end: Death) -> WorkerDied:
    return WorkerDied(
        text,
        exitcode=end.status,
        signal=_signal_name(end.status),
        pid=end.pid,
        task_id=task.id,
        attempt=task.attempt,
        worker=end.worker,
        started=True,
        cause=end.cause,
    )


def _signal_name(status: int | None) -> str | None:
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return str(-status)  # a real-time signal


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
