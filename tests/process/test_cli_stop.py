"""How a run of the command ends early: kills, signals, full disks, readers that leave."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.support import cli_work
from tests.support.cli_work import calls
from tests.support.command import Command, positions, rows_of, run_command, whole_lines

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `work.py` in it."""
    return cli_work.write(tmp_path)


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


@pytest.mark.parametrize("option", [None, "--resume", "--overwrite"])
def test_cli_two_runs_do_not_write_one_file(folder: Path, option: str | None) -> None:
    """While a run has rows in OUT.partial, another one with the same OUT is refused."""
    words = ["map", "work.py:gated", "now", "slow", "--arg", f"folder={folder}"]
    words += ["--out", "rows.jsonl", "-j", "2"]
    partial = folder / "rows.jsonl.partial"
    with Command(folder, *words) as command:
        command.wait_until(lambda: whole_lines(partial) == 1 and len(calls(folder)) == 2)
        second = run_command(folder, *words, *([option] if option else []))
        assert second.rc == 2, second.err
        assert "another mpsched map is writing rows.jsonl.partial" in second.err
        (folder / "gate").touch()
        assert command.finish().rc == 0
    assert sorted(calls(folder)) == ["now", "slow"]
    assert positions(rows_of(folder / "rows.jsonl")) == [0, 1]


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
    # More than are given to the workers before the command reads what they have done.
    texts = [f"wait{n}" for n in range(1000)]
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
    assert 2 <= len(done) < 1000


def is_handled(pid: int) -> bool:
    """Whether the process has taken all signals that were sent to it."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        pending = [line.split()[1] for line in status if line.startswith(("SigPnd", "ShdPnd"))]
    return all(int(mask, 16) == 0 for mask in pending)


def test_cli_reduce_that_is_stopped_leaves_nothing(folder: Path) -> None:
    """Without its value --reduce has nothing to resume: SIGTERM, no files, and no traceback."""
    words = ["map", "work.py:gated", *(f"now{n}" for n in range(20)), "wait"]
    words += ["--arg", f"folder={folder}", "--reduce", "work.py:add", "--out", "rows.jsonl"]
    with Command(folder, *words, "-j", "2") as command:
        command.wait_until(lambda: "wait" in calls(folder))
        command.signal(signal.SIGTERM)
        command.wait_until(lambda: is_handled(command.pid))
        (folder / "gate").touch()
        result = command.finish()
    assert result.rc == 143
    assert "Traceback" not in result.err
    assert not list(folder.glob("rows.jsonl*"))


def test_cli_second_signal_does_not_wait(folder: Path) -> None:
    """A second SIGTERM gives up what runs."""
    words = ["map", "work.py:gated", "never", "--arg", f"folder={folder}", "-j", "1"]
    with Command(folder, *words) as command:
        command.wait_until(lambda: calls(folder))
        command.signal(signal.SIGTERM)
        command.wait_until(lambda: is_handled(command.pid))
        command.signal(signal.SIGTERM)
        assert command.finish(20).rc == 143


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


def test_cli_sigterm_to_all_processes_fails_no_input(folder: Path) -> None:
    """A job manager may send SIGTERM to the workers as well: their inputs have no rows."""
    words = ["map", "work.py:gated", "now", "never", "later"]
    words += ["--arg", f"folder={folder}", "--out", "rows.jsonl", "-j", "2"]
    with Command(folder, *words) as command:
        command.wait_until(lambda: whole_lines(folder / "rows.jsonl.partial") == 1)
        command.wait_until(lambda: len(calls(folder)) == 3)
        command.signal(signal.SIGTERM)
        command.wait_until(lambda: is_handled(command.pid))
        for pid in command.processes():
            if pid != command.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        assert command.finish(60).rc == 143
    assert [row["ok"] for row in rows_of(folder / "rows.jsonl.partial")] == [True]
    (folder / "gate").touch()
    assert run_command(folder, *words, "--resume").rc == 0
