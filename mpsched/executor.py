"""`WorkStealingExecutor`: the pool as a `concurrent.futures.Executor`."""

from __future__ import annotations

import concurrent.futures as cf
import contextvars
import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from mpsched._base import keywords
from mpsched._intask import ExecutorInTask, identity, not_callable
from mpsched._pool import lifecycle, making, options as opt
from mpsched._pool.core import Pool
from mpsched._pool.events import PoolEvent, Subscription
from mpsched._pool.future import Future
from mpsched._pool.maps import cancel_results, is_of_map, start_map
from mpsched._pool.report import NOTHING, CloseReport
from mpsched._pool.stats import PoolStats, WorkerStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from mpsched._base.cancelresult import CancelResult
    from mpsched._base.settings import Settings
    from mpsched._pool.serial import SerialPool
    from mpsched.arrays import Shared

__all__ = [
    "CloseReport",
    "Future",
    "PoolEvent",
    "PoolStats",
    "Subscription",
    "WorkStealingExecutor",
    "WorkerStats",
    "map",
    "run",
]

T = TypeVar("T")

_REPLACED: Final = {
    "imap": "map(fn, items)",
    "imap_unordered": "map(fn, items, ordered=False)",
    "map_async": "map(fn, items), which starts at once and is read later",
    "starmap_async": "starmap(fn, items), which starts at once and is read later",
    "apply": "run(fn, *args)",
    "apply_async": "submit(fn, *args), and add_done_callback on its future",
    "schedule": "mpsched.Scheduler",
    "terminate": "close(timeout=0, kill_after=0)",
    "join": "await_termination()",
    "close_and_join": "shutdown()",
}

_open_pool: contextvars.ContextVar[WorkStealingExecutor | None] = contextvars.ContextVar(
    "mpsched_open_pool", default=None
)


class _Submitting:
    """What an executor and its `options(...)` views share: the ways to hand work over."""

    _pool: Pool | SerialPool
    _options: opt.Options
    _index: itertools.count[int]

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand `fn(*args, **kwargs)` to a worker; any thread.

        Arguments are pickled now, so every attempt sees what they are now.

        Returns:
            Its future; whatever is wrong with the function or the arguments is raised by it.

        Raises:
            TypeError: `fn` cannot be called.
            SchedulerClosed: the pool was shut down.
            PendingLimitReached: see `max_pending`.
        """
        if not callable(fn):
            raise TypeError(not_callable(fn))
        return self._pool.submit(fn, args, kwargs, self._options, self._index)

    def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return `submit(fn, *args, **kwargs).result()`."""
        return self.submit(fn, *args, **kwargs).result()

    @overload
    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = ...,
        chunksize: int | None = ...,
        buffersize: int | None = ...,
        ordered: bool = ...,
        return_exceptions: Literal[False] = ...,
        progress: bool = ...,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = ...,
        chunksize: int | None = ...,
        buffersize: int | None = ...,
        ordered: bool = ...,
        return_exceptions: bool,
        progress: bool = ...,
    ) -> Iterator[T | BaseException]: ...

    @keywords.explained("map", opt.OF_OPTIONS)
    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> Iterator[T]:
        """Call `fn` with the items of the iterables, on all workers; like the built-in `map`.

        Inputs that have a length are taken whole at the call and run whether the result is iterated
        or not. Inputs without one are pulled by the calling thread, at most `buffersize` ahead of
        what was read. A result is there some 20 ms after its item has ended, or sooner.

        Args:
            fn: called with one item of each iterable.
            *iterables: the shortest one ends the map.
            timeout: seconds from the call after which iterating raises TimeoutError.
            chunksize: items per piece; None sizes the pieces by measured time and splits them when
                a worker runs dry.
            buffersize: items ahead for inputs without a length; None: as the speed asks for.
            ordered: results in the order of the items, else as they come.
            return_exceptions: give an item's exception in its place and go on; else the first one
                is raised in its place and what has not started is cancelled.
            progress: show a bar (extra `progress`).
        """
        items = iterables[0] if len(iterables) == 1 else zip(*iterables, strict=False)
        if len(iterables) > 1 and all(hasattr(one, "__len__") for one in iterables):
            items = list(items)
        return start_map(
            self._pool,
            fn,
            items,
            star=len(iterables) != 1,
            options=self._options,
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            ordered=ordered,
            return_exceptions=return_exceptions,
            progress=progress,
        )

    @keywords.explained("starmap", opt.OF_OPTIONS)
    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> Iterator[T]:
        """Like `map`, with each item unpacked as the arguments: `fn(*item)`."""
        return start_map(
            self._pool,
            fn,
            iterable,
            star=True,
            options=self._options,
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            ordered=ordered,
            return_exceptions=return_exceptions,
            progress=progress,
        )


