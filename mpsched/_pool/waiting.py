"""Waiting in a thread that KeyboardInterrupt may strike. See README.md, "Sections".

`threading.Condition` is entered and left in Python code, and `threading.Event` is built on it: an
interrupt there leaves the lock taken for ever, and with it whoever is to wake the others.
"""

from __future__ import annotations

import operator
import threading
import time
from typing import Any, Final, final

_LOOK_S: Final = 1.0
"""Seconds after which a waiting thread looks by itself: another one may have been interrupted."""


@final
class Condition(threading.Condition):
    """A condition that `with` enters and leaves in C, so that no exception can strike between."""

    # Properties in C that give the lock's own methods: `with` looks them up on the type.
    __enter__: Any = property(operator.attrgetter("_lock.__enter__"))
    __exit__: Any = property(operator.attrgetter("_lock.__exit__"))


@final
class Open:
    """Stands where the condition of something would be that cannot change any more.

    Nobody need exclude anybody, and there is nothing to wait for. One is enough for everybody: as it is
    no lock, threads that take several conditions in turn cannot block each other by it.
    """

    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Do nothing."""
        return True

    def release(self) -> None:
        """Do nothing."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_error: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once: what it would be waited for is the case."""
        return True

    def notify_all(self) -> None:
        """Do nothing."""

    notify = notify_all


@final
class Latch:
    """Opens once. Any thread may wait; one opens it."""

    __slots__ = ("_lock", "_open")

    def __init__(self) -> None:
        self._open = False
        self._lock = threading.Lock()  # free once it is open: waiters pass it on
        self._lock.acquire()

    def is_set(self) -> bool:
        """Whether it is open."""
        return self._open

    def set(self) -> None:
        """Open it; again does nothing."""
        if not self._open:
            self._open = True
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until it is open; True if so."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._open:
            left = _LOOK_S if deadline is None else min(deadline - time.monotonic(), _LOOK_S)
            if left <= 0:
                break
            if self._lock.acquire(timeout=left):
                self._lock.release()
        return self._open
