"""The whole command in this process, with `-j 0`."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mpsched.cli import main
from mpsched.cli.run import run_map
from tests.support.fake_executor import FakeExecutor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCE = """
from __future__ import annotations
import asyncio
import dataclasses
import enum
import pdb
from pathlib import Path

SEEN = []

@dataclasses.dataclass
class Point:
    x: int
    y: float

def upper(text):
    return text.upper()

def kinds(path: Path, n: int = 0):
    return [type(path).__name__, n]

def numbers(ns: list[int]):
    return sum(ns)

def row(row: dict):
    return row["a"]

def content(data: bytes):
    return len(data)

def ranged(path, start, stop):
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start).decode()

def sweep(x, y=2, out: Path = None):
    return [x * y, type(out).__name__]

def mutates(text, found=None):
    found.append(text)
    return found

async def later(text):
    await asyncio.sleep(0)
    return text

def point(text):
    return Point(int(text), float("nan"))

def picky(text):
    SEEN.append(text)
    if text == "bad":
        raise ValueError("bad one")
    return text

def wrong_call(text):
    return len(text, text)

def missing(text):
    import no_such_module_at_all

def leaves(text):
    raise SystemExit("left")

def interrupts(text):
    SEEN.append(text)
    raise KeyboardInterrupt

def quits(text):
    import bdb
    raise bdb.BdbQuit

def generator(text):
    yield text

def add(a, b):
    return a + b

def bad_fold(a, b):
    raise RuntimeError("cannot fold")

