"""File descriptors 1 and 2."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING

from mpsched.cli import capture
from mpsched.cli.capture import Tap, flush_all, lines_above, rows_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextlib.contextmanager
def streams_on_descriptors() -> Iterator[None]:
    """Let Python's streams write to descriptors 1 and 2, as they do outside of pytest.

    Not a fixture: pytest sets its own streams again when a test begins.
    """
    with (
        open(1, "w", closefd=False, encoding="utf-8") as out,
        open(2, "w", closefd=False, encoding="utf-8") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield


def print_in_every_way() -> None:
    """Print by Python, by a C library, by the descriptor."""
    print("python")
    print("error", file=sys.stderr)
    ctypes.CDLL(None).puts(b"library")
    os.write(1, b"descriptor\n")


def test_capture_rows_go_apart_from_prints(capfd: pytest.CaptureFixture[str]) -> None:
    """Within, what is printed is standard error; the rows have the old descriptor 1."""
    with streams_on_descriptors(), rows_apart() as rows:
        assert rows is not None
        print_in_every_way()
        flush_all()
        os.write(rows, b"row\n")
    shown = capfd.readouterr()
    assert shown.out == "row\n"
    assert sorted(shown.err.split()) == ["descriptor", "error", "library", "python"]
    with streams_on_descriptors():
        print("after")
    assert capfd.readouterr().out == "after\n"


def test_capture_standard_output_may_be_closed() -> None:
    """Without standard output there is no descriptor for rows, and prints do not fail."""
    saved = os.dup(1)
    os.close(1)
    try:
        with rows_apart() as rows:
            assert rows is None
            os.write(1, b"")
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def test_capture_tap_takes_one_call(capfd: pytest.CaptureFixture[str]) -> None:
    """A tap gets what is written between start and stop, and nothing of it goes elsewhere."""
    taken = []
    with streams_on_descriptors():
        capture.line_buffered()
        tap = Tap()
        try:
            for text in ("one", "two"):
                tap.start()
                print(text)
                print_in_every_way()
                taken.append(sorted(tap.stop().split()))
            print("outside")
        finally:
            tap.close()
    rest = ["descriptor", "error", "library"]
    assert taken == [[*rest, "one", "python"], [*rest, "python", "two"]]
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("outside\n", "")


def test_capture_tap_leaves_out_the_middle_of_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that prints gigabytes does not make a row of gigabytes."""
    monkeypatch.setattr(capture, "_KEPT", 100)
    tap = Tap()
    try:
        tap.start()
        os.write(1, b"a" * 500 + b"z" * 500)
        got = tap.stop()
    finally:
        tap.close()
    assert got.startswith("a" * 50)
    assert got.endswith("z" * 50)
    assert "900 bytes left out" in got


def test_capture_lines_are_shown_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """With a bar, printed text comes in whole lines, to its end, and nowhere else."""
    shown: list[str] = []
    with streams_on_descriptors(), lines_above(shown.append):
        capture.line_buffered()
        print_in_every_way()
        os.write(2, b"half ")
        os.write(1, b"a line\nand no end")
    assert sorted("\n".join(shown).split("\n")) == [
        "and no end",
        "descriptor",
        "error",
        "half a line",
        "library",
        "python",
    ]
    outside = capfd.readouterr()
    assert (outside.out, outside.err) == ("", "")


def test_capture_lines_end_though_a_process_keeps_the_pipe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A process that FUNC has left behind holds the pipe open; the command ends all the same."""
    shown: list[str] = []
    with lines_above(shown.append):
        kept = os.dup(1)
        os.write(1, b"said\n")
    try:
        assert shown == ["said"]
    finally:
        os.close(kept)
    capfd.readouterr()
