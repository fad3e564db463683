"""What an executor is inside a task of its pool: a way to spawn children. See docs/forkjoin.md."""

from __future__ import annotations

import concurrent.futures as cf
import os
from typing import TYPE_CHECKING, Any, TypeVar

from mpsched._pool import options as opt
from mpsched._worker import context
from mpsched.errors import NestedSubmit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched._shm.segment import Segment

T = TypeVar("T")


class ExecutorInTask(cf.Executor):
    """What an executor is inside a task of its pool: what it is given are children of that task.

    Waiting for them never deadlocks, on one worker either: who waits helps. They are finished when the
    task is, joined or not.
    """

    def __init__(self, pool: int, options: dict[str, Any] | None = None) -> None:
        self._pool = pool
        self._options = options or {}

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> cf.Future[T]:
        """Spawn a child; return its future.

        Raises:
            NestedSubmit: the task runs in another pool, or this is no task.
            TypeError: `fn` cannot be called, or an option that a child cannot have was chosen.
        """
        self._check(fn)
        from mpsched._worker import forkfuture

        return forkfuture.submit(fn, args, kwargs)

    def _check(self, fn: Callable[..., Any]) -> None:
        """Refuse what cannot be a child here."""
        if not callable(fn):
            raise TypeError(not_callable(fn))
        worker = context._worker
        if worker is None or not self._pool or identity(worker.segment) != self._pool:
            raise NestedSubmit(
                f"{getattr(fn, '__qualname__', fn)!r} cannot be submitted here to the pool of another "
                "process: return what is to be done next and submit it there, or make a pool of its own"
            )
        refused = sorted(set(self._options) - {"name"})
        if refused:
            raise TypeError(
                f"a submit or map in a task makes children of that task, for which {', '.join(refused)} "
                "cannot be chosen: priority, limits and retries are those of the task. Submit from the "
                "program instead"
            )

    def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return `submit(fn, *args, **kwargs).result()`."""
        return self.submit(fn, *args, **kwargs).result()

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
        """Call `fn` with the items of the iterables, each call a child; otherwise as in the program.

        Who asks for a result may be the one who has to run it, so `timeout` is looked at between two
        results. `chunksize` changes nothing, and there is no `progress`. `mpsched.parallel.map` costs less
        for many small items.

        Raises:
            NestedSubmit, TypeError: As for `submit`; `progress` was asked for.
        """
        return self._map(
            fn,
            zip(*iterables, strict=False),
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            ordered=ordered,
            return_exceptions=return_exceptions,
            progress=progress,
            sized=all(hasattr(one, "__len__") for one in iterables),
        )

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
        return self._map(
            fn,
            (tuple(item) for item in iterable),
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            ordered=ordered,
            return_exceptions=return_exceptions,
            progress=progress,
            sized=hasattr(iterable, "__len__"),
        )

    def _map(
        self, fn: Callable[..., T], calls: Iterable[tuple[Any, ...]], **how: Any
    ) -> Iterator[T]:
        self._check(fn)
        from mpsched._worker import forkmap

        return forkmap.start(fn, calls, **how)

    def options(self, **changes: Any) -> ExecutorInTask:
        """Return a view whose children have a name; a child has no other option of its own."""
        opt.changed(opt.DEFAULT, changes)
        return ExecutorInTask(self._pool, self._options | changes)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the pool is the program's, and children end with their task."""

    def __reduce__(self) -> Any:
        return ExecutorInTask, (self._pool, self._options)


def identity(segment: Segment | None) -> int:
    """Return what tells a pool from every other one, in each of its processes; 0: it has ended."""
    try:
        return 0 if segment is None else os.fstat(segment.fd).st_ino
    except OSError:
        return 0


def not_callable(fn: object) -> str:
    """Return what to tell somebody who submits what cannot be called."""
    hint = "it was called already? write submit(fn, x), not submit(fn(x))"
    return f"the first argument must be a function, not {type(fn).__name__} ({fn!r:.100}); {hint}"
