"""A critical section of the parent that survives an exception at any line.

See README.md, "Sections". KeyboardInterrupt may strike between taking a lock and the `try` that
would release it, or in the `finally` itself. So a section remembers the frame that entered it; when
that frame does not run any more, whoever waits takes the section over, repairs what the journal of
the structure says, and goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@final
class Section:
    """A lock that is only ever tried, and whose loss is noticed.

    Use as `if section.try_enter(): try: ... finally: section.leave()`.
    """

    __slots__ = ("_count", "_frame", "_lock", "_thread")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frame: FrameType | None = None
        self._thread = 0
        self._count = 0

    def try_enter(self) -> bool:
        """Enter if nobody is inside; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        self._count += 1
        self._thread = threading.get_ident()
        self._frame = sys._getframe(1)
        return True

    def leave(self) -> None:
        """Leave; only the one who entered."""
        self._frame = None
        self._lock.release()

    def mine(self) -> bool:
        """Whether the calling thread is inside."""
        return self._lock.locked() and self._thread == threading.get_ident()

    def taken(self) -> bool:
        """Whether somebody is inside, or was thrown out of it."""
        return self._lock.locked()

    def recover(self) -> bool:
        """Open the section if whoever entered it was thrown out without leaving.

        Called by the supervisor when it finds the section taken for long. Returns True if it was
        opened; the next one who enters repairs.
        """
        count = self._count
        if not self._left_alone():
            return False
        # Between two bytecodes of the look, a thread may have left and entered again. It cannot be
        # caught at the same spot a second time without having been counted.
        time.sleep(0.002)
        if not self._left_alone() or self._count != count:
            return False
        self._frame = None
        self._lock.release()
        return True

    def _left_alone(self) -> bool:
        """Whether it is taken and no thread is on the way to give it back."""
        if not self._lock.locked():
            return False
        frame = self._frame
        running = sys._current_frames()
        try:
            if frame is None:
                # Taken and unmarked is right only inside of the two methods above (or of a signal
                # handler that runs on top of them).
                return not any(
                    one.f_code in _INSIDE and one.f_locals.get("self") is self
                    for top in running.values()
                    for one in _stack(top)
                )
            holder = running.get(self._thread)
            if holder is not None and any(one is frame for one in _stack(holder)):
                return False
            return self._frame is frame
        finally:
            # It holds this very frame, and with it the locals of all threads.
            running.clear()


def _stack(top: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = top
    while frame is not None:
        yield frame
        frame = frame.f_back


_INSIDE: Final = (Section.try_enter.__code__, Section.leave.__code__)
