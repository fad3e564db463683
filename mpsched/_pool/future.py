"""The pool's future: a `concurrent.futures.Future` that makes its Condition only when asked.

See README.md, "Futures". Most futures are completed and read without anybody having waited on them,
and a Condition is most of the cost of one (1.6 us). So the Condition, the list of waiters and the
list of callbacks come into being when something reaches for them. Making them and completing
without them exclude each other by one module lock (FUTURE-1); a future that has them is completed
under its own Condition, as the standard library does, by the collector.
"""

from __future__ import annotations

import concurrent.futures as cf
import logging
import os
import threading
import time
from concurrent.futures._base import (
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    PENDING,
    RUNNING,
)
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mpsched._pool.waiting import Condition, Open

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task

T = TypeVar("T")
_LOG = logging.getLogger("mpsched")

# Re-entrant, because a finalizer that the garbage collector runs inside may reach for a future.
COMPLETION: Final = threading.RLock()

if hasattr(os, "register_at_fork") and hasattr(COMPLETION, "_at_fork_reinit"):
    # Another thread may hold it at a fork: then nobody in the child could open it.
    os.register_at_fork(after_in_child=COMPLETION._at_fork_reinit)

_OPEN: Final = Open()
_FINAL: Final = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})
_REPLACED: Final = {
    "get": "result(timeout)",
    "wait": "result(timeout), or concurrent.futures.wait([future], timeout)",
    "ready": "done()",
    "successful": "exception() is None",
}


class _Unread:
    """Logs a failure once if its future is dropped without anybody having read it."""

    __slots__ = ("_load", "_text")

    def __init__(self, text: str, load: Callable[[], tuple[Any, BaseException | None]]) -> None:
        self._text = text
        self._load: Callable[[], tuple[Any, BaseException | None]] | None = load

    def silence(self) -> None:
        """Somebody read it."""
        self._load = None

    def __del__(self) -> None:
        error = self._load()[1] if self._load is not None else None
        # A pool that is closed, by Ctrl-C for one, cancels what is open and ends what runs: that is
        # nobody's failure.
        if isinstance(error, cf.CancelledError) or getattr(error, "cause", None) == "close":
            return
        if error is not None:
            _LOG.error("%s failed and nobody read it", self._text, exc_info=error)


