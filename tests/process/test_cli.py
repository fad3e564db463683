"""The command, as users run it: real processes, kills, signals, full disks, terminals."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.support.command import Command, positions, rows_of, run_command, whole_lines
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

WORK = '''
from __future__ import annotations
import ctypes, os, pathlib, signal, sys, time
from pathlib import Path

print("imported")
STARTED = []

def upper(text):
    return text.upper()

def number(n: int):
    return n

def add(a, b):
    return a + b

def slow(text, seconds: float = 0.05):
    time.sleep(seconds)
    return text

def noisy(text):
    print("printed", text)
    ctypes.CDLL(None).puts(b"from C")
    os.write(1, b"raw\\n")
    return text

def fails(text):
    if text == "raise":
        raise ValueError("no good")
    if text == "exit":
        sys.exit("left")
    if text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if text == "hang":
        time.sleep(1000)
    if text == "bytes":
        return {"cover": b"abc"}
    return text

def imports(text):
    import there_is_no_such_module

def gated(text, folder: Path):
    """Ends for `now...` at once, for others when the gate is open; every start is noted."""
    with open(folder / "calls", "a") as calls:
        calls.write(text + "\\n")
    while not text.startswith("now") and not (folder / "gate").exists():
        time.sleep(0.01)
    return text

def flaky(text, folder: Path):
    with open(folder / ("tries-" + text), "a") as tries:
        tries.write("x")
    if (folder / ("tries-" + text)).stat().st_size < 3:
        raise ValueError("not yet")
    return text

def init():
    STARTED.append(os.getpid())

def init_fails():
    raise RuntimeError("no model")

def started(text):
    return len(STARTED)

def large(text):
    return "x" * 100_000

def size_of(data: bytes):
    return len(data)

def copy(data: bytes):
    return data
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `work.py` in it."""
    (tmp_path / "work.py").write_text(textwrap.dedent(WORK), "utf-8")
    return tmp_path


