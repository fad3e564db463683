"""What a task can ask about itself: `current_task()` and `current_worker()`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, final

from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from typing import Protocol

    from mpsched._worker.worker import Worker

    class Table(Protocol):
        """The words of entries, as far as a task may look at them."""

        @property
        def ident(self) -> Sequence[int] | memoryview: ...
        @property
        def cancel(self) -> Sequence[int] | memoryview: ...
        @property
        def started(self) -> Sequence[int] | memoryview: ...

    class Host(Protocol):
        """Who runs tasks: a worker, or a pool without workers."""

        @property
        def index(self) -> int: ...
        @property
        def incarnation(self) -> int: ...
        @property
        def pid(self) -> int: ...
        @property
        def limit_ns(self) -> int: ...
        @property
        def stolen(self) -> Sequence[int]: ...
        @property
        def table(self) -> Table: ...
        def context(self) -> TaskContext | None: ...


_worker: Worker | None = None
_here = threading.local()


def _enter(worker: Worker) -> None:
    """Make `worker` the one of this process. Called once, by its main thread."""
    global _worker
    _worker = worker


def run_here(host: Host | None) -> Host | None:
    """Make `host` the one of this thread: it runs tasks without a worker. Returns the one before."""
    before: Host | None = getattr(_here, "host", None)
    _here.host = host
    return before


def task_here() -> TaskContext | None:
    """Return the context of the task that runs in this thread without a worker; else None."""
    host: Host | None = getattr(_here, "host", None)
    return None if host is None else host.context()


def _host() -> Host | None:
    return getattr(_here, "host", None) or _worker


@final
class Stream:
    """The random numbers of one task or child, and the numbers of its children.

    Attributes:
        key: what it depends on; None: on chance.
        spawned: children so far, which are numbered from 1 on.
    """

    __slots__ = ("_rng", "key", "spawned")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.spawned = 0
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """The generator, made when first asked for."""
        if self._rng is None:
            import random

            self._rng = random.Random(self.key)  # noqa: S311 - for simulations, not for secrets
        return self._rng

    def next_key(self) -> str:
        """Return the key of the next child."""
        self.spawned += 1
        return self.key_of(self.spawned)

    def key_of(self, number: int) -> str:
        """Return the key of a child: as long for the deepest one as for the first."""
        import hashlib

        return hashlib.blake2b(f"{self.key}/{number}".encode(), digest_size=16).hexdigest()


@final
class TaskContext:
    """The running task, as itself sees it.

    Attributes:
        task_id: number of the task in its pool; of a scheduled one the id that it was scheduled under, in
            a worker as its repr unless it is of plain values (str, numbers, bytes, None, tuples of them).
        attempt: 1 for the first run, one more for each retry.
        version: the schedule's version; 0 for a task that was submitted, not scheduled.
    """

    __slots__ = ("_handle", "_ident", "_stream", "_worker", "attempt", "task_id", "version")

    task_id: Any

    def __init__(
        self, worker: Host, handle: int, ident: int, attempt: int, seed: str | None
    ) -> None:
        self._worker = worker
        self._handle = handle
        self._ident = ident
        self._stream = Stream(seed)
        self.task_id = ident
        self.attempt = attempt
        self.version = 0

    def is_of(self, ident: int, attempt: int) -> bool:
        """Whether it is that of an attempt of the task `ident` of the pool."""
        return self._ident == ident and self.attempt == attempt

    @property
    def cancelled(self) -> bool:
        """Whether this task was asked to stop (by `Future.cancel`, a limit or a shutdown)."""
        host = self._worker
        cancel = host.table.cancel
        if host.table.ident[self._handle] == self._ident and cancel[self._handle]:
            return True
        # What runs here is a child, or several nested ones, whose scopes may have asked them.
        return any(cancel[entry] for entry in host.stolen)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Wait until this task is asked to stop, `timeout` seconds at most; True if it was.

        To be used in place of `time.sleep`. Answers some 20 ms after the request, or sooner.
        """
        until = None if timeout is None else time.monotonic() + timeout
        nap = 0.001
        while not self.cancelled:
            left = nap if until is None else min(nap, until - time.monotonic())
            if left <= 0:
                return self.cancelled
            time.sleep(left)
            nap = min(2 * nap, 0.02)
        return True

    def raise_if_cancelled(self) -> None:
        """Raise `TaskCancelled` if this task was asked to stop."""
        if self.cancelled:
            raise TaskCancelled(f"task {self.task_id!r:.60} was asked to stop")

    @property
    def deadline(self) -> float | None:
        """`time.monotonic()` at which the task's time limit ends it; None without a limit."""
        limit = self._worker.limit_ns
        if not limit:
            return None
        return (self._worker.table.started[self._handle] + limit) / 1e9

    @property
    def rng(self) -> random.Random:
        """A random generator of the task's own; in a child, one of the child's own.

        With `options(rng=seed)` it depends on the seed, on the task's place in the batch and on the
        child's among the children of its parent alone, in a loop of `mpsched.parallel` on the item's index;
        not on which worker runs it nor on what ran before.
        """
        return self._stream.rng

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "the context of a task cannot leave its worker; return ctx.task_id or another value"
        )

    def __repr__(self) -> str:
        return f"<TaskContext task_id={self.task_id!r:.60} attempt={self.attempt}>"


@final
class WorkerContext:
    """The worker process that a task runs in.

    Attributes:
        index: 0 to n-1; a replacement of a dead worker keeps it.
        incarnation: how many processes had this index before.
        pid: process id.
    """

    __slots__ = ("incarnation", "index", "pid")

    def __init__(self, index: int, incarnation: int, pid: int) -> None:
        self.index = index
        self.incarnation = incarnation
        self.pid = pid

    def __repr__(self) -> str:
        return f"<WorkerContext index={self.index} incarnation={self.incarnation} pid={self.pid}>"


def current_task() -> TaskContext | None:
    """Return the context of the task that runs in this process's main thread; None outside one.

    With `max_workers=0` the task runs in the thread that submits it.
    """
    host = _host()
    return None if host is None else host.context()


def current_worker() -> WorkerContext | None:
    """Return the worker that this process is; None in any other process."""
    host = _host()
    if host is None:
        return None
    return WorkerContext(host.index, host.incarnation, host.pid)


def now_ns() -> int:
    """Return the monotonic clock that STARTED words use, in nanoseconds; the same in all processes."""
    return time.monotonic_ns()
