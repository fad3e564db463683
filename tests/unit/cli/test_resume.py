"""OUT, OUT.partial, the companion, and what --resume makes of them.

The command runs here with `-j 0`, in this process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mpsched.cli import main
from mpsched.cli.companion import Header
from tests.support.command import positions, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCE = """
CALLS = []
BAD = []

def work(text, n=1):
    CALLS.append(text)
    if text in BAD:
        raise ValueError("bad " + text)
    return text * n

def other(text):
    return text

def size(data: bytes):
    CALLS.append(len(data))
    return len(data)
"""


class Job:
    """A folder with FUNC in it; runs the command over a list of lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "rows.jsonl"
        self.partial = folder / "rows.jsonl.partial"
        (folder / "job.py").write_text(SOURCE)
        self.module: Any = None

    def run(self, lines: list[str], *words: str, func: str = "job.py:work") -> int:
        """Run over these lines; return the status."""
        (self.folder / "lines").write_text("".join(line + "\n" for line in lines), "utf-8")
        return self.map(func, "--lines", "lines", *words)

    def map(self, *words: str) -> int:
        """Run the command with --out; return the status."""
        import sys

        if "job" in sys.modules:
            sys.modules["job"].CALLS.clear()
        rc = main(["map", *words, "--out", str(self.out), "-j", "0"])
        self.module = sys.modules.get("job")
        return rc

    @property
    def calls(self) -> list[Any]:
        """The texts that the last run has called FUNC with."""
        return list(self.module.CALLS)

    def unfinish(self, data: bytes) -> None:
        """Let OUT be the unfinished file of a run that was killed."""
        self.out.unlink(missing_ok=True)
        self.partial.write_bytes(data)

    def texts(self) -> list[str]:
        """The inputs of the rows of OUT; their positions must be right."""
        rows = rows_of(self.out)
        assert positions(rows) == list(range(len(rows)))
        return [row["input"] for row in rows]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return Job(tmp_path)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What the command has said since the last call."""
    return lambda: capfd.readouterr().err


def test_resume_finished_file_with_nothing_to_do_is_left_alone(job: Job) -> None:
    """Nothing runs, and the file is the very same."""
    assert job.run(["a", "b"]) == 0
    before = job.out.stat()
    assert job.run(["a", "b"], "--resume") == 0
    assert job.calls == []
    assert (job.out.stat().st_ino, job.out.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    assert sorted({*os.listdir(job.folder)} - {"__pycache__"}) == [
        "job.py",
        "lines",
        "rows.jsonl",
        "rows.jsonl.mpsched",
    ]


def test_resume_without_old_rows_runs_all(job: Job) -> None:
    """The same command line may be used for the first run as for the others."""
    assert job.run(["a", "b"], "--resume") == 0
    assert job.calls == ["a", "b"]


def test_resume_two_equal_lines_are_two_inputs(job: Job) -> None:
    """Of two equal lines the one that has no row runs."""
    assert job.run(["a", "b", "a"]) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    job.unfinish(lines[0] + lines[1])
    assert job.run(["a", "b", "a"], "--resume") == 0
    assert job.calls == ["a"]
    assert job.texts() == ["a", "b", "a"]


def test_resume_failed_rows_run_again(job: Job) -> None:
    """Failed inputs run again, and their new rows replace the old; --keep-failed leaves them."""
    assert job.run(["a", "b", "c"]) == 0
    job.module.BAD.append("b")
    assert job.run(["a", "b", "c"], "--overwrite") == 1
    assert job.run(["a", "b", "c"], "--resume", "--keep-failed") == 1
    assert job.calls == []
    job.module.BAD.clear()
    assert job.run(["a", "b", "c"], "--resume") == 0
    assert job.calls == ["b"]
    assert [row["ok"] for row in rows_of(job.out)] == [True, True, True]


def test_resume_moved_and_new_lines(job: Job, said: Callable[[], str]) -> None:
    """Rows follow their inputs to other positions; rows of lines that are gone come last."""
    assert job.run(["a", "b", "c", "d"]) == 0
    said()
    assert job.run(["d", "new", "b", "a"], "--resume") == 0
    assert job.calls == ["new"]
    assert job.texts() == ["d", "new", "b", "a", "c"]
    assert "3 rows kept, 1 missing, 1 row of inputs that are gone" in said()
    assert job.run(["a", "b", "c", "d", "new"], "--resume") == 0
    assert job.calls == []
    assert job.texts() == ["a", "b", "c", "d", "new"]


def test_resume_torn_line_is_dropped(job: Job, said: Callable[[], str]) -> None:
    """A last line without its end is no row, though what is there might parse."""
    assert job.run(["a", "b", "c"]) == 0
    whole = job.out.read_bytes()
    for cut in (1, 2, 40):
        job.unfinish(whole[:-cut])
        said()
        assert job.run(["a", "b", "c"], "--resume") == 0
        assert job.calls == ["c"]
        assert "cut short" in said()
        assert job.texts() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[1]",
        b'{"i": 1, "input": "b"}',
        b'{"i": true, "input": "b", "ok": true}',
        b'{"i": -1, "input": "b", "ok": true}',
        b'{"i": 1, "input": 3, "ok": true}',
        b"\xff\xff",
        b"",
    ],
)
def test_resume_bad_line_elsewhere_is_told_and_left_out(
    job: Job, said: Callable[[], str], line: bytes
) -> None:
    """A line that is no row is named by its number, and its input runs again."""
    assert job.run(["a", "b", "c"]) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    job.unfinish(lines[0] + line + b"\n" + lines[2])
    said()
    assert job.run(["a", "b", "c"], "--resume") == 0
    assert job.calls == ["b"]
    assert "line 2: not a row" in said()
    assert job.texts() == ["a", "b", "c"]


def test_resume_rows_that_another_program_has_formatted(job: Job) -> None:
    """A program such as jq writes rows without spaces, and may put keys in another order."""
    assert job.run(["a", "b"]) == 0
    rows = rows_of(job.out)
    job.out.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    assert job.run(["b", "a", "c"], "--resume") == 0
    assert job.calls == ["c"]
    assert job.texts() == ["b", "a", "c"]


def test_resume_of_several_rows_of_one_input_the_last_counts(job: Job) -> None:
    """A failed row and the later good one of the same input are one row."""
    assert job.run(["a", "b"]) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    failed = lines[0].replace(b'"ok": true', b'"ok": false')
    job.unfinish(failed + lines[1] + lines[0])
    assert job.run(["a", "b"], "--resume") == 0
    assert job.calls == []
    assert job.texts() == ["a", "b"]


def test_resume_partial_is_the_truth_beside_an_older_file(job: Job) -> None:
    """Killed after --overwrite: yesterday's OUT is still there, and says nothing."""
    assert job.run(["a", "b"]) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    job.partial.write_bytes(lines[0])
    assert job.run(["a", "b"]) == 2
    assert job.run(["a", "b"], "--resume") == 0
    assert job.calls == ["b"]
    assert not job.partial.exists()


