# The door. What you see here lives in these places:
#
#   executor.py   WorkStealingExecutor, its futures, `run` and `map`
#   scheduler.py  Scheduler: calls at their time; asyncscheduler.py: the same with `await`
#   forkjoin.py   `spawn`, `scope`, `join_all` and the like, in a task and outside
#   parallel.py   loops that split themselves; sorting.py: `parallel.sort`
#   testing/      for tests of code that uses this package
#   arrays.py     arrays that several processes write, and what `executor.share` gives
#   errors.py     every exception
#   cli/          the command `mpsched`, also `python -m mpsched`
#
# and behind them, each floor importing only what lies below it:
#
#   _schedule/    in the parent: what is due, handed out in order          floor 6
#   _pool/        in the parent: dispatch, collect, supervise          floor 5
#   _worker/      in a worker: template, loop, find work, park         floor 4
#   _deque/       where tasks wait: rings and inboxes                  floor 3
#   _tasks/       what a task is and how it travels                    floor 2
#   _timers/      what may run, and when                               floor 2
#   _shm/         memory shared by processes, locks, parking           floor 1
#   _base/        settings, clock, CPU count                           floor 0
#
# Each room has a README.md, which is its specification. There is no logic here: every worker
# imports this module, so a name is loaded when it is first used. (But under a fault plan of `testing`
# the rooms have to be loaded with their crash points.)
"""Python functions on all cores: a work-stealing process pool.

import mpsched

with mpsched.WorkStealingExecutor() as ex:
    for result in ex.map(function, inputs):
        ...
"""

from __future__ import annotations

from os import environ as _environ

# Type checkers know the name wherever it comes from; `typing` would cost every worker some 5 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpsched import errors, parallel, testing
    from mpsched._base.cancelresult import CancelResult
    from mpsched._timers.due import Due, HeapMetrics, TimerStatus, Wait
    from mpsched._timers.heap import VersionedTimerHeap
    from mpsched._version import __version__
    from mpsched._worker.context import current_task, current_worker
    from mpsched.arrays import shared_array, shared_copy
    from mpsched.asyncscheduler import AsyncScheduler
    from mpsched.executor import (
        CloseReport,
        Future,
        PoolEvent,
        PoolStats,
        WorkerStats,
        WorkStealingExecutor,
        map,  # noqa: A004 - the public name is `mpsched.map`, beside `mpsched.run`
        run,
    )
    from mpsched.forkjoin import (
        Handle,
        blocking,
        join_all,
        resumable,
        run_blocking,
        scope,
        spawn,
    )
    from mpsched.scheduler import Scheduler, TaskHandle

__all__ = [
    "AsyncScheduler",
    "CancelResult",
    "CloseReport",
    "Due",
    "Future",
    "Handle",
    "HeapMetrics",
    "PoolEvent",
    "PoolStats",
    "Scheduler",
    "TaskHandle",
    "TimerStatus",
    "VersionedTimerHeap",
    "Wait",
    "WorkStealingExecutor",
    "WorkerStats",
    "__version__",
    "blocking",
    "current_task",
    "current_worker",
    "errors",
    "join_all",
    "map",
    "parallel",
    "resumable",
    "run",
    "run_blocking",
    "scope",
    "shared_array",
    "shared_copy",
    "spawn",
    "testing",
]

# name -> the module that has it; None: the name is a module itself.
_HOME = {
    "AsyncScheduler": "mpsched.asyncscheduler",
    "CancelResult": "mpsched._base.cancelresult",
    "CloseReport": "mpsched.executor",
    "Due": "mpsched._timers.due",
    "Future": "mpsched.executor",
    "Handle": "mpsched.forkjoin",
    "PoolEvent": "mpsched.executor",
    "PoolStats": "mpsched.executor",
    "HeapMetrics": "mpsched._timers.due",
    "Scheduler": "mpsched.scheduler",
    "TaskHandle": "mpsched.scheduler",
    "TimerStatus": "mpsched._timers.due",
    "VersionedTimerHeap": "mpsched._timers.heap",
    "Wait": "mpsched._timers.due",
    "WorkStealingExecutor": "mpsched.executor",
    "WorkerStats": "mpsched.executor",
    "__version__": "mpsched._version",
    "blocking": "mpsched.forkjoin",
    "current_task": "mpsched._worker.context",
    "current_worker": "mpsched._worker.context",
    "errors": None,
    "join_all": "mpsched.forkjoin",
    "map": "mpsched.executor",
    "parallel": None,
    "resumable": "mpsched.forkjoin",
    "run": "mpsched.executor",
    "run_blocking": "mpsched.forkjoin",
    "scope": "mpsched.forkjoin",
    "shared_array": "mpsched.arrays",
    "shared_copy": "mpsched.arrays",
    "spawn": "mpsched.forkjoin",
    "testing": None,
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = _HOME[name]
    found: object
    found = (
        import_module(f"{__name__}.{name}") if home is None else getattr(import_module(home), name)
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__]


if "MPSCHED_FAULT_PLAN" in _environ:
    from mpsched.testing import crashpoints as _crashpoints

    _crashpoints.enter()
