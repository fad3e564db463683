"""The command, as users run it: rows, files, standard input, a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import cli_work
from tests.support.cli_work import calls
from tests.support.command import Command, positions, rows_of, run_command
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `work.py` in it."""
    return cli_work.write(tmp_path)


def test_cli_prints_never_reach_the_rows(folder: Path) -> None:
    """What FUNC, its module, a C library and a raw write print is on standard error."""
    result = run_command(folder, "map", "work.py:noisy", "a", "b", "c", "-j", "2")
    assert result.rc == 0, result.err
    assert [row["result"] for row in result.rows] == ["a", "b", "c"]
    assert list(result.rows[0]) == ["i", "input", "ok", "result", "seconds", "attempts"]
    assert result.err.count("from C") == 3
    assert result.err.count("printed") == 3
    assert result.err.count("raw\n") == 3


def test_cli_capture_puts_prints_into_the_row(folder: Path) -> None:
    """With --capture the text of Python, C and a raw write is in `printed`, in no other place."""
    result = run_command(folder, "map", "work.py:noisy", "a", "b", "--capture", "-j", "1")
    assert result.rc == 0, result.err
    assert [set(row["printed"].splitlines()) for row in result.rows] == [
        {"printed a", "from C", "raw"},
        {"printed b", "from C", "raw"},
    ]
    assert "from C" not in result.err


def test_cli_failures_are_rows_and_the_run_goes_on(folder: Path) -> None:
    """An exception, an exit, a crash, a time limit and bytes are error rows; status 1."""
    inputs = ["ok", "raise", "exit", "crash", "hang", "bytes", "fine"]
    result = run_command(
        folder, "map", "work.py:fails", *inputs, "--timeout", "3", "--retries", "1"
    )
    assert result.rc == 1, result.err
    rows = result.rows
    assert [row["input"] for row in rows] == inputs
    assert [row["ok"] for row in rows] == [True, False, False, False, False, False, True]
    whys = [row["error"]["why"] for row in rows if not row["ok"]]
    assert whys == ["error", "error", "crash", "timeout", "encode"]
    assert [row["attempts"] for row in rows] == [1, 1, 1, 2, 2, 1, 1]
    assert rows[1]["error"]["type"] == "ValueError"
    assert rows[1]["error"]["message"] == "no good"
    assert 'raise ValueError("no good")' in rows[1]["error"]["traceback"]
    assert "SIGSEGV" in rows[3]["error"]["message"]
    assert "result.cover: bytes" in rows[5]["error"]["message"]


def test_cli_retry_errors_tries_an_exception_again(folder: Path) -> None:
    """With --retry-errors an exception is tried again, and the row counts the attempts."""
    for workers in ("1", "0"):
        for left in folder.glob("tries-*"):
            left.unlink()
        words = ["work.py:flaky", "a", "--arg", f"folder={folder}", "--retries", "2"]
        result = run_command(folder, "map", *words, "--retry-errors", "-j", workers)
        assert result.rc == 0, result.err
        assert result.rows[0]["attempts"] == 3


@pytest.mark.parametrize("workers", ["0", "2"])
def test_cli_first_call_that_cannot_import_stops_the_run(folder: Path, workers: str) -> None:
    """An ImportError in the first call ends the run with status 2 and no rows."""
    words = ["work.py:imports", "a", "b", "c", "--out", "rows.jsonl", "-j", workers]
    result = run_command(folder, "map", *words)
    assert result.rc == 2
    assert "there_is_no_such_module" in result.err
    assert not list(folder.glob("rows.jsonl*"))


def test_cli_init_runs_once_per_worker(folder: Path) -> None:
    """--init has run once in each worker before its first input."""
    result = run_command(
        folder, "map", "work.py:started", *"abcdef", "--init", "work.py:init", "-j", "2"
    )
    assert result.rc == 0, result.err
    assert {row["result"] for row in result.rows} == {1}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_cli_init_that_fails_is_status_2(folder: Path, workers: str) -> None:
    """A failing --init ends the run before anything ran, with its own message."""
    result = run_command(
        folder, "map", "work.py:upper", *"abcdef", "--init", "work.py:init_fails", "-j", workers
    )
    assert result.rc == 2
    assert "no model" in result.err
    assert result.out == ""