class OptionsView(_Submitting, cf.Executor):
    """An executor with other options for what is handed over through it; the pool is the same."""

    def __init__(self, executor: WorkStealingExecutor, options: opt.Options) -> None:
        self._executor = executor
        self._pool = executor._pool
        self._options = options
        self._index = itertools.count()

    def options(self, **changes: Any) -> OptionsView:
        """Return a view with further changes."""
        return OptionsView(self._executor, opt.changed(self._options, changes))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut the executor down."""
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


class WorkStealingExecutor(_Submitting, cf.Executor):
    """A pool of worker processes that share their work by stealing.

    Drop-in for `concurrent.futures.ProcessPoolExecutor`, without a main guard.

    Args:
        max_workers: processes; None: one per CPU that this process may use (affinity and control
            group quota); 0: no processes, everything runs in the calling thread (for a debugger).
        mp_context: "forkserver" (the default on Linux: a clean template process that forks the
            workers), "spawn" or "fork" (one copy of this process as the template), or a context of
            `multiprocessing` with that method.
        initializer: called once in each worker before its first task, with `initargs`. If it fails
            at the first start, the pool fails with its error.
        preload: modules that the template imports once, so that workers have them at once.
        max_tasks_per_child: tasks after which a worker is replaced by a new process.
        max_rss: bytes of memory (resident, pages that it shares with others included) above which a
            worker is replaced, between two tasks.
        max_rss_hard: bytes above which a worker is ended even in a task, which alone fails, with
            WorkerDied whose `cause` is "memory"; within its retries it runs again with no other
            beside it. Both are looked at ten times a second while the pool has work.
        max_pending: tasks that may be accepted and not final.
        on_full: "wait" or "raise" PendingLimitReached. It never waits in a done-callback or in a
            running event loop: there it raises.
        aging: points of priority that a waiting task gains per second.
        settings: constants of the pool, for tests and tuning.

    Raises:
        ValueError, TypeError: an argument is out of range; the message says which and why.
        OSError: no descriptor, memory or process is left.
    """

    @keywords.explained("WorkStealingExecutor", opt.OF_OPTIONS)
    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        preload: tuple[str, ...] | list[str] = (),
        max_tasks_per_child: int | None = None,
        max_rss: int | None = None,
        max_rss_hard: int | None = None,
        max_pending: int | None = None,
        on_full: str = "wait",
        aging: float = 0.0,
        settings: Settings | None = None,
    ) -> None:
        making.refuse_while_a_worker_starts()
        made = making.checked(
            max_workers,
            mp_context,
            initializer,
            initargs,
            preload=preload,
            max_tasks_per_child=max_tasks_per_child,
            max_rss=max_rss,
            max_rss_hard=max_rss_hard,
            max_pending=max_pending,
            on_full=on_full,
            aging=aging,
            settings=settings,
        )
        self._options = opt.DEFAULT
        self._index = itertools.count()
        self._tokens: list[contextvars.Token[WorkStealingExecutor | None]] = []
        if not made.workers:
            from mpsched._pool.serial import SerialPool

            self._pool = SerialPool(made.initializer, made.initargs)
            return
        self._pool = Pool(made, self._bind)

    def _bind(self, pool: Pool) -> None:
        # A pool that is dropped finishes what it was given and ends its workers.
        finalizer = weakref.finalize(self, lifecycle.begin, pool)
        finalizer.atexit = False

    @property
    def state(self) -> str:
        """One of "accepting", "draining", "terminated" and "failed"."""
        if not isinstance(self._pool, Pool):
            return self._pool.state
        return lifecycle.state(self._pool)

    def options(self, **changes: Any) -> OptionsView:
        """Return an executor whose tasks run with other options.

        Keys and defaults: priority=0, timeout=None, grace=0.0, retries=0,
        retry_on=(WorkerDied, TaskTimeout), name=None, on_cancel="signal", rng=None,
        blocking=False. They apply to `submit` and `run`, and to each item of `map` and `starmap`.

        Raises:
            TypeError: an unknown key; the message names the nearest one.
        """
        return OptionsView(self, opt.changed(self._options, changes))

    def share(self, obj: T) -> Shared[T]:
        """Send a large object once; the handle, used as an argument, arrives as the object."""
        from mpsched.arrays import Shared

        return Shared(obj)

    def stats(self) -> PoolStats:
        """Return the counters of the pool and of each worker; the last ones once it has ended."""
        return self._pool.stats()

    def cancel_running(
        self, what: cf.Future[Any] | Iterator[Any], how: Literal["signal", "kill"] = "signal"
    ) -> CancelResult:
        """Cancel a task or a map of this pool, also if it runs; its children with it.

        `future.cancel()` does the same with the `on_cancel` of the task's options; here the caller
        says how, and gets an answer that tells a task that runs from one that is over. Any thread.

        Args:
            what: a future of this pool, or what its `map` or `starmap` returned. Of a map, nothing
                more starts; what its items have delivered can still be read, then CancelledError.
            how: what is done to what runs. "signal" sets `current_task().cancelled`, in all of its
                children too; the task may heed it or not. "kill" ends the workers that run it, and
                nobody else's work: its future is cancelled when they are gone.

        Returns:
            `CancelResult.PREVENTED` (the only true one): it has not started and never will.
            `REQUESTED`: it runs, and is asked or being ended. `TOO_LATE`: it is over.

        Raises:
            ValueError: it is of another pool; or `how` is something else.
            ForkedPool: this process was forked from the one that made the pool.
            TypeError: it is neither a future of a pool nor the result of a map.
        """
        if how not in {"signal", "kill"}:
            raise ValueError(f'how must be "signal" or "kill", not {how!r}')
        self._pool.check_process()
        if isinstance(what, Future):
            if what._pool is not self._pool:
                raise ValueError(f"{what!r} is of another pool: ask that one")
            return self._pool.cancel_running(what, how)
        answer = cancel_results(self._pool, what, how)
        if answer is None:
            raise (ValueError if is_of_map(what) else TypeError)(
                f"cancel_running() takes a future of this pool or what its map returned, not {what!r:.100}"
            )
        return answer

    def events(self, callback: Callable[[PoolEvent], object]) -> Subscription:
        """Call `callback(event)` for each thing that happens to the pool from now on.

        Workers that start, die or make room; tasks that are retried or were over their limit; children
        that cannot travel; a pool that fails: see `PoolEvent`. The same goes to the logger "mpsched", one
        line each.

        The callback runs in the pool's own thread, like a future's: while it runs no worker is
        replaced and no limit looked at, so it should be short. What it raises is logged. It may submit
        to the pool, and wait for that.

        Returns:
            Its subscription: `close()` ends it, as leaving a `with` block does.
        """
        if not callable(callback):
            raise TypeError(f"events() takes a function of one event, not {callback!r:.100}")
        return self._pool.events.subscribe(callback)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no new work, do what was accepted, end the workers. May be called again.

        Args:
            wait: return when nothing of the pool is left; else it ends by itself.
            cancel_futures: cancel what has not started.
        """
        if not isinstance(self._pool, Pool):
            self._pool.shutdown()
            return
        lifecycle.shutdown(self._pool, wait_for=wait, cancel_futures=cancel_futures)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until nothing of the pool is left; True if so."""
        if not isinstance(self._pool, Pool):
            return self._pool.state == "terminated"
        return lifecycle.wait(self._pool, timeout)

    def close(
        self,
        timeout: float | None = None,
        *,
        cancel_pending: bool = False,
        kill_after: float | None = None,
    ) -> CloseReport:
        """End the pool within a bound, whatever the tasks do.

        Args:
            timeout: seconds to drain; then what waits is cancelled and what runs is asked to stop. None:
                until everything is done.
            cancel_pending: cancel what waits at once.
            kill_after: seconds after `timeout` until workers are killed; None: return and report what
                still runs. A later `close` may end it.

        Returns:
            What became of each task that was open: which have finished, were cancelled, were ended.
        """
        if not isinstance(self._pool, Pool):
            self._pool.shutdown()
            return NOTHING
        return lifecycle.close(
            self._pool, timeout, cancel_pending=cancel_pending, kill_after=kill_after
        )

    def __enter__(self) -> Self:
        self._tokens.append(_open_pool.set(self))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tokens:
            token = self._tokens.pop()
            try:
                _open_pool.reset(token)
            except ValueError:  # left in another context (a callback, another task)
                _open_pool.set(None)
        if _is_interruption(exc_type):
            self._end_at_once()
            return
        try:
            self.shutdown()
        except KeyboardInterrupt:
            self._end_at_once()
            raise

    def _end_at_once(self) -> None:
        """Ctrl-C: nothing new starts, what runs is asked to stop and then ended."""
        self.close(timeout=0, cancel_pending=True, kill_after=lifecycle.GRACE_S)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import asyncio

        if self._tokens:
            self._tokens.pop()
            _open_pool.set(None)
        if _is_interruption(exc_type):
            await asyncio.to_thread(self._end_at_once)
            return
        # The loop goes on while the pool drains.
        self.shutdown(wait=False)
        try:
            await asyncio.to_thread(self.shutdown)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._end_at_once)
            raise

    def __getattr__(self, name: str) -> Any:
        if name in _REPLACED:
            raise AttributeError(
                f"WorkStealingExecutor has no {name}(): it is a concurrent.futures.Executor; "
                f"use {_REPLACED[name]}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> Any:
        return ExecutorInTask, (identity(getattr(self._pool, "segment", None)),)

    def __repr__(self) -> str:
        return f"<mpsched.WorkStealingExecutor workers={self._pool.width} state={self.state}>"


def run(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Return `fn(*args, **kwargs)`, run by a worker of the open pool, else of a default one.

    The default pool is made when first needed and closed at exit.
    """
    return _current().run(fn, *args, **kwargs)


def map(  # noqa: A001 - the public name, like the built-in that it resembles
    fn: Callable[..., T], /, *iterables: Iterable[Any], **options: Any
) -> list[T]:
    """Return `[fn(item) for item in ...]`, computed by the open pool, else by a default one.

    Takes the keywords of `WorkStealingExecutor.map`.
    """
    return list(_current().map(fn, *iterables, **options))


_default: WorkStealingExecutor | None = None
_default_lock = threading.Lock()


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _current() -> WorkStealingExecutor:
    global _default
    opened = _open_pool.get()
    if opened is not None and opened.state == "accepting":
        return opened
    with _default_lock:
        usable = (
            _default is not None
            and _default.state == "accepting"
            and not getattr(_default._pool, "forked", False)
        )
        if not usable:
            _default = WorkStealingExecutor()
        assert _default is not None
        return _default


def _is_interruption(kind: type[BaseException] | None) -> bool:
    """Whether a block is left by Ctrl-C, which in a coroutine of `asyncio.run` is a cancellation."""
    asyncio = sys.modules.get("asyncio")
    kinds = (KeyboardInterrupt,) if asyncio is None else (KeyboardInterrupt, asyncio.CancelledError)
    return kind is not None and issubclass(kind, kinds)
