"""What the dispatcher sleeps on. See README.md, "Waiting"."""

from __future__ import annotations

import contextlib
import threading
from typing import final


@final
class Bell:
    """One thread sleeps, to the microsecond; any thread wakes it. A ring is kept until it is heard.

    A bare lock: its timed `acquire` is one system call on the monotonic clock, where a Condition makes a
    lock of its own for every wait.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the sleeper, or keep it from falling asleep. Any thread."""
        with contextlib.suppress(RuntimeError):  # rung already
            self._lock.release()

    def is_rung(self) -> bool:
        """Whether there is a ring, which is heard by that. The sleeper only."""
        return self._lock.acquire(blocking=False)

    def wait(self, seconds: float | None) -> bool:
        """Sleep until a ring, `seconds` at most (None: no limit). True if it was rung."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))


def no_slack() -> None:
    """Have the kernel wake this thread on time, and not with others up to 50 us later.

    What `prctl(PR_SET_TIMERSLACK, 1)` does, without loading `ctypes`. Where there is no such file
    (not Linux, or a sandbox) timers are that much later.
    """
    path = f"/proc/{threading.get_native_id()}/timerslack_ns"
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as slack:
        slack.write("1")
