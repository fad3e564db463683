"""What the user sees while it runs, and the summary: a bar on a terminal with tqdm, else lines."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bar", "Lines", "Progress", "Quiet", "Screen", "duration", "open_progress"]

_LINE_SECONDS: Final = 10.0  # between two plain lines
_LOAD_SECONDS: Final = 1.0  # between two looks at the workers
_EACH: Final = 8  # workers whose load is shown one by one


class Progress(Protocol):
    """Takes what has happened and shows it. All but `say` are called by the main thread."""

    def start(self, done: int, total: int | None) -> None:
        """Begin, with `done` rows that an earlier run has made."""

    def update(self, done: int, failed: int, total: int | None, loads: Sequence[float]) -> None:
        """Show the state; cheap enough to be called at every change.

        Args:
            done: Inputs that have ended, failed ones among them.
            failed: Inputs that have failed.
            total: Number of inputs, or a guess; None if there is none.
            loads: Share of the time since the last look that each worker was busy, 0 to 1.
        """

    def say(self, text: str) -> None:
        """Show text, whole lines, above what is shown. Any thread."""

    def close(self) -> None:
        """Take away what is shown for the time being."""


class Screen:
    """Standard error, under a descriptor that only the command has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_terminal = False
        self._stream: TextIO | None = None
        try:
            self._stream = open(  # noqa: SIM115 - closed in `close`
                os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1
            )
            self.is_terminal = self._stream.isatty()
        except OSError:
            pass  # standard error is closed: nobody looks

    @property
    def stream(self) -> TextIO | None:
        """Return the stream, for a bar; None if standard error is closed."""
        return self._stream

    def has_width(self) -> bool:
        """Whether the terminal says how wide it is; some have 0 columns, and would show nothing."""
        try:
            return self._stream is not None and os.get_terminal_size(self._stream.fileno())[0] > 0
        except OSError:
            return False

    def say(self, text: str) -> None:
        """Write whole lines. Any thread."""
        if self._stream is None:
            return
        with self._lock:
            try:
                self._stream.write(text.rstrip("\n") + "\n")
            except OSError:
                self._stream = None  # the terminal is gone; the run is worth more than its news

    def close(self) -> None:
        """Close the descriptor."""
        if self._stream is not None:
            with contextlib.suppress(OSError):  # see `say`
                self._stream.close()


class Quiet:
    """Shows nothing but what is said."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def start(self, done: int, total: int | None) -> None:
        """Show nothing."""

    def update(self, done: int, failed: int, total: int | None, loads: Sequence[float]) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Write whole lines."""
        self._screen.say(text)

    def close(self) -> None:
        """Do nothing."""


class Lines(Quiet):
    """A line every ten seconds: for logs, and where there is no tqdm."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._started = self._shown = time.monotonic()
        self._before = 0

    def start(self, done: int, total: int | None) -> None:
        """Begin to count the time."""
        self._started = self._shown = time.monotonic()
        self._before = done

    def update(self, done: int, failed: int, total: int | None, loads: Sequence[float]) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if now - self._shown < _LINE_SECONDS:
            return
        self._shown = now
        rate = (done - self._before) / (now - self._started)
        parts = [f"{done:,}"]
        if total:
            parts = [f"{done:,} of {total:,} ({done * 100 // total} %)"]
        if failed:
            parts.append(f"{failed:,} failed")
        parts.append(f"{rate:.3g}/s")
        if total and rate > 0:
            parts.append(f"{duration((total - done) / rate)} left")
        if loads:
            parts.append(f"load {_loads(loads)}")
        self.say("mpsched: " + ", ".join(parts))


class Bar:
    """tqdm's bar, with failures and loads behind it."""

    def __init__(self, screen: Screen, tqdm: Any) -> None:
        # tqdm would start a thread to watch, and a semaphore for other processes.
        tqdm.monitor_interval = 0
        tqdm.set_lock(threading.RLock())
        self._screen = screen
        self._tqdm = tqdm
        self._bar: Any = None

    def start(self, done: int, total: int | None) -> None:
        """Show the bar."""
        self._bar = self._tqdm(
            total=total,
            initial=done,
            file=self._screen.stream,
            dynamic_ncols=self._screen.has_width(),
            smoothing=0.1,
            leave=False,
        )

    def update(self, done: int, failed: int, total: int | None, loads: Sequence[float]) -> None:
        """Move the bar."""
        if self._bar is None:
            return
        parts = [f"{failed:,} failed"] if failed else []
        if loads:
            parts.append(f"load {_loads(loads)}")
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.total = total if total is None else max(total, done)
        if not self._bar.update(done - self._bar.n):
            now = time.monotonic()
            # Time goes on although nothing ends: the clock in the bar must too.
            if now - getattr(self, "_refreshed", 0.0) > _LOAD_SECONDS:
                self._refreshed = now
                self._bar.refresh()

    def say(self, text: str) -> None:
        """Write whole lines above the bar."""
        if self._bar is None:
            self._screen.say(text)
        else:
            self._tqdm.write(text.rstrip("\n"), file=self._screen.stream)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def open_progress(screen: Screen, *, quiet: bool, bar: bool) -> Progress:
    """Return what fits the screen.

    Args:
        screen: Standard error.
        quiet: Whether to show nothing.
        bar: Whether a bar would do no harm; in front of a debugger it would.
    """
    if quiet:
        return Quiet(screen)
    if bar and screen.is_terminal and hasattr(select, "poll"):  # `lines_above` waits for a pipe
        try:
            from tqdm import tqdm
        except ImportError:
            return Lines(screen)
        return Bar(screen, tqdm)
    return Lines(screen)


def duration(seconds: float) -> str:
    """Return a time for people: `0.8 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _loads(loads: Sequence[float]) -> str:
    percents = [round(100 * load) for load in loads]
    if len(percents) <= _EACH:
        return " ".join(f"{percent}%" for percent in percents)
    mean = round(sum(percents) / len(percents))
    return f"{mean}% ({min(percents)}-{max(percents)}%)"
