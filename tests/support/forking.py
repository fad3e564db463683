"""Fork-join in one process: the stack without a worker, and somebody who takes children from its left end."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from mpsched._shm import layout as lay
from mpsched._worker import away, hot, long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._worker.worker import Worker


class Elsewhere:
    """Takes children off the stack's left end, and runs them as another worker would: plainly, later."""

    def __init__(self) -> None:
        self.taken = 0
        self._ended: dict[int, threading.Event] = {}

    def take(self, run: Callable[..., object], *, between: Callable[[], object] = int) -> bool:
        """Take the oldest child, call `between`, then give `run` its call if nobody took it back."""
        with away.fork_lock:
            record = away.leave()
            if record is None:
                return False
            self._ended[id(record)] = threading.Event()
            fn, x, rest = record.fn, record.x, record.rest
        between()
        with away.fork_lock:
            if record.kind != away.PUBLISHING:
                return True
            record.kind = away.PUBLISHED
        self.taken += 1
        try:
            value = run(fn, x, rest)
        except BaseException as problem:
            record.fail(problem)
        else:
            record.succeed(value)
        self._ended[id(record)].set()
        return True

    def wait(self, record: away.Away) -> None:
        """Stand for `away.wait`."""
        assert self._ended[id(record)].wait(20), "a child that was taken did not end"


def double(x: int) -> int:
    return 2 * x


def fail_if_odd(i: int) -> int:
    if i % 2:
        raise ValueError(i)
    return i


@contextmanager
def root(elsewhere: Elsewhere | None = None) -> Iterator[Callable[..., Any]]:
    """Give a function that runs its argument as a root that forks; nothing may be left in the end."""
    before = away.wait
    # What is asked of a worker by spawns that go the long way.
    home = SimpleNamespace(words=[0] * lay.BLOCK_WORDS, block=0, waits=[], current=0, run=1)
    long.enter(cast("Worker", home))
    if elsewhere is not None:
        away.wait = elsewhere.wait

    def run(fn: Callable[..., Any], *args: Any) -> Any:
        with away.fork_lock:  # else a thief that looks in vain may have the floor in its hand
            assert len(hot.stack) == 1, list(hot.stack)
        floor = away.newest()
        hot.careful, hot.forking = False, True
        try:
            record = away.Away(away.INLINE, long.with_keywords, (fn, args, {}))
            record.run()
            with away.fork_lock:
                assert isinstance(away.newest(), hot.Floor), list(hot.stack)
                assert not away.opened, away.opened
            return record.tell()
        finally:
            hot.careful, hot.forking = True, False
            assert floor is not None

    try:
        yield run
    finally:
        long._home = None
        away.wait = before
        hot.stack.clear()
        hot.stack.append(hot.Floor(0))
        away.opened.clear()
