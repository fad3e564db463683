"""A child with the face of a Future: what `submit` gives to a task that submits to its own pool.

See README.md, "Fork-join". Whatever asks for the outcome joins the child, so it helps instead of waiting:
no task waits for a worker that waits for it, on one worker either.
"""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import math
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from mpsched._worker import away, hot, scopes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.hot import Handle

T = TypeVar("T")

PATIENCE_S: Final = 0.01
"""Seconds after which a task that polls `done()` runs the child itself: nobody else may be there."""

_called_back: list[ForkFuture[Any]] = []
"""Futures of the running root with callbacks, which are called at its end at the latest."""


def submit(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForkFuture[T]:
    """Spawn a call of the running task's pool; return its future."""
    return ForkFuture(hot.spawn(fn, *args, **kwargs))


@final
class ForkFuture(cf.Future[T]):
    """The future of a child. `result`, `wait` and `as_completed` join it.

    A timeout limits nothing here: who waits may be the one who has to run it. Other threads of the task
    may wait as well, and an event loop in it (`await loop.run_in_executor(ex, ...)`).
    """

    def __init__(self, handle: Handle[T]) -> None:
        self._handle = handle
        # Held by who joins. Also what keeps `set_result`, which takes the condition, from joining again.
        self._gate = threading.Lock()
        self._settled = False
        self._patience = math.inf
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
        """Join the child and take over its outcome, unless somebody does."""
        if self._settled or not self._gate.acquire(blocking=False):
            return
        try:
            try:
                value = _join(self._handle)
            except BaseException as problem:
                if self._state == "PENDING":
                    self.set_exception(problem)
            else:
                if self._state == "PENDING":
                    self.set_result(value)
        finally:
            self._settled = True
            self._gate.release()

    def done(self) -> bool:
        """Whether it has ended, or was cancelled. Who asks again and again helps at last."""
        now = time.monotonic()
        if self._handle.done() or now > self._patience:
            self._settle()
        elif self._patience == math.inf:
            self._patience = now + PATIENCE_S
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
        if self.done():
            return False
        scopes.cancel(self._handle)
        if not self._handle.done():
            return False  # it runs elsewhere, and was asked
        self._settled = True
        super().cancel()
        self.set_running_or_notify_cancel()
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
            # The base class calls it, and logs what it raises.
            super().add_done_callback(fn)
            return
        self._done_callbacks.append(fn)  # type: ignore[attr-defined]
        _called_back.append(self)
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None:
            # Under an event loop in the task itself, which can only go on when the child has run.
            with contextlib.suppress(RuntimeError):  # there is none
                asyncio.get_running_loop().call_soon(self._settle)


def _join(handle: Handle[Any]) -> Any:
    """Join a child, which stays in its place on the stack.

    So a younger child may wait for the future of an older one, as with any executor.
    """
    if isinstance(handle, hot.ForeignHandle) or not hot.in_task():
        return handle.join()
    return away.join(handle)


def finish_callbacks() -> None:
    """Settle the futures that have callbacks. At a root's end."""
    while _called_back:
        _called_back.pop()._settle()  # noqa: SLF001 - a function of this module's class
