"""A child with the face of a Future: what `submit` gives to a task that submits to its own pool.

See README.md, "Fork-join". Whatever asks for the outcome joins the child, so it helps instead of waiting:
no task waits for a worker that waits for it, on one worker either.
"""

from __future__ import annotations

import concurrent.futures as cf
from typing import TYPE_CHECKING, Any, TypeVar, final

from mpsched._worker import away, hot, scopes

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from mpsched._worker.hot import Handle

T = TypeVar("T")

_called_back: list[ForkFuture[Any]] = []
"""Futures of the running root with callbacks, which are called at its end at the latest."""


def submit(
    fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
) -> ForkFuture[T]:
    """Spawn a call of the running task's pool.

    Args:
        fn: What to call.
        args: Its positional arguments.
        kwargs: Its keywords.
        options: Those of `executor.options` that were given.

    Raises:
        TypeError: An option of a task of its own, which a child is not.
    """
    refused = sorted(set(options) - {"name"})
    if refused:
        raise TypeError(
            f"submit() in a task makes a child of that task, for which {', '.join(refused)} cannot be "
            "chosen: priority, limits and retries are those of the task. Submit from the program instead"
        )
    return ForkFuture(hot.spawn(fn, *args, **kwargs))


@final
class ForkFuture(cf.Future[T]):
    """The future of a child. `result`, `wait` and `as_completed` join it.

    A timeout limits nothing here: who waits may be the one who has to run it. Another thread than the
    task's waits until the task joins.
    """

    def __init__(self, handle: Handle[T]) -> None:
        self._handle = handle
        self._joining = False
        self._settled = False
        super().__init__()

    @property
    def _condition(self) -> threading.Condition:
        """What everything that waits for a future takes first; it joins the child before."""
        self._settle()
        return self._own

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own = condition
        # The base class sets it in its `__init__`.

    def _settle(self) -> None:
        """Join the child, if this is the task's own thread, and take over its outcome."""
        if self._joining or self._settled or not _may_join(self._handle):
            return
        self._joining = True
        try:
            try:
                value = self._handle.join()
            except BaseException as problem:
                if self._state == "PENDING":
                    self.set_exception(problem)
            else:
                if self._state == "PENDING":
                    self.set_result(value)
        finally:
            self._joining = False
            self._settled = True

    def done(self) -> bool:
        """Whether it has ended, or was cancelled; joins nothing that has not ended."""
        if self._handle.done():
            self._settle()
        return self._state not in {"PENDING", "RUNNING"}

    def running(self) -> bool:
        """Whether another worker has it."""
        return not self.done() and away.is_elsewhere(self._handle)

    def cancelled(self) -> bool:
        """Whether it was prevented from starting."""
        return self._state in {"CANCELLED", "CANCELLED_AND_NOTIFIED"}

    def cancel(self) -> bool:
        """Prevent its start; False if it has begun, which is then asked to stop."""
        if self.cancelled():
            return True
        if self.done() or not _may_join(self._handle):
            return False
        scopes.cancel(self._handle)
        if not self._handle.done():
            return False  # it runs elsewhere, and was asked
        self._joining = True
        super().cancel()
        self.set_running_or_notify_cancel()
        self._settled = True
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the child's value or raise its error; the worker runs it, or its kin, meanwhile."""
        self._settle()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the child raised, or None; otherwise as `result`."""
        self._settle()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[cf.Future[T]], object]) -> None:
        """Call `fn` with this future when somebody waits for it, at the latest at the task's end."""
        if self.done():
            fn(self)
            return
        self._done_callbacks.append(fn)  # type: ignore[attr-defined]
        _called_back.append(self)


def _may_join(handle: Handle[Any]) -> bool:
    return isinstance(handle, hot.ForeignHandle) or hot.in_task()


def finish_callbacks() -> None:
    """Settle the futures that have callbacks. At a root's end."""
    while _called_back:
        _called_back.pop()._settle()  # noqa: SLF001 - a function of this module's class
