"""SIGINT and SIGTERM of the command.

The handlers only note and wake: an exception at any line of the loop could tear a row. They raise
where the main thread may wait for a long time, in FUNC (`-j 0`) and in writing to a slow reader.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Signals"]


class Signals:
    """What the user has asked for while the run was on."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """Prepare; `catch` installs.

        Args:
            wake: Ends the main thread's wait. Called in a signal handler.
        """
        self._wake = wake
        self._may_raise = False
        self.received: list[int] = []

    @contextlib.contextmanager
    def catch(self) -> Iterator[None]:
        """Handle the signals within; in another thread than the main one, leave them alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._handle)
            yield
        finally:
            for caught, handler in before.items():
                signal.signal(caught, handler)

    @contextlib.contextmanager
    def may_raise(self, *, at_once: bool = True) -> Iterator[None]:
        """Within, a SIGINT, or a second signal of any kind, raises KeyboardInterrupt.

        Args:
            at_once: Whether one that has come before raises too. Not for the last writes of a run
                that is being given up: those only a further signal may cut short.
        """
        self._may_raise = True
        try:
            if at_once and self.abandon:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False

    @property
    def drain(self) -> bool:
        """Whether the run is to end when the running calls have."""
        return bool(self.received)

    @property
    def abandon(self) -> bool:
        """Whether the running calls are to be given up: SIGINT, or a second signal."""
        return signal.SIGINT in self.received or len(self.received) > 1

    @property
    def status(self) -> int | None:
        """Exit status by the first signal: 130 or 143; None if there was none."""
        return 128 + self.received[0] if self.received else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(number)
        self._wake()
        if self._may_raise and self.abandon:
            raise KeyboardInterrupt
