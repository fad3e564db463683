"""`spawn`, `scope`, `join_all` and what else a recursive computation uses.

In a task these are the worker's own functions, with nothing in between. In a program, outside any
task, children go to the open pool (`with mpsched.WorkStealingExecutor() as ex:`); with none open they
run at once, in the calling thread, with the same results and errors. docs/forkjoin.md is for users.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar, final

from mpsched._worker import eager, hot
from mpsched._worker.blocking import blocking, run_blocking
from mpsched._worker.hot import Foreign, Handle, spawn
from mpsched._worker.resumable import resumable
from mpsched._worker.scopes import Scope
from mpsched._worker.together import join_all
from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched.executor import Future, WorkStealingExecutor

__all__ = ["Handle", "blocking", "join_all", "resumable", "run_blocking", "scope", "spawn"]

scope = Scope

T = TypeVar("T")


@final
class _InPool(Foreign):
    """A child that the program has spawned into the open pool: a task of its own."""

    __slots__ = ("_future", "_told")

    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self._told = False

    @property
    def told(self) -> bool:
        """Whether its failure was raised at a join."""
        return self._told

    def outcome(self) -> Any:
        """Wait for the task; return its value or raise its error.

        Raises:
            TaskCancelled: It was cancelled before it started.
        """
        try:
            return self._future.result()
        except BaseException as error:
            self._told = self._future.done()  # else it was Ctrl-C
            if self._future.cancelled():
                # What a child of a task raises; asyncio's cancellation is no affair of a join.
                raise TaskCancelled("the child was cancelled before it started") from error
            raise

    def done(self) -> bool:
        """Tell whether the task is over."""
        return self._future.done()

    def cancel(self) -> None:
        """Let the task not start, or ask it to stop."""
        self._future.cancel()


def open_pool() -> WorkStealingExecutor | None:
    """Return the pool whose `with` block this is, if it has workers and takes work; else None."""
    executor = sys.modules.get("mpsched.executor")
    if executor is None:
        return None
    opened: WorkStealingExecutor | None = executor._open_pool.get()
    if opened is None or opened.state != "accepting":
        return None
    pool = opened._pool
    return opened if pool.width and not getattr(pool, "forked", False) else None


def run_in(pool: WorkStealingExecutor, fn: Callable[..., T], *args: Any) -> T:
    """Return `pool.run(fn, *args)`; who is interrupted meanwhile does not want it any more."""
    future = pool.submit(fn, *args)
    try:
        return future.result()
    except BaseException:
        if not future.done():  # Ctrl-C: it is asked to stop, and its end is nobody's failure
            future._drop()
        raise


def outside(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
    """Spawn where no task runs."""
    pool = open_pool()
    if pool is None:
        return eager.spawn(fn, args, kwargs)
    return hot.foreign(_InPool(pool.submit(fn, *args, **kwargs)))


hot.outside = outside
