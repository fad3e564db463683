"""What a worker was like when it was ready, and putting that back behind tasks.

See README.md, "What tasks leave behind". Main thread only, and only between tasks or items.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys

# `signal.getsignal` looks for a function among the members of an enumeration first, which takes 3 us.
from _signal import getsignal  # type: ignore[import-not-found]
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from mpsched._worker.worker import Worker

UNFIT: Final = 71
"""Exit code of a worker that a task has made unfit for others; STATE is RETIRED: it is no death."""

_LOOK_NS: Final = 1_000_000
_FILES_NS: Final = 10_000_000
_SIGNALS: Final = (
    "SIGINT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD",
    "SIGPIPE", "SIGWINCH", "SIGURG", "SIGIO",
)  # fmt: skip
_TIMERS: Final = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")


@final
class Baseline:
    """A worker's surroundings as its initializer left them.

    Attributes:
        due_ns: monotonic nanoseconds from which on the next look is worth its time.
        unfit: why this worker should make room for a new one; empty while it should not.
    """

    __slots__ = (
        "_collecting",
        "_collects",
        "_directory",
        "_environ",
        "_files",
        "_files_ns",
        "_handlers",
        "_limit",
        "_mask",
        "_profile",
        "_seen",
        "_streams",
        "_switching",
        "_timers",
        "_trace",
        "_variables",
        "_wakeup",
        "_worker",
        "due_ns",
        "unfit",
    )

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.due_ns = self._files_ns = 0
        self.unfit = ""
        self._directory = _directory()
        self._environ = os.environ
        self._variables = dict(os.environ)
        self._seen = dict(os.environ._data)  # type: ignore[attr-defined]  # noqa: SLF001
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._limit = sys.getrecursionlimit()
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._collects, self._collecting = gc.isenabled(), gc.get_threshold()
        self._switching = sys.getswitchinterval()
        self._wakeup = signal.set_wakeup_fd(-1)
        self._put_wakeup_back()
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        # None is a handler in C, which Python can neither compare nor set again.
        self._handlers = [
            (number, handler) for number in numbers if (handler := getsignal(number)) is not None
        ]
        timers = [getattr(signal, name) for name in _TIMERS if hasattr(signal, name)]
        self._timers = [which for which in timers if not signal.getitimer(which)[0]]
        self._mask = _mask()
        self._files = [
            (fd, identity)
            for fd in (0, 1, 2, *worker.descriptors())
            if (identity := _identity(fd)) is not None
        ]

    def look(self, now: int) -> None:
        """Put back what the tasks since the last look have left otherwise. Runs no user code but handlers.

        Args:
            now: monotonic nanoseconds.
        """
        self.due_ns = now + _LOOK_NS
        self._worker.flush_stdio()
        self._look_at_signals()
        if sys.gettrace() is not self._trace:
            sys.settrace(self._trace)
        if sys.getprofile() is not self._profile:
            sys.setprofile(self._profile)
        # What is larger than it was, a module may have asked for when a task imported it.
        if sys.getrecursionlimit() < self._limit:
            sys.setrecursionlimit(self._limit)
        if gc.isenabled() is not self._collects:
            (gc.enable if self._collects else gc.disable)()
        if gc.get_threshold() != self._collecting:
            gc.set_threshold(*self._collecting)
        if sys.getswitchinterval() != self._switching:
            sys.setswitchinterval(self._switching)
        self._look_at_streams()
        if self._directory is not None and _directory() != self._directory:
            # If it does not exist any more, nothing can be put back: later tasks find that out.
            with contextlib.suppress(OSError):
                os.chdir(self._directory)
        if os.environ is not self._environ:
            os.environ = self._environ  # noqa: B003 - the very object that was there before
        # Its own dict: a comparison of the mapping itself decodes every variable.
        if self._environ._data != self._seen:  # type: ignore[attr-defined]  # noqa: SLF001
            self._put_variables_back()
        if now >= self._files_ns:
            self._files_ns = now + _FILES_NS
            self._look_at_files()

    def hush(self) -> None:
        """Let no signal through any more, and end what a task has timed: this worker leaves."""
        # Once more if a handler raises whose signal came before they were blocked.
        for _ in range(2):
            with contextlib.suppress(BaseException):
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                for which in self._timers:
                    signal.setitimer(which, 0)

    def _look_at_signals(self) -> None:
        for number, handler in self._handlers:
            if getsignal(number) is not handler:
                break
        else:
            # The other two, which count the process's own time, are asked for less often.
            if not self._timers or not signal.getitimer(self._timers[0])[0]:
                return
        self._put_signals_back()

    def _put_signals_back(self) -> None:
        # One that comes between these lines must find either the task's handler or the old one.
        signal.pthread_sigmask(signal.SIG_BLOCK, [number for number, _ in self._handlers])
        try:
            for which in self._timers:
                signal.setitimer(which, 0)
            for number, handler in self._handlers:
                if getsignal(number) is not handler:
                    signal.signal(number, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _put_wakeup_back(self) -> None:
        # If the file is closed by now, there is none, which the call before has seen to.
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError, ValueError):
            signal.set_wakeup_fd(self._wakeup)

    def _look_at_streams(self) -> None:
        streams = sys.stdin, sys.stdout, sys.stderr
        if streams != self._streams:
            sys.stdin, sys.stdout, sys.stderr = self._streams
        for stream in self._streams[1:]:
            if getattr(stream, "closed", False):
                self.unfit = "a task has closed standard output or error"

    def _put_variables_back(self) -> None:
        environ = self._environ
        for name, value in self._variables.items():
            if environ.get(name) != value:
                environ[name] = value
        # New ones stay, and are not looked at again.
        self._seen = dict(environ._data)  # type: ignore[attr-defined]  # noqa: SLF001

    def _look_at_files(self) -> None:
        if _mask() != self._mask or any(signal.getitimer(which)[0] for which in self._timers):
            self._put_signals_back()
        # A signal would be written to whatever file has that number by then.
        self._put_wakeup_back()
        for fd, identity in self._files:
            found = _identity(fd)
            # 0, 1 and 2 a task may point elsewhere.
            if found is None or (fd > 2 and found != identity):
                self.unfit = f"a task has closed descriptor {fd}"
                return


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _mask() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _identity(fd: int) -> tuple[int, int] | None:
    """Return which file a descriptor is; None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