class Shape:
    @staticmethod
    def area(text):
        return int(text) ** 2
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `work.py` in it."""
    (tmp_path / "work.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Run = "Callable[..., tuple[int, list[dict[str, Any]], str]]"


@pytest.fixture
def run(place: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the command; return status, rows, standard error."""

    def go(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        capfd.readouterr()
        status = main(["map", *words, "-j", "0"])
        shown = capfd.readouterr()
        return status, [json.loads(line) for line in shown.out.splitlines()], shown.err

    return go


def results(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["result"] for row in rows]


def test_run_forms_of_calling(run: Callable[..., Any], place: Path) -> None:
    """Each annotation and option passes what it says."""
    (place / "lines").write_text("1\n2\n3\n")
    (place / "dicts").write_text('{"a": 7}\n')
    (place / "runs").write_text('{"x": 3}\n{"x": 4, "y": 5, "out": "p"}\n')
    cases = [
        (["work.py:upper", "a"], ["A"]),
        (["work:upper", "a"], ["A"]),
        (["work.upper", "a"], ["A"]),
        (["work.py:Shape.area", "3"], [9]),
        (["work.py:kinds", "a", "--arg", "n=3"], [["PosixPath", 3]]),
        (["work.py:numbers", "--lines", "lines", "--batch", "2"], [3, 3]),
        (["work.py:row", "--lines", "dicts"], [7]),
        (["work.py:content", "lines"], [6]),
        (["work.py:content", "--lines", "lines"], [1, 1, 1]),
        (["work.py:ranged", "lines", "--block", "3"], ["1\n2\n", "3\n"]),
        (["work.py:sweep", "--kwargs", "runs"], [[6, "NoneType"], [20, "PosixPath"]]),
        (
            ["work.py:sweep", "--kwargs", "runs", "--arg", "y=10"],
            [[30, "NoneType"], [20, "PosixPath"]],
        ),
        (["work.py:later", "a"], ["a"]),
        (["work.py:point", "3"], [{"x": 3, "y": None}]),
        (["work.py:mutates", "a", "b", "--arg", "found=[]"], [["a"], ["b"]]),
    ]
    for words, expected in cases:
        status, rows, err = run(*words)
        assert (status, results(rows)) == (0, expected), (words, err)


def test_run_failures_have_status_1(run: Callable[..., Any]) -> None:
    """An error row for each failure, the run goes on."""
    status, rows, err = run("work.py:picky", "a", "bad", "b")
    assert status == 1
    assert [row["ok"] for row in rows] == [True, False, True]
    assert rows[1]["error"]["type"] == "ValueError"
    assert rows[1]["error"]["why"] == "error"
    assert "task.py" not in rows[1]["error"]["traceback"]
    assert "first failure: bad: ValueError: bad one" in err


def test_run_exit_in_func_is_an_error_row(run: Callable[..., Any]) -> None:
    """`sys.exit()` in FUNC ends its call, not the run."""
    status, rows, _ = run("work.py:leaves", "a", "b")
    assert status == 1
    assert [row["error"]["type"] for row in rows] == ["SystemExit", "SystemExit"]


def test_run_input_that_does_not_convert_is_an_error_row(
    run: Callable[..., Any], place: Path
) -> None:
    """A line that is no number, no JSON, no file."""
    for words in (
        ["work.py:numbers", "--batch", "1", "x"],
        ["work.py:row", "x"],
        ["work.py:row", "3"],
        ["work.py:content", "there is no such file"],
    ):
        status, rows, _ = run(*words)
        assert (status, [row["ok"] for row in rows]) == (1, [False])


def test_run_generator_is_told_what_to_return(run: Callable[..., Any]) -> None:
    """A generator has no JSON form."""
    status, rows, _ = run("work.py:generator", "a")
    assert status == 1
    assert rows[0]["error"]["why"] == "encode"
    assert "return list(...)" in rows[0]["error"]["message"]


def test_run_first_call_that_cannot_be_made_stops(run: Callable[..., Any]) -> None:
    """An import that fails, or arguments that C code refuses: status 2, no rows."""
    status, rows, err = run("work.py:missing", "a", "b")
    assert (status, rows) == (2, [])
    assert "no_such_module_at_all" in err
    status, rows, err = run("math:sqrt", "a", "b")
    assert (status, rows) == (2, [])
    assert "must be real number" in err
    status, rows, err = run("work.py:wrong_call", "a", "b")  # inside FUNC: an error of the input
    assert (status, len(rows)) == (1, 2)


def test_run_usage_is_status_2_and_writes_nothing(run: Callable[..., Any], place: Path) -> None:
    """Whatever is wrong before the first call is status 2; --out is not touched."""
    for words in (
        ["work.py:nothing", "a"],
        ["work.py:upper", "*.zip"],
        ["work.py:upper", "a", "--arg", "x=1"],
        ["work.py:upper", "a", "--init", "work.py:upper"],
        ["work.py:upper", "a", "--reduce", "work.py:upper"],
        ["work.py:missing", "a", "--out", "rows"],
        ["work.py:upper", "a", "--out", "no/such/folder/rows"],
        ["work.py:upper", "a", "--out", "."],
        ["work.py:upper", "a", "--out-dir", "work.py"],
    ):
        status, rows, err = run(*words)
        assert (status, rows) == (2, []), (words, err)
        assert "Traceback (most recent call last):\n  File" not in err or "no_such_module" in err
    assert sorted(os.listdir(place)) == ["__pycache__", "work.py"] or os.listdir(place) == [
        "work.py"
    ]


def test_run_fail_fast_and_max_failures(run: Callable[..., Any]) -> None:
    """The run stops at the number given, with status 1."""
    words = ["work.py:picky", "a", "bad", "b", "bad", "c"]
    status, rows, err = run(*words, "--fail-fast")
    assert (status, len(rows)) == (1, 2)
    assert "stopped, 1 failed" in err
    status, rows, _ = run(*words, "--max-failures", "2")
    assert (status, len(rows)) == (1, 4)
    status, rows, _ = run(*words, "--max-failures", "3")
    assert (status, len(rows)) == (1, 5)


def test_run_largest_first_keeps_the_order_of_the_rows(
    run: Callable[..., Any], place: Path
) -> None:
    """The largest file is called first; rows are in input order."""
    for name, size in (("a", 1), ("b", 100), ("c", 10)):
        (place / name).write_bytes(b"x" * size)
    status, rows, _ = run("work.py:picky", "a", "b", "c", "--largest-first")
    assert status == 0
    assert results(rows) == ["a", "b", "c"]
    assert sys.modules["work"].SEEN == ["b", "c", "a"]


def test_run_reduce_folds(run: Callable[..., Any]) -> None:
    """One value, in input order; failed inputs have their rows."""
    status, rows, _ = run("work.py:picky", *map(str, range(20)), "--reduce", "work.py:add")
    assert status == 0
    assert rows == [
        {
            "i": 20,
            "input": None,
            "ok": True,
            "result": "".join(map(str, range(20))),
            "seconds": rows[0]["seconds"],
            "attempts": 1,
            "inputs": 20,
            "failed": 0,
        }
    ]
    status, rows, _ = run("work.py:picky", "a", "bad", "c", "--reduce", "work.py:add")
    assert status == 1
    assert [(row["i"], row["ok"]) for row in rows] == [(1, False), (3, True)]
    assert (rows[1]["result"], rows[1]["failed"]) == ("ac", 1)


def test_run_reduce_that_fails_is_an_error_row(run: Callable[..., Any]) -> None:
    """The fold's own error, or no value at all."""
    status, rows, said = run("work.py:upper", *map(str, range(20)), "--reduce", "work.py:bad_fold")
    assert status == 1
    assert rows[-1]["error"]["message"] == "cannot fold"
    assert "20 inputs" in said
    assert ": 20 ok\n  --reduce: " in said  # all inputs were well; the reduction was not
    status, rows, _ = run("work.py:picky", "bad", "--reduce", "work.py:add")
    assert status == 1
    assert rows[-1]["error"]["type"] == "NoValue"


def test_run_ctrl_c_in_func(run: Callable[..., Any]) -> None:
    """With -j 0 an interrupt ends the run; so does the debugger's `quit`."""
    status, rows, _ = run("work.py:interrupts", "a", "b")
    assert (status, rows) == (130, [])
    assert sys.modules["work"].SEEN == ["a"]
    status, rows, _ = run("work.py:quits", "a", "b")
    assert (status, rows) == (130, [])


def test_run_dry_run_calls_nothing(
    run: Callable[..., Any], place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """--dry-run checks, counts and shows; FUNC is not called."""
    capfd.readouterr()
    words = ["map", "work.py:picky", "a", "b", "c", "--dry-run", "--out", "rows"]
    assert main(words) == 0
    shown = capfd.readouterr().out
    assert "picky(text)" in shown
    assert "3 to run" in shown
    assert sys.modules["work"].SEEN == []
    assert not (place / "rows").exists()


def test_run_two_inputs_with_one_file_are_found_before(
    run: Callable[..., Any], place: Path
) -> None:
    """--out-dir names both, and nothing runs."""
    for name in ("a.jpg", "a.png"):
        (place / name).write_bytes(b"")
    status, rows, err = run("work.py:picky", "a.jpg", "a.png", "--out-dir", "made")
    assert (status, rows) == (2, [])
    assert "a.jpg and a.png would have one file" in err
    assert sys.modules["work"].SEEN == []


def test_run_out_dir_full_disk_breaks_the_run(
    run: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for a result is not the failure of an input: status 3."""
    from mpsched.cli import outdir

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outdir, "write", full)
    status, _, err = run("work.py:upper", "a", "b", "--out-dir", "made")
    assert status == 3
    assert "No space left" in err


def test_run_resume_command_can_be_pasted(run: Callable[..., Any], place: Path) -> None:
    """The last line of an incomplete run is the command, quoted for the shell."""
    status, _, err = run("work.py:picky", "a b", "bad", "--out", "my rows", "--overwrite")
    assert status == 1
    last = err.rstrip().splitlines()[-1]
    assert "map work.py:picky 'a b' bad --out 'my rows' -j 0 --resume" in last
    assert "--overwrite" not in last


def test_run_with_an_executor_that_loses_calls(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows come through the pool's face as well, in input order."""
    status = run_map(
        ["work.py:picky", *map(str, range(50)), "-q"], make_executor=FakeExecutor().made
    )
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert status == 0
    assert results(rows) == [str(n) for n in range(50)]
    from mpsched.cli import task

    task.forget()


def test_main_words(capfd: pytest.CaptureFixture[str]) -> None:
    """Help, version, an unknown command, none."""
    assert main(["--help"]) == 0
    assert "mpsched map FUNC" in capfd.readouterr().out
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("mpsched ")
    assert main(["mop"]) == 2
    assert "'mop'" in capfd.readouterr().err
    assert main([]) == 2
    assert main(["map", "--help"]) == 0
    assert "--largest-first" in capfd.readouterr().out
    assert main(["map", "f:g", "--no-such"]) == 2
    assert "--no-such" in capfd.readouterr().err