def test_cli_reduce_is_the_same_for_any_width(folder: Path) -> None:
    """The fold does not depend on the number of workers, and is in input order."""
    lines = "".join(f"{n}," + "\n" for n in range(100)).encode()
    (folder / "lines").write_bytes(lines)
    results = [
        run_command(
            folder, "map", "work.py:upper", "--lines", "lines", "--reduce", "work.py:add", "-j", j
        )
        for j in ("0", "1", "2")
    ]
    for result in results:
        assert result.rc == 0, result.err
        assert len(result.rows) == 1
        assert result.rows[0]["result"] == "".join(f"{n}," for n in range(100))
        assert result.rows[0]["inputs"] == 100


def test_cli_out_dir_writes_files_and_skips_those_that_are_there(folder: Path) -> None:
    """--out-dir mirrors the input's folders; --skip-existing runs only what has no file."""
    (folder / "data" / "a").mkdir(parents=True)
    (folder / "data" / "one.txt").write_bytes(b"1")
    (folder / "data" / "a" / "two.txt").write_bytes(b"22")
    words = ["work.py:copy", "data", "--files", "--out-dir", "made", "--suffix", ".dat"]
    result = run_command(folder, "map", *words)
    assert result.rc == 0, result.err
    assert {row["result"]["path"]: row["result"]["bytes"] for row in result.rows} == {
        "made/a/two.dat": 2,
        "made/one.dat": 1,
    }
    assert (folder / "made" / "a" / "two.dat").read_bytes() == b"22"
    (folder / "made" / "one.dat").unlink()
    again = run_command(folder, "map", *words, "--skip-existing")
    assert [row["attempts"] for row in again.rows] == [0, 1]
    assert (folder / "made" / "one.dat").read_bytes() == b"1"


def test_cli_torn_last_line_is_repaired(folder: Path) -> None:
    """A row that was cut short runs again, and spoils no other row."""
    words = ["map", "work.py:gated", *(f"now{n}" for n in range(6))]
    words += ["--arg", f"folder={folder}", "--out", "rows.jsonl", "-j", "1"]
    assert run_command(folder, *words).rc == 0
    whole = (folder / "rows.jsonl").read_bytes()
    (folder / "rows.jsonl").unlink()
    (folder / "rows.jsonl.partial").write_bytes(whole[:-30])
    (folder / "calls").unlink()
    result = run_command(folder, *words, "--resume")
    assert result.rc == 0, result.err
    assert calls(folder) == ["now5"]
    assert "cut short" in result.err
    assert positions(rows_of(folder / "rows.jsonl")) == list(range(6))


def test_cli_resume_runs_what_failed_and_what_changed(folder: Path) -> None:
    """--resume of a finished file runs failed inputs and files that have changed, no others."""
    for name in ("a", "b", "c"):
        (folder / name).write_text(name)
    words = ["map", "work.py:size_of", "a", "b", "c", "gone", "--out", "rows.jsonl"]
    assert run_command(folder, *words).rc == 1
    (folder / "b").write_text("changed")
    (folder / "gone").write_text("back")
    result = run_command(folder, *words, "--resume")
    assert result.rc == 0, result.err
    assert "1 failed, 1 changed" in result.err
    assert [row["result"] for row in rows_of(folder / "rows.jsonl")] == [1, 7, 1, 4]


def test_cli_out_that_exists_is_refused(folder: Path) -> None:
    """An existing OUT needs --resume or --overwrite; other arguments refuse --resume."""
    words = ["map", "work.py:slow", "a", "--out", "rows.jsonl"]
    assert run_command(folder, *words, "--arg", "seconds=0").rc == 0
    before = (folder / "rows.jsonl").read_bytes()
    refused = run_command(folder, *words, "--arg", "seconds=0")
    assert (refused.rc, "--resume" in refused.err) == (2, True)
    other = run_command(folder, *words, "--arg", "seconds=0.001", "--resume")
    assert (other.rc, "--arg seconds was '0', is '0.001'" in other.err) == (2, True)
    assert (folder / "rows.jsonl").read_bytes() == before
    assert run_command(folder, *words, "--arg", "seconds=0.001", "--overwrite").rc == 0