def test_resume_complete_partial_is_put_in_order(job: Job) -> None:
    """Killed before the last rename: nothing runs, the rows are put in order."""
    assert job.run(["a", "b", "c"]) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    job.unfinish(lines[2] + lines[0] + lines[1])
    assert job.run(["a", "b", "c"], "--resume") == 0
    assert job.calls == []
    assert job.texts() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (["--arg", "n=2"], "--arg n was not given, is '2'"),
        (["--batch", "2"], "--batch was not given, is 2"),
        (["--capture"], "--capture was not given, is given"),
    ],
)
def test_resume_with_other_arguments_is_refused(
    job: Job, said: Callable[[], str], words: list[str], difference: str
) -> None:
    """What would make other rows is refused and shown; --force goes on."""
    assert job.run(["a", "b"]) == 0
    before = job.out.read_bytes()
    said()
    assert job.run(["a", "b"], "--resume", *words) == 2
    assert difference in said()
    assert job.out.read_bytes() == before
    assert job.run(["a", "b"], "--resume", "--force", *words) == 0


def test_resume_with_another_function_is_refused(job: Job, said: Callable[[], str]) -> None:
    """Another function is refused; the same one whose source has changed is told."""
    assert job.run(["a"]) == 0
    said()
    assert job.run(["a"], "--resume", func="job.py:other") == 2
    assert "FUNC was" in said()
    with (job.folder / "job.py").open("a") as file:
        file.write("# mended\n")
    assert job.run(["a", "b"], "--resume") == 0
    assert "source of FUNC has changed" in said()
    assert job.calls == ["b"]


def test_resume_without_companion_is_refused(job: Job, said: Callable[[], str]) -> None:
    """Nobody knows what made the rows; --force takes them as they are."""
    (job.folder / "data").write_text("12345")
    words = ["job.py:size", "data"]
    assert job.map(*words) == 0
    companion = job.folder / "rows.jsonl.mpsched"
    for content in (None, b"garbage\n", b'{"mpsched": 99}\n'):
        companion.unlink(missing_ok=True)
        if content is not None:
            companion.write_bytes(content)
        said()
        assert job.map(*words, "--resume") == 2
        assert "--force" in said()
    assert job.map(*words, "--resume", "--force") == 0
    assert job.calls == []


