"""The lock of a ring of children, held. See README.md, "Fork-join"."""

from __future__ import annotations

import os
import sys
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, NoReturn, final

from mpsched._shm.layout import B_CONTENDED, B_LOCK_NS, B_LOCKS
from mpsched._shm.words import Damaged

if TYPE_CHECKING:
    from mpsched._deque.ring import Ring
    from mpsched._worker.worker import Worker


@final
class HeldRing:
    """What `Worker.ring` returns: no code of the user's runs meanwhile.

    There is one for each ring of a worker, used again and again: its two threads exclude each other.
    """

    __slots__ = ("_begun", "_ring", "_wait", "_worker")

    def __init__(self, worker: Worker, ring: Ring, *, wait: bool) -> None:
        self._worker = worker
        self._ring = ring
        self._wait = wait
        self._begun = 0

    def __enter__(self) -> bool:
        worker, ring = self._worker, self._ring
        me = get_ident()
        if worker.in_section == me:
            raise RuntimeError(
                "a finalizer or signal handler joins a child that another worker may have, in the "
                "middle of the scheduler's own work; let finalizers neither wait nor join"
            )
        worker.ring_lock.acquire()
        try:
            worker.in_section = me
            self._begun = monotonic_ns()
            if not worker.locks.try_acquire(ring.lock):
                worker.words[worker.block + B_CONTENDED] += 1
                if not self._wait:
                    return False
                worker.locks.acquire(ring.lock)
            worker.words[worker.block + B_LOCKS] += 1
            ring.repair()
        except BaseException as problem:
            self.__exit__(type(problem))
            raise
        return True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        worker = self._worker
        try:
            worker.locks.release(self._ring.lock)
        finally:
            worker.in_section = 0
            worker.words[worker.block + B_LOCK_NS] += monotonic_ns() - self._begun
            worker.ring_lock.release()
        if kind is Damaged:
            # In a task, which might catch it; and a join would come back here for ever.
            end_damaged()


def end_damaged(problem: Damaged | None = None) -> NoReturn:
    """End this process because of what it has found in the segment: `problem`, or what is being raised."""
    import traceback

    if problem is None:
        traceback.print_exc()
    else:
        traceback.print_exception(problem)
    sys.stderr.flush()
    os._exit(1)
