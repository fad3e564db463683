"""`blocking()`, for a task that waits without computing, and `run_blocking`, for many small waits.

See README.md, "Blocking".
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar, final

from mpsched._shm import layout as lay
from mpsched._shm.words import fence
from mpsched._worker import depth, long, publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor
    from types import TracebackType

    from mpsched._worker.worker import Worker

T = TypeVar("T")

IO_THREADS = 32
"""Threads of a worker's pool for `run_blocking`: waits cost no core, so more than there are cores."""

_pool: ThreadPoolExecutor | None = None
_pool_pid = 0
_pool_lock = threading.Lock()
entered = False
"""Whether a block may be open."""
_generation = 0
"""Ends of tasks that left a block open."""


@final
class blocking:  # noqa: N801 - the public name is used like a keyword
    """While in this block, the task waits for something that is no child: a file, a socket, a lock.

        with mpsched.blocking():
            page = urllib.request.urlopen(address).read()

    Its children are given to others, and the pool runs a spare worker meanwhile, as long as there are
    spares (`stats().uncompensated` counts where there were none). Outside a task it does nothing.
    """

    __slots__ = ("_generation", "_worker")

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._generation = 0

    def __enter__(self) -> blocking:
        worker = long.worker_of_task()
        self._worker, self._generation = worker, _generation
        if worker is None:
            return self
        global entered
        entered = True
        publish.give_all()
        words, layout, block = worker.words, worker.config.layout, worker.block
        words[block + lay.B_BLOCKED] += 1
        if words[block + lay.B_BLOCKED] > 1:
            return self  # nested: the spare is there
        words[block + lay.B_STATE] = lay.BLOCKED
        others = sum(
            1 for other in range(layout.workers) if words[layout.block(other) + lay.B_BLOCKED]
        )
        if others > layout.spares:
            words[block + lay.B_UNCOMPENSATED] += 1
        # The supervisor looks at the words of all workers when it is rung.
        fence()
        # crash-point: block.said
        worker.collector_bell.wake()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _problem: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        worker, self._worker = self._worker, None
        if worker is None or self._generation != _generation:
            return  # its task ended before it (in a generator that was left alone)
        words, block = worker.words, worker.block
        # crash-point: block.over
        words[block + lay.B_BLOCKED] -= 1
        if not words[block + lay.B_BLOCKED]:
            words[block + lay.B_STATE] = lay.AWAKE


def end_all(worker: Worker) -> None:
    """Let a worker whose task has ended not count as blocked, whatever is left open."""
    global _generation, entered
    entered = False
    words, block = worker.words, worker.block
    if words[block + lay.B_BLOCKED]:
        _generation += 1
        words[block + lay.B_BLOCKED] = 0
        words[block + lay.B_STATE] = lay.AWAKE


def run_blocking(fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
    """Start a call that waits in a thread of this process, and return its future.

    For many small waits at once: a thread costs far less than a process, and the task goes on until it
    asks for the result. For one long wait use `blocking`, which gives the core to others; a function
    that computes should be spawned, because threads of one process share its interpreter.
    """
    before = threading.stack_size(depth.STACK_BYTES)  # see `deep_threads`; of address space only
    try:
        return _threads().submit(fn, *args, **kwargs)
    finally:
        threading.stack_size(before)


def deep_threads() -> int:
    """Return how many threads of `run_blocking` there may be; they stand a raised recursion limit."""
    if _pool is None or _pool_pid != os.getpid():
        return 0
    return sum(thread.is_alive() for thread in list(_pool._threads))  # noqa: SLF001 - it tells nobody


def _threads() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    global _pool, _pool_pid
    with _pool_lock:
        if _pool is None or _pool_pid != os.getpid():  # a fork has no threads
            _pool = ThreadPoolExecutor(IO_THREADS, thread_name_prefix="mpsched-io")
            _pool_pid = os.getpid()
        return _pool