def calls(folder: Path) -> list[str]:
    """Return the texts for which `gated` was started."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


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
        folder, "map", "work.py:fails", *inputs, "--timeout", "1", "--retries", "1"
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
        folder, "map", "work.py:upper", "a", "--init", "work.py:init_fails", "-j", workers
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


def test_cli_sigkill_loses_nothing_that_had_ended(folder: Path) -> None:
    """Rows that end behind a slow first input survive SIGKILL; --resume runs the others only."""
    texts = ["slow", *(f"now{n}" for n in range(20))]
    (folder / "lines").write_text("".join(text + "\n" for text in texts))
    words = ["map", "work.py:gated", "--lines", "lines", "--arg", f"folder={folder}"]
    words += ["--out", "rows.jsonl", "-j", "2"]
    partial = folder / "rows.jsonl.partial"
    with Command(folder, *words) as command:
        command.wait_until(lambda: whole_lines(partial) == 20 and len(calls(folder)) == 21)
        command.signal(signal.SIGKILL)
        command.finish()
    assert sorted(row["input"] for row in rows_of(partial)) == sorted(texts[1:])
    assert not (folder / "rows.jsonl").exists()
    (folder / "gate").touch()
    (folder / "calls").unlink()
    result = run_command(folder, *words, "--resume")
    assert result.rc == 0, result.err
    assert calls(folder) == ["slow"]
    rows = rows_of(folder / "rows.jsonl")
    assert [row["input"] for row in rows] == texts
    assert positions(rows) == list(range(21))
    assert not partial.exists()


@pytest.mark.slow
def test_cli_any_kill_at_any_time_loses_no_row(folder: Path, rng: random.Random) -> None:
    """Killed and stopped at random, again and again: rows never become fewer, and all come."""
    texts = [str(n % 100) for n in range(300)]
    (folder / "lines").write_text("".join(text + "\n" for text in texts))
    words = ["map", "work.py:slow", "--lines", "lines", "--arg", "seconds=0.01"]
    words += ["--out", "rows.jsonl", "--resume", "-q", "-j", "2"]
    partial = folder / "rows.jsonl.partial"
    before: set[int] = set()
    for _ in range(10):
        with Command(folder, *words) as command:
            with contextlib.suppress(AssertionError):
                command.wait_until(lambda: False, timeout=rng.uniform(0.2, 1.5))
            command.signal(rng.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
            command.finish()
        if not partial.exists():
            continue
        whole = partial.read_bytes().splitlines(keepends=True)
        now = {json.loads(line)["i"] for line in whole if line.endswith(b"\n")}
        assert now >= before
        before = now
    assert run_command(folder, *words).rc == 0
    rows = rows_of(folder / "rows.jsonl")
    assert positions(rows) == list(range(300))
    assert [row["input"] for row in rows] == texts


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


def test_cli_reader_that_leaves_ends_the_run_quietly(folder: Path) -> None:
    """`| head -1`: the run ends though inputs are left, without a word about the pipe."""
    reading, writing = os.pipe()
    with Command(
        folder, "map", "work.py:slow", *map(str, range(2000)), "-q", stdout=writing
    ) as command:
        os.close(writing)
        with os.fdopen(reading, "rb") as head:
            first = json.loads(head.readline())
        result = command.finish()
    assert first["i"] == 0
    assert result.rc == 0
    assert "roken" not in result.err
    assert "Traceback" not in result.err


def test_cli_reader_that_leaves_is_noticed_between_rows(folder: Path) -> None:
    """A closed pipe ends the run while no row is there to be written."""
    reading, writing = os.pipe()
    words = ["work.py:gated", "now", "never", "--arg", f"folder={folder}", "-q"]
    with Command(folder, "map", *words, stdout=writing) as command:
        os.close(writing)
        with os.fdopen(reading, "rb") as head:
            head.readline()
        assert command.finish(60).rc == 0


def test_cli_ctrl_c_does_not_wait_for_a_reader_that_does_not_read(folder: Path) -> None:
    """A pipe that is full and never read: one Ctrl-C ends the run."""
    reading, writing = os.pipe()
    texts = [str(n) for n in range(40)]
    try:
        with Command(folder, "map", "work.py:large", *texts, stdout=writing) as command:
            os.close(writing)
            command.wait_until(lambda: unread(reading) >= 1 << 16)
            command.signal(signal.SIGINT, group=True)
            result = command.finish(20)
    finally:
        os.close(reading)
    assert result.rc == 130
    assert "Traceback" not in result.err


def unread(descriptor: int) -> int:
    """Return how many bytes a pipe holds."""
    number = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, number)
    return number[0]


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


@pytest.mark.parametrize("workers", ["0", "2"])
def test_cli_ctrl_c_stops_and_tells_how_to_go_on(folder: Path, workers: str) -> None:
    """SIGINT to the group: status 130, no process left, rows kept, the command that resumes."""
    words = ["map", "work.py:gated", "now1", "now2", "never", "also never"]
    words += ["--arg", f"folder={folder}", "--out", "rows.jsonl", "-j", workers]
    with Command(folder, *words) as command:
        command.wait_until(lambda: "never" in calls(folder))
        command.wait_until(lambda: whole_lines(folder / "rows.jsonl.partial") == 2)
        command.signal(signal.SIGINT, group=True)
        result = command.finish(20)
    assert result.rc == 130
    assert "Traceback" not in result.err
    assert "--resume" in result.err
    assert "2 of 4" in result.err
    (folder / "gate").touch()
    assert run_command(folder, *words, "--resume").rc == 0
    assert positions(rows_of(folder / "rows.jsonl")) == [0, 1, 2, 3]


def test_cli_sigterm_lets_running_calls_end(folder: Path) -> None:
    """SIGTERM: what runs gets its row, nothing else starts; status 143."""
    texts = [f"wait{n}" for n in range(10)]
    words = ["map", "work.py:gated", *texts, "--arg", f"folder={folder}", "-j", "2"]
    with Command(folder, *words, "--out", "rows.jsonl") as command:
        command.wait_until(lambda: len(calls(folder)) == 2)
        command.signal(signal.SIGTERM)
        command.wait_until(lambda: is_handled(command.pid))
        (folder / "gate").touch()
        result = command.finish()
    assert result.rc == 143
    done = {row["input"] for row in rows_of(folder / "rows.jsonl.partial")}
    assert done == set(calls(folder))
    assert 2 <= len(done) < 10


def is_handled(pid: int) -> bool:
    """Whether the process has taken all signals that were sent to it."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        pending = [line.split()[1] for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return all(int(mask, 16) == 0 for mask in pending)


