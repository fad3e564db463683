"""An executor that runs nothing by itself: a test says what ends, when and how."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpsched.errors import SchedulerClosed

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class _Worker:
    index: int
    busy_seconds: float = 0.0


@dataclass
class _Stats:
    workers: list[_Worker]
    steals: int = 0
    deaths: int = 0


@dataclass
class FakeExecutor:
    """Stands in for `WorkStealingExecutor` where only its public face counts.

    Attributes:
        at_once: Whether `submit` runs the call before it returns; else it waits in `held`.
        held: What has been submitted and not been run: future and call.
        submitted: How many calls were submitted.
        most_open: The most futures that were open at one time.
        closed: The arguments of `close`; None if it was not called.
    """

    at_once: bool = True
    held: list[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=list)
    submitted: int = 0
    most_open: int = 0
    closed: dict[str, Any] | None = None
    views: list[dict[str, Any]] = field(default_factory=list)
    _refusing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def made(
        self,
        workers: int | None,
        initializer: Callable[..., Any],
        initargs: tuple[Any, ...],
        preload: tuple[str, ...],
    ) -> FakeExecutor:
        """Be what the command makes: prepares this process as a worker."""
        del workers, preload
        initializer(*initargs)
        return self

    def options(self, **options: Any) -> FakeExecutor:
        """Note the options; there is one view."""
        self.views.append(options)
        return self

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Run the call, or hold it."""
        if self._refusing:
            raise SchedulerClosed("the pool was shut down")
        future: Future[Any] = Future()
        with self._lock:
            self.submitted += 1
            self.held.append((future, lambda: fn(*args)))
            self.most_open = max(self.most_open, len(self.held))
        if self.at_once:
            self.run()
        return future

    def run(self, index: int = 0) -> None:
        """Run one of the held calls."""
        with self._lock:
            future, call = self.held.pop(index)
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def fail(self, error: BaseException, index: int = 0) -> None:
        """End one of the held calls as the pool ends those whose worker is gone."""
        with self._lock:
            future, _ = self.held.pop(index)
        future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work; with `cancel_futures` give up what is held."""
        del wait
        self._refusing = True
        if cancel_futures:
            for future, _ in self.held:
                future.cancel()
                future.set_running_or_notify_cancel()
            self.held.clear()

    def close(self, **how: Any) -> None:
        """Give up everything."""
        self.closed = how
        self.shutdown(cancel_futures=True)

    def stats(self) -> _Stats:
        """Return made-up counters."""
        return _Stats([_Worker(0), _Worker(1)], steals=3)
