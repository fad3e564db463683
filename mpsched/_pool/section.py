"""A critical section of the parent that survives an exception at any line.

See README.md, "Sections". KeyboardInterrupt may strike between taking a lock and the `try` that
would release it, or in the `finally` itself. So a section remembers the frame that entered it; when
that frame does not run any more, whoever waits takes the section over, repairs what the journal of
the structure says, and goes on.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import FrameType


@final
class Section:
    """A lock that is only ever tried, and whose loss is noticed.

    Use as `if section.try_enter(): try: ... finally: section.leave()`.
    """

    __slots__ = ("_frame", "_lock", "_suspect", "_thread")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frame: FrameType | None = None
        self._thread = 0
        self._suspect = False

    def try_enter(self) -> bool:
        """Enter if nobody is inside; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        self._thread = threading.get_ident()
        self._frame = sys._getframe(1)
        return True

    def leave(self) -> None:
        """Leave; only the one who entered."""
        self._frame = None
        self._suspect = False
        self._lock.release()

    def recover(self) -> bool:
        """Open the section if whoever entered it was thrown out without leaving.

        Called by the collector when it finds the section taken for long. Returns True if it was
        opened; the next one who enters repairs.
        """
        if not self._lock.locked():
            self._suspect = False
            return False
        frame = self._frame
        if frame is None:
            # Entered and not yet marked, or leaving: twice in a row, it was thrown out in between.
            if not self._suspect:
                self._suspect = True
                return False
        else:
            running = sys._current_frames().get(self._thread)
            while running is not None:
                if running is frame:
                    return False
                running = running.f_back
            if self._frame is not frame:
                return False
        self._frame = None
        self._suspect = False
        self._lock.release()
        return True