def test_cli_second_signal_does_not_wait(folder: Path) -> None:
    """A second SIGTERM gives up what runs."""
    words = ["map", "work.py:gated", "never", "--arg", f"folder={folder}", "-j", "1"]
    with Command(folder, *words) as command:
        command.wait_until(lambda: calls(folder))
        command.signal(signal.SIGTERM)
        command.wait_until(lambda: is_handled(command.pid))
        command.signal(signal.SIGTERM)
        assert command.finish(20).rc == 143


def test_cli_fail_fast_stops_at_the_first_failure(folder: Path) -> None:
    """--fail-fast: status 1, and most inputs have no row."""
    result = run_command(
        folder, "map", "work.py:fails", "raise", *map(str, range(3000)), "--fail-fast", "-j", "1"
    )
    assert result.rc == 1
    assert sum(not row["ok"] for row in result.rows) == 1
    assert len(result.rows) < 3000


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skipped where it cannot be made."""
    disk = folder / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"no small file system: {made.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def check_full_disk(folder: Path, words: list[str], result_rc: int, err: str, out: Path) -> None:
    """What holds after OUT could not grow: status 3, whole rows, a resume that ends well."""
    assert result_rc == 3, err
    assert "cannot be written" in err
    assert "--resume" in err
    partial = rows_of(out.with_name(out.name + ".partial"))
    assert 0 < len(partial) < 10
    assert run_command(folder, *words, "--resume").rc in {0, 3}


def test_cli_full_disk_is_status_3_and_tears_no_row(folder: Path) -> None:
    """A full disk ends the run with status 3; what is in OUT.partial is whole rows."""
    with small_disk(folder) as disk:
        words = [
            "map",
            "work.py:large",
            *"abcdefghij",
            "--out",
            str(disk / "rows.jsonl"),
            "-j",
            "1",
        ]
        result = run_command(folder, *words)
        check_full_disk(folder, words, result.rc, result.err, disk / "rows.jsonl")


def test_cli_file_size_limit_is_status_3_and_tears_no_row(folder: Path) -> None:
    """A file that may not grow is as a full disk; lifted, --resume ends the run."""
    limit = 512 * 1024
    texts = list("abcdefghij")
    words = ["map", "work.py:large", *texts, "--out", "rows.jsonl", "-j", "0"]

    program = f"""
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        os.execv(sys.argv[1], sys.argv[1:])
    """
    prefix = [sys.executable, "-c", textwrap.dedent(program)]
    result = run_command(folder, *words, prefix=prefix)
    check_full_disk(folder, words, result.rc, result.err, folder / "rows.jsonl")
    assert [row["input"] for row in rows_of(folder / "rows.jsonl")] == texts


def test_cli_full_standard_output_is_status_3(folder: Path) -> None:
    """Rows that standard output does not take end the run with status 3."""
    with open("/dev/full", "wb") as full:
        result = run_command(folder, "map", "work.py:upper", "a", stdout=full)
    assert result.rc == 3
    assert "standard output cannot be written" in result.err


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
    assert "40" in shown
    assert "it/s" in shown or "?it" in shown
    lines = [line.rpartition("\r")[2] for line in shown.replace("\r\n", "\n").split("\n")]
    for text in texts:
        assert f"printed {text}" in lines
    assert "inputs in" in lines[-3] or any("40 inputs in" in line for line in lines)


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
    reading, writing = os.pipe()
    out_reading, out_writing = os.pipe()
    with open(os.devnull, "rb"):
        pass
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    os.close(reading)
    os.close(writing)
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
