"""Every error that mpsched raises, each told apart from its neighbour.

All derive from `MpschedError` and, where callers of the standard library already catch something,
from that as well. They cross processes, so each survives pickling with its message, its fields and
its notes: `args` is exactly what the positional parameters were, and every field is a keyword with
a default, kept in the instance's `__dict__`, which an exception's pickle carries.

This module lies below every other one. Every worker imports it, so the three errors whose bases
would cost a worker several milliseconds of imports (`concurrent.futures`, `queue`) are defined in
`_costly_errors.py` and loaded from here when somebody asks for them.

    MpschedError
    +- SchedulerClosed      (RuntimeError)      you shut the pool down
    +- PoolFailed           (BrokenExecutor)    the pool cannot go on
    +- WorkerDied           (BrokenExecutor)    one task's process is gone; the pool goes on
    +- TaskTimeout          (TimeoutError)      one task was ended by its own limit
    +- DeadlineMissed       (TimeoutError)      one task had not started at its deadline
    +- TaskCancelled                            one task was asked to stop, and did
    +- StaleVersion                             an attempt that is over is finished again
    +- PendingLimitReached  (queue.Full)        as much is pending as the pool accepts
    +- RecursionTooDeep     (RecursionError)    nested deeper than a worker's stack goes
    +- EncodeError          (PicklingError)     arguments cannot be sent
    +- ResultEncodeError    (PicklingError)     a result cannot be sent back
    +- DecodeError                              what arrived cannot be unpickled
    +- RemoteError                              stands in for an exception that cannot be sent back
    +- ArgumentChanged      (RuntimeError)      a child changed an argument that it had as a copy
    +- NestedSubmit         (RuntimeError)      a task submits to another pool than its own
    +- ForkedPool           (RuntimeError)      the pool belongs to the parent of this process
    +- PoolInWorker         (RuntimeError)      a worker that is starting would make a pool
"""

from __future__ import annotations

import pickle

# Type checkers know the name wherever it comes from; `typing` would cost every worker some 5 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable

    from mpsched._costly_errors import PendingLimitReached, PoolFailed, WorkerDied

__all__ = [
    "ArgumentChanged",
    "DeadlineMissed",
    "DecodeError",
    "EncodeError",
    "ForkedPool",
    "MpschedError",
    "NestedSubmit",
    "PendingLimitReached",
    "PoolFailed",
    "PoolInWorker",
    "RecursionTooDeep",
    "RemoteError",
    "ResultEncodeError",
    "SchedulerClosed",
    "StaleVersion",
    "TaskCancelled",
    "TaskTimeout",
    "WorkerDied",
]


class MpschedError(Exception):
    """What every error of this package derives from.

    Catch it to tell what the pool reports about a task from what the task itself raised.
    """


class SchedulerClosed(MpschedError, RuntimeError):
    """The pool or scheduler was shut down, so it takes no new work.

    Somebody closed it, on purpose. Unlike `PoolFailed`, nothing went wrong: make a new pool, or
    submit before the `with` block ends.
    """


class TaskTimeout(MpschedError, TimeoutError):
    """A task ran longer than its own limit, and was ended.

    The limit is that of `options(timeout=...)`. Unlike the plain `TimeoutError` of
    `future.result(timeout=...)`, where only the waiting ends and the task goes on, this task is
    over.

    Attributes:
        seconds: The limit, in seconds.
        task_id: Which task: its number in the pool, or the id that it was scheduled under.
        attempt: Which attempt of it; the first is 1.
    """

    def __init__(
        self,
        message: str = "",
        *,
        seconds: float | None = None,
        task_id: Hashable | None = None,
        attempt: int | None = None,
    ) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.task_id = task_id
        self.attempt = attempt


class DeadlineMissed(MpschedError, TimeoutError):
    """A scheduled task had not started at its deadline, and never will.

    Unlike `TaskTimeout`, which ends a run that takes too long, nothing of it has run.
    """


class TaskCancelled(MpschedError):
    """A running task was asked to stop, and did.

    Unlike `concurrent.futures.CancelledError`, which says that the task never started, this one
    had begun. It is no asyncio `CancelledError` either: awaiting a task that ended so does not
    cancel the coroutine that awaits it.
    """


class StaleVersion(MpschedError):
    """An attempt of a scheduled task is finished that is over already, so this end does not count.

    Unlike `TaskCancelled`, it says nothing about how that attempt has ended.
    """


class RecursionTooDeep(MpschedError, RecursionError):
    """Tasks were nested deeper than a worker's stack reaches.

    Unlike the plain `RecursionError`, which a function of the user raises by calling itself too
    often, this one is raised before the nesting becomes dangerous, by the pool.
    """


class EncodeError(MpschedError, pickle.PicklingError):
    """A function or its arguments cannot be pickled, so the task was never sent.

    Unlike `ResultEncodeError`, nothing has run. `__cause__` is what pickling raised.
    """


class ResultEncodeError(MpschedError, pickle.PicklingError):
    """A task ran to its end, but its result cannot be pickled, or not unpickled again.

    Unlike `EncodeError`, the function has run, so its effects have happened. `__cause__` tells
    what pickling raised in the worker.
    """


class DecodeError(MpschedError):
    """What arrived could not be unpickled: arguments in the worker, or a result in the parent.

    Unlike `EncodeError` and `ResultEncodeError`, the sender could pickle it; commonly a module is
    missing, or differs, on the receiving side.
    """


class RemoteError(MpschedError):
    """Stands in for an exception of a task that does not survive pickling.

    Unlike every other error here it speaks for the user's function, not for the pool. `__cause__`
    holds the traceback text of the worker.

    Attributes:
        class_name: Module and qualified name of the exception's class.
        message: What `str()` of the exception gave.
    """

    def __init__(self, description: str = "", *, class_name: str = "", message: str = "") -> None:
        super().__init__(description)
        self.class_name = class_name
        self.message = message


class ArgumentChanged(MpschedError, RuntimeError):
    """A child changed one of its arguments, and the change is lost wherever the child gets a copy.

    Raised with `MPSCHED_DEBUG=copy` and by `mpsched.testing.ForkPool` only; else the first change of
    each function is a warning. Return the new value, or pass an `mpsched.shared_array`. Unlike every other error here it tells of a
    mistake that otherwise shows now and then, as a wrong result.
    """


class NestedSubmit(MpschedError, RuntimeError):
    """A task submits to a pool of its parent process that is not the one that runs it.

    Unlike `PoolInWorker`, the pool exists and works; only this use of it is refused. What a task
    submits to its own pool are children of that task.
    """


class ForkedPool(MpschedError, RuntimeError):
    """This process was forked from the one that owns the pool, and cannot use it.

    Unlike `SchedulerClosed`, the pool is well and goes on in the parent. Make one of your own here.
    """


class PoolInWorker(MpschedError, RuntimeError):
    """A pool is made while a worker starts, which would start processes without end.

    Commonly a module that workers import makes a pool at its top level. Unlike `NestedSubmit`,
    no task is running yet.
    """


_COSTLY = frozenset({"PendingLimitReached", "PoolFailed", "WorkerDied"})


def __getattr__(name: str) -> object:
    """Load the errors of `_costly_errors` when one is first asked for (PEP 562)."""
    if name not in _COSTLY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpsched import _costly_errors

    found = globals()[name] = getattr(_costly_errors, name)
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__]