def test_cli_files_named_as_library_modules_disturb_nothing(folder: Path) -> None:
    """A `random.py` beside FUNC is FUNC's business, not that of the command or the pool."""
    for name in ("json", "random", "queue", "pickle", "copy"):
        (folder / f"{name}.py").write_text("def double(text):\n    return text * 2\n")
    program = "import sys; from mpsched.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, "map", "json.py:double", "a", "b", "-q"]
    result = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["result"] for line in result.stdout.splitlines()] == ["aa", "bb"]


def test_cli_fail_fast_stops_at_the_first_failure(folder: Path) -> None:
    """--fail-fast: status 1, and most inputs have no row."""
    result = run_command(
        folder, "map", "work.py:fails", "raise", *map(str, range(3000)), "--fail-fast", "-j", "1"
    )
    assert result.rc == 1
    assert sum(not row["ok"] for row in result.rows) == 1
    assert len(result.rows) < 3000


def on_terminal(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run with a terminal as standard error; return status, rows, and what the terminal got."""
    master, slave = pty.openpty()
    shown = b""
    try:
        with Command(folder, *words, stderr=slave) as command:
            os.close(slave)
            while select.select([master], [], [], 120)[0]:
                try:
                    data = os.read(master, 4096)
                except OSError:  # the last process that had it open is gone
                    break
                shown += data
            result = command.finish()
    finally:
        os.close(master)
    return result.rc, result.out, shown.decode("utf-8", "replace")


def test_cli_bar_is_on_the_terminal_and_prints_are_above_it(folder: Path) -> None:
    """With a terminal there is a bar, printed lines are whole, and the rows are untouched."""
    pytest.importorskip("tqdm")
    texts = [str(n) for n in range(40)]
    rc, out, shown = on_terminal(folder, "map", "work.py:noisy", *texts, "-j", "2")
    assert rc == 0, shown
    assert [json.loads(line)["result"] for line in out.splitlines()] == texts
    assert "it/s" in shown
    lines = [line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").split("\n")]
    for text in texts:
        assert f"printed {text}" in lines, repr(shown)
    assert any("40 inputs in" in line for line in lines)


def test_cli_without_terminal_there_is_no_carriage_return(folder: Path) -> None:
    """Into a log go plain lines only; -q says nothing."""
    result = run_command(folder, "map", "work.py:slow", *"abcd")
    assert "\r" not in result.err
    assert "4 inputs in" in result.err
    quiet = run_command(folder, "map", "work.py:slow", *"abcd", "-q")
    assert "inputs in" not in quiet.err


def test_cli_module_form_and_names_from_standard_input(folder: Path) -> None:
    """`package.module:name` finds the current folder; NUL-separated names come from stdin."""
    (folder / "pkg").mkdir()
    (folder / "pkg" / "mod.py").write_text("def twice(text):\n    return text * 2\n")
    result = run_command(folder, "map", "pkg.mod:twice", "-0", stdin=b"a b\0c\nd\0")
    assert result.rc == 0, result.err
    assert [row["result"] for row in result.rows] == ["a ba b", "c\ndc\nd"]


def test_cli_slow_input_holds_back_no_row(folder: Path) -> None:
    """A row comes out although the next line of standard input has not come yet."""
    out_reading, out_writing = os.pipe()
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    words = ["map", "work.py:upper", "--lines", "fifo", "-j", "1", "--unordered"]
    with Command(folder, *words, stdout=out_writing) as command:
        os.close(out_writing)
        with fifo.open("wb", buffering=0) as source, os.fdopen(out_reading, "rb") as rows:
            source.write(b"one\n" * 5)
            for _ in range(5):
                assert json.loads(rows.readline())["result"] == "ONE"
            source.write(b"two\n")
            assert json.loads(rows.readline())["result"] == "TWO"
        command.finish()