def test_resume_changed_files_run_again(job: Job, said: Callable[[], str]) -> None:
    """A file of another size or time runs again, one that is the same does not."""
    for name in ("same", "longer", "touched", "gone"):
        (job.folder / name).write_text("123")
    words = ["job.py:size", "same", "longer", "touched", "gone"]
    assert job.map(*words) == 0
    (job.folder / "longer").write_text("12345")
    os.utime(job.folder / "touched", ns=(1, 1))
    (job.folder / "gone").unlink()
    said()
    assert job.map(*words, "--resume") == 1
    assert "1 row kept, 3 changed" in said()
    assert job.calls == [5, 3]
    assert [row["ok"] for row in rows_of(job.out)] == [True, True, True, False]


def test_resume_torn_companion_runs_its_file_again(job: Job) -> None:
    """A stamp that was cut short is no stamp."""
    for name in ("a", "b"):
        (job.folder / name).write_text("123")
    assert job.map("job.py:size", "a", "b") == 0
    companion = job.folder / "rows.jsonl.mpsched"
    companion.write_bytes(companion.read_bytes()[:-5])
    assert job.map("job.py:size", "a", "b", "--resume") == 0
    assert len(job.calls) == 1


def test_resume_stamps_follow_moved_rows(job: Job) -> None:
    """A file at another position is not taken for changed, now and the next time."""
    for name in ("a", "b", "c"):
        (job.folder / name).write_text(name)
    assert job.map("job.py:size", "a", "b", "c") == 0
    assert job.map("job.py:size", "c", "a", "--resume") == 0
    assert job.calls == []
    assert job.map("job.py:size", "c", "a", "--resume") == 0
    assert job.calls == []
    assert job.map("job.py:size", "b", "c", "a", "--resume") == 0
    assert job.calls == []


def test_resume_dry_run_changes_nothing(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    """--dry-run says what would run, and touches no file."""
    assert job.run(["a", "b"]) == 0
    before = {path.name: path.read_bytes() for path in job.folder.iterdir() if path.is_file()}
    capfd.readouterr()
    assert job.run(["b", "c"], "--resume", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert "1 to run" in shown
    assert "1 row kept, 1 missing, 1 row of inputs that are gone" in shown
    assert job.calls == []
    before["lines"] = b"b\nc\n"
    assert before == {
        path.name: path.read_bytes() for path in job.folder.iterdir() if path.is_file()
    }


def test_resume_unordered_output_keeps_the_order_of_the_file(job: Job) -> None:
    """--unordered: no row is moved, but replaced ones go."""
    assert job.run(["a", "b", "c"], "--unordered") == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    failed = lines[1].replace(b'"ok": true', b'"ok": false')
    job.unfinish(lines[2] + failed)
    assert job.run(["a", "b", "c"], "--resume", "--unordered") == 0
    assert [row["input"] for row in rows_of(job.out)] == ["c", "a", "b"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    old=st.lists(st.sampled_from("abcde"), min_size=1, max_size=8),
    new=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8),
    kept=st.data(),
)
def test_resume_any_two_lists(
    job: Job, old: list[str], new: list[str], kept: st.DataObject
) -> None:
    """However the list has changed, each input has one row, and what had one does not run."""
    for path in job.folder.glob("rows.jsonl*"):
        path.unlink()
    assert job.run(old) == 0
    lines = job.out.read_bytes().splitlines(keepends=True)
    shuffled = kept.draw(st.permutations(range(len(lines))))
    survivors = shuffled[: kept.draw(st.integers(0, len(lines)))]
    job.unfinish(b"".join(lines[i] for i in survivors))
    assert job.run(new, "--resume") == 0
    had, wanted = Counter(old[i] for i in survivors), Counter(new)
    assert Counter(job.calls) == wanted - had
    assert job.texts()[: len(new)] == new
    assert Counter(job.texts()) == wanted | had


def test_companion_differences_are_told_for_people() -> None:
    """Each difference is a line that shows both values."""
    old = Header("m:f", "1", {"lang": "deu"}, {"lines": True, "batch": None})
    new = Header("m:g", "2", {"n": "1"}, {"lines": False, "batch": 3})
    assert old.differences(new) == [
        "FUNC was m:f, is m:g",
        "--arg lang was 'deu', is not given",
        "--arg n was not given, is '1'",
        "--batch was not given, is 3",
        "--lines was given, is not given",
    ]
    assert old.differences(Header("m:f", "3", {"lang": "deu"}, dict(old.shape))) == []
