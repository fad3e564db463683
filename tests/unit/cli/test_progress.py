"""What the user sees, and signals."""

from __future__ import annotations

import io
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from mpsched.cli.engine import Outcome, Totals
from mpsched.cli.inputs import Item
from mpsched.cli.progress import Bar, Lines, Quiet, Screen, duration, open_progress
from mpsched.cli.rows import error_fragment
from mpsched.cli.signals import Signals
from mpsched.cli.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """A terminal without a descriptor."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> Iterator[Screen]:
    """A screen that writes into memory."""
    made = Screen()
    made.close()
    made._stream = Terminal()
    made.is_terminal = True
    yield made
    made.close()


def shown(screen: Screen) -> str:
    stream: Any = screen.stream
    text: str = stream.getvalue()
    return text


def test_progress_kind_follows_the_screen(screen: Screen) -> None:
    """A bar on a terminal, lines elsewhere and in front of a debugger, nothing with -q."""
    pytest.importorskip("tqdm")
    assert type(open_progress(screen, quiet=False, bar=True)) is Bar
    assert type(open_progress(screen, quiet=False, bar=False)) is Lines
    assert type(open_progress(screen, quiet=True, bar=True)) is Quiet
    screen.is_terminal = False
    assert type(open_progress(screen, quiet=False, bar=True)) is Lines


def test_progress_without_tqdm_there_are_lines(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain installation shows plain lines."""
    import sys

    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert type(open_progress(screen, quiet=False, bar=True)) is Lines


def test_progress_lines_come_at_their_time(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line per ten seconds, with rate, time left, failures, loads."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines(screen)
    lines.start(10, 110)
    now = 109.0
    lines.update(40, 0, 110, [])
    assert shown(screen) == ""
    now = 110.0
    lines.update(60, 2, 110, [0.5, 1.0])
    assert shown(screen) == "mpsched: 60 of 110 (54 %), 2 failed, 5/s, 10 s left, load 50% 100%\n"
    now = 120.0
    lines.update(110, 2, None, [0.5] * 20)
    assert shown(screen).splitlines()[1] == "mpsched: 110, 2 failed, 5/s, load 50% (50-50%)"


def test_progress_bar_shows_and_goes(screen: Screen) -> None:
    """The bar has failures and loads behind it; text comes above it; at the end it is gone."""
    pytest.importorskip("tqdm")
    bar = open_progress(screen, quiet=False, bar=True)
    bar.say("before")
    bar.start(0, None)
    bar.update(1, 1, 4, [0.5])
    bar.say("line one\nline two\n")
    bar.update(4, 1, 4, [1.0])
    bar.close()
    bar.say("after")
    text = shown(screen)
    assert text.startswith("before\n")
    assert "line one\nline two\n" in text
    assert "1 failed, load 50%" in text
    assert text.endswith("after\n")


def test_progress_screen_may_go_away(screen: Screen) -> None:
    """A terminal that is closed does not end the run."""

    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    screen._stream = Gone()
    screen.say("text")
    screen.say("text")
    assert screen.stream is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.87, "9.9 s"),
        (59.4, "59 s"),
        (59.9, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_progress_durations(seconds: float, text: str) -> None:
    """Times for people."""
    assert duration(seconds) == text


def test_tally_summary_says_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts by reason, the first failure, the speed-up."""
    monkeypatch.setattr("mpsched.cli.tally.time.monotonic", lambda: 101.5)
    tally = Tally(started=100.0)
    item = Item(0, "a", "a", 1)
    tally.add("a", Outcome(item, "ok", b"1", 2.0, 1))
    tally.add("b", Outcome(item, "error", error_fragment("E", "m", "", "crash"), None, 2))
    tally.add(["c"] * 3, Outcome(item, "call", error_fragment("F", "n", "", "error"), 1.0, 1))
    text = tally.summary(Totals(2, 5, 1), 10).splitlines()
    assert text[0] == "3 of 10 inputs in 1.5 s: 1 ok, 2 failed (1 crash, 1 error)"
    assert text[1] == "first failure: b: E: m"
    assert text[2].startswith("2 workers: 2.00 x the speed of one worker (3.0 s of work)")
    assert text[2].endswith("5 stolen, 1 died")


def test_signals_are_noted_and_wake() -> None:
    """The first SIGTERM drains, SIGINT or a second one abandons; nothing is raised."""
    woken: list[int] = []
    signals = Signals(lambda: woken.append(1))
    before = signal.getsignal(signal.SIGTERM)
    with signals.catch():
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.drain, signals.abandon, signals.status) == (True, False, 143)
        os.kill(os.getpid(), signal.SIGINT)
        assert (signals.drain, signals.abandon, signals.status) == (True, True, 143)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(woken) == 2


def test_signals_raise_only_where_they_may() -> None:
    """Within `may_raise` SIGINT raises at once, a first SIGTERM does not."""
    signals = Signals(lambda: None)
    with signals.catch():
        with signals.may_raise():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), signals.may_raise():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), signals.may_raise():
            pytest.fail("it was not raised at the beginning")
        with signals.may_raise(at_once=False):
            pass
        with pytest.raises(KeyboardInterrupt), signals.may_raise(at_once=False):
            os.kill(os.getpid(), signal.SIGINT)
    assert signals.status == 143