class Future(cf.Future[T], Generic[T]):
    """The outcome of one task. Made by `submit` only.

    Attributes:
        attempts: runs that were started or died; 0 while none was.
        seconds: seconds that the last run spent in the function; None until it is over.
        worker: index of the worker that ran it last; None until it is over.
    """

    # Read where an instance has not been given its own yet.
    _state: str = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _trace: TracebackType | None = None
    _raw: Callable[[], tuple[Any, BaseException | None]] | None = None
    _shared = False  # somebody is to be told: it has callbacks, or a Condition
    _waited = False  # has a Condition
    _ending = False  # its task is over, and the collector is about to complete it
    _unread: _Unread | None = None
    _unwanted = False  # if it comes back after all, it is not to start
    _dropped = False  # nobody will read it, and that is all right
    _ns = -1
    worker: int | None = None

    def __init__(self, pool: Pool, task: Task) -> None:
        # Not super().__init__(): it would make the Condition.
        self._pool = pool
        self._task = task

    def __getattr__(self, name: str) -> Any:
        if name in {"_condition", "_waiters", "_done_callbacks"}:
            with COMPLETION:
                if self._state in _FINAL and not self._waited:
                    # `wait` and `as_completed` take the condition of each future, done or not.
                    if name == "_condition":
                        self._condition: Any = _OPEN
                    else:
                        self.__dict__.setdefault(name, [])
                    return self.__dict__[name]
                if not self._waited:
                    if not self._shared:
                        self._done_callbacks: list[Any] = []
                    self._waiters: list[Any] = []
                    self._condition = Condition()
                    self._shared = self._waited = True
            # Somebody waits on it, or wants to be called: the pool's own thread must see to it.
            self._pool.leader.outsider()
            return self.__dict__[name]
        if name in _REPLACED:
            raise AttributeError(
                f"a mpsched future has no {name}(): it is a concurrent.futures.Future; "
                f"use {_REPLACED[name]}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- what callers see --------------------------------------------------------------------------

    @property
    def attempts(self) -> int:
        """Runs that were started."""
        return self._task.attempt if self._state != PENDING or self._task.attempt > 1 else 0

    @property
    def seconds(self) -> float | None:
        """Seconds the last run spent in the function; None until it is over."""
        return self._ns / 1e9 if self._ns >= 0 else None

    @property
    def _label(self) -> str | None:
        """What messages call its task, if not by the pool's number."""
        return None

    def done(self) -> bool:
        """Whether it is finished or cancelled."""
        return self._state in _FINAL

    def cancelled(self) -> bool:
        """Whether it was cancelled before it started."""
        return self._state in {CANCELLED, CANCELLED_AND_NOTIFIED}

    def running(self) -> bool:
        """Whether a worker runs it now (as far as the parent can see)."""
        return self._state == RUNNING or (
            self._state == PENDING and self._pool.is_running(self._task)
        )

    def cancel(self) -> bool:
        """Prevent the task from starting; or ask it to stop.

        Returns:
            True if it will never run. False if it has started (then `current_task().cancelled`
            is set there) or is finished.
        """
        if self._state in _FINAL:
            return self._state != FINISHED
        return self._pool.cancel(self._task) or self.cancelled()

    def add_done_callback(self, fn: Callable[[cf.Future[T]], object]) -> None:
        """Call `fn(self)` when it is done: in the pool's own thread, or now if it is done already.

        What `fn` raises is logged.
        """
        with COMPLETION:
            # As in the standard library, but a callback alone needs no Condition.
            pending = self._state not in _FINAL
            if pending:
                if not self._shared:
                    self._done_callbacks = []
                    self._shared = True
                self._done_callbacks.append(fn)
        if pending:
            self._pool.leader.outsider()
        else:
            self._call(fn)

    def result(self, timeout: float | None = None) -> T:
        """Return what the function returned, waiting up to `timeout` seconds (None: no limit).

        The waiting thread reads results for the whole pool meanwhile.

        Raises:
            TimeoutError: it is not done after `timeout` seconds.
            CancelledError: it was cancelled.
            BaseException: whatever the function raised, with the remote traceback as `__cause__`.
        """
        if self._state is FINISHED and self._raw is None and self._exception is None:
            return self._result  # type: ignore[no-any-return]  # most are read when they are done
        self._await(timeout)
        error = self._outcome()
        if error is not None:
            try:
                # Without the frames of earlier readers: a traceback would grow with each of them.
                raise error.with_traceback(self._trace)
            finally:
                # Break the cycle error -> traceback -> frame -> error.
                del error, self
        value: T = self._result
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the function raised, or None; otherwise like `result`."""
        self._await(timeout)
        return self._outcome()

    def _await(self, timeout: float | None) -> None:
        if self._state in _FINAL:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._pool.in_own_thread():
            if not self._pool.supervisor.wait_inside(self.done, deadline):
                raise TimeoutError(f"task {self._task.id} is not done after {timeout} seconds")
        elif not self._pool.leader.lead(self.done, deadline):
            self._pool.ring()  # if whoever leads was thrown out of it, the supervisor finds out
            with self._condition:
                while self._state not in _FINAL:
                    self._pool.check_process()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(
                            f"task {self._task.id} is not done after {timeout} seconds"
                        )
                    self._condition.wait(left if left is None or left < 1e6 else 1e6)

    def _outcome(self) -> BaseException | None:
        if self._state != FINISHED:
            raise cf.CancelledError
        raw = self._raw
        if raw is not None:
            # Unpickling may run the user's code: in the thread that asks, and never under a lock.
            value, error = raw()
            with COMPLETION:
                if self._raw is not None:
                    self._result, self._exception = value, error
                    self._trace = None if error is None else error.__traceback__
                    self._raw = None
        if self._unread is not None:
            self._unread.silence()
            self._unread = None
        return self._exception

    # --- what the pool does -------------------------------------------------------------------------

    def _drop(self) -> None:
        """Cancel it; a failure that it has, or will have, is not to be logged."""
        self.cancel()
        with COMPLETION:
            self._dropped = True
            if self._unread is not None:
                self._unread.silence()
                self._unread = None

    def _cancel(self) -> None:
        """Become cancelled; whoever prevented the task from starting calls it."""
        with COMPLETION:
            if not self._shared and self._state not in _FINAL:
                self._state = CANCELLED_AND_NOTIFIED
                self._task.future = None
        if self._shared:
            self._settle(None, None, state=CANCELLED_AND_NOTIFIED)

    def _settle(
        self,
        value: Any,
        raw: Callable[[], tuple[Any, BaseException | None]] | None,
        *,
        failed: bool = False,
        state: str = FINISHED,
    ) -> None:
        """Become final, tell who waits, run the callbacks. Collector, or who cancels."""
        with COMPLETION:
            waited = self._waited
            if not waited:
                self._end(value, raw, failed, state)
        if waited:
            # The Condition before the module lock, as whoever waits takes them.
            with self._condition:
                with COMPLETION:
                    ended = self._end(value, raw, failed, state)
                for waiter in self._waiters if ended else ():
                    if state == CANCELLED_AND_NOTIFIED:
                        waiter.add_cancelled(self)
                    elif failed:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
                self._condition.notify_all()
        if not self._shared:
            return
        callbacks, self._done_callbacks = self._done_callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _end(
        self,
        value: Any,
        raw: Callable[[], tuple[Any, BaseException | None]] | None,
        failed: bool,
        state: str,
    ) -> bool:
        """Take the outcome; COMPLETION held. False if there was one already."""
        if self._state in _FINAL:
            return False
        self._result, self._raw = value, raw
        if failed and raw is not None and not self._dropped:
            self._unread = _Unread(self._task.describe(), raw)
        self._state = state
        self._task.future = None  # each holds the other: a result must go with its future
        return True

    def _call(self, callback: Callable[[cf.Future[T]], object]) -> None:
        try:
            callback(self)
        except BaseException as problem:
            # In the pool's own thread there is nobody whom SystemExit could concern.
            if not isinstance(problem, Exception) and not self._pool.in_own_thread():
                raise
            _LOG.exception("a callback of %s raised", self._task.describe())

    def shared(self) -> bool:
        """Whether somebody is to be told: it has callbacks, or a Condition."""
        return self._shared

    def _finish(
        self, value: Any, raw: Callable[[], tuple[Any, BaseException | None]] | None, failed: bool
    ) -> bool:
        """Become FINISHED without a Condition; the leader, COMPLETION held.

        Returns False if somebody is to be told: then `_settle` is due, in the collector.
        """
        if self._shared:
            # Before the task's entry is let go of: from here on there is nothing to cancel.
            self._ending = True
            return False
        self._end(value, raw, failed, FINISHED)
        # A finalizer may have run inside this method, in this very thread, and asked to be told.
        return not self._shared

    def __repr__(self) -> str:
        return f"<mpsched.Future of {self._task.describe()}: {self._state.lower()}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a mpsched future cannot be pickled: pass its result, or submit from the parent"
        )
