"""The errors whose base classes cost imports; `mpsched.errors` is where they are public.

`concurrent.futures` loads `logging`, about 6 ms that no worker needs at its start, and `queue` one
more. Only the parent raises these errors, and it has both modules anyway.
"""

from __future__ import annotations

import queue
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING

from mpsched.errors import MpschedError

if TYPE_CHECKING:
    from collections.abc import Hashable


class PoolFailed(MpschedError, BrokenExecutor):
    """The pool cannot go on, and its state is "failed".

    Its initializer raised, or its processes cannot be started. Unlike `WorkerDied`, which is about
    one task and leaves the pool working, this is final for every task; unlike `SchedulerClosed`,
    nobody asked for it.
    """


class WorkerDied(MpschedError, BrokenExecutor):
    """The process that ran a task is gone: killed, crashed, or left by `os._exit`.

    A new worker takes its place and other tasks are not touched, unlike after `PoolFailed`. Unlike
    `TaskTimeout`, the pool did not end it.

    Attributes:
        exitcode: Exit status of the process; negative is a signal's number; None if unknown.
        signal: Name of the signal that killed it, such as "SIGKILL", or None.
        pid: Its process id.
        task_id: Which task it ran: its number in the pool, or the id that it was scheduled under.
        attempt: Which attempt of the task; the first is 1.
        worker: Index of the worker, which its replacement keeps.
        started: Whether the function had been entered; if not, it had no effects.
        cause: What is known about why, such as "memory", or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        exitcode: int | None = None,
        signal: str | None = None,
        pid: int | None = None,
        task_id: Hashable | None = None,
        attempt: int | None = None,
        worker: int | None = None,
        started: bool = True,
        cause: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        self.signal = signal
        self.pid = pid
        self.task_id = task_id
        self.attempt = attempt
        self.worker = worker
        self.started = started
        self.cause = cause


class PendingLimitReached(MpschedError, queue.Full):
    """As many tasks are pending as the pool accepts (`max_pending`), and it may not wait.

    Unlike `SchedulerClosed` it passes: submit again when some are done.

    Attributes:
        limit: The pool's `max_pending`, in tasks.
    """

    def __init__(self, message: str = "", *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


# Pickles and tracebacks name the public place.
for _error in (PoolFailed, WorkerDied, PendingLimitReached):
    _error.__module__ = "mpsched.errors"
del _error
