"""`scope`: children that are finished where a block ends. See README.md, "Fork-join"."""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, final

from mpsched._tasks import failure
from mpsched._worker import away, hot
from mpsched._worker.away import Away
from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from mpsched._worker.hot import Handle

T = TypeVar("T")


@final
class Scope:
    """A block that ends when all children that were spawned in it have ended.

    If one of them fails, or the block raises, younger ones that have not started never do, those that run
    are asked to stop (`current_task().cancelled`), and all are waited for. Then the block's own error is
    raised, else the first failure in the order of the spawns; the others are its `siblings`.

    Args:
        group: Raise an ExceptionGroup of all failures instead of the first.
    """

    __slots__ = ("_group", "_handles", "_open")

    def __init__(self, *, group: bool = False) -> None:
        self._group = group
        self._handles: list[Handle[Any]] = []
        self._open = False

    def spawn(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Handle[T]:
        """As `mpsched.spawn`; the child ends at the latest with the block.

        Raises:
            RuntimeError: The block has ended, or not begun.
        """
        if not self._open:
            raise RuntimeError(
                "a scope spawns only between its `with` line and the end of its block"
            )
        handle = hot.spawn(fn, *args, **kwargs)
        self._handles.append(handle)
        return handle

    def __enter__(self) -> Scope:
        if self._open or self._handles:
            raise RuntimeError("a scope is for one block; make another one")
        self._open = True
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        problem: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        handles = self._handles
        if problem is not None:
            self._open = False
            if isinstance(problem, KeyboardInterrupt) and not hot.in_task():
                ask_to_stop(handles)
                return
            failure.with_siblings(problem, abandon(handles))
            return
        failures: list[BaseException] = []
        # Oldest first: so what fails first in this order has succeeded before it, whoever ran what.
        # (Children that run may spawn more into it.)
        for number, handle in enumerate(handles):
            if _was_told(handle):
                continue
            try:
                handle.join()
            except BaseException as error:
                self._open = False
                if is_interrupt(error, handle):
                    ask_to_stop(handles)
                    raise
                failures = [error, *abandon(handles[number + 1 :])]
                break
        self._open = False
        if failures and self._group:
            raise BaseExceptionGroup("children of a scope failed", failures)
        if failures:
            raise failure.with_siblings(failures[0], failures[1:])


def _was_told(handle: Handle[Any]) -> bool:
    """Whether its failure was raised at a join already: then who joined it has handled it."""
    return bool(getattr(handle._fn, "told", False) and getattr(handle._fn, "error", True))


def abandon(handles: Sequence[Handle[Any]]) -> list[BaseException]:
    """End children that nobody wants any more.

    Those that have not started never do, those that run are asked to stop, and all are waited for.

    Returns:
        The failures that nobody was told of, in the order of `handles`, without those of children that
        stopped because they were asked to.
    """
    live = [handle for handle in handles if not _was_told(handle)]
    asked = {id(handle) for handle in live if cancel(handle)}
    failures: list[BaseException] = []
    for handle in reversed(live):
        try:
            handle.join()
        except TaskCancelled as problem:
            if id(handle) not in asked:
                failures.append(problem)
        except BaseException as problem:
            if is_interrupt(problem, handle):
                raise
            failures.append(problem)
    failures.reverse()
    return failures


def is_interrupt(problem: BaseException, handle: Handle[Any]) -> bool:
    """Whether it is Ctrl-C in the program that waits, and not what the child has raised."""
    return isinstance(problem, KeyboardInterrupt) and not hot.in_task() and not handle.done()


def ask_to_stop(handles: Sequence[Handle[Any]]) -> None:
    """Prevent the start of children, ask those that run to stop, and wait for none."""
    for handle in handles:
        cancel(handle)


def cancel(handle: Handle[Any]) -> bool:
    """Prevent a child's start, or ask it to stop; False if it has ended already."""
    if handle.done():
        return False
    if isinstance(handle._fn, hot.Foreign):
        handle._fn.cancel()
        return True
    why = TaskCancelled("the child was cancelled before it started, because its scope ended")
    if away.cancel(handle, why):
        return True
    record = handle._fn
    return type(record) is Away and away.cancel_published(record, why)
