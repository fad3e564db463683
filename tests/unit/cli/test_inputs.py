"""INPUT, lists, lines, blocks: the stream of items."""

from __future__ import annotations

import io
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from mpsched.cli.args import parse_map
from mpsched.cli.discover import discover
from mpsched.cli.inputs import Inputs, Item
from mpsched.cli.problems import Broken, Usage
from mpsched.cli.records import block_ends, records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files in folders."""
    for name in ("a2.txt", "a10.txt", "b.pdf", "sub/c.txt", "sub/deep/d.pdf", ".hidden/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}")
    (tmp_path / "photo[1].jpg").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*inputs: str, files: bool = False, globs: tuple[str, ...] = ()) -> list[tuple[Any, Any]]:
    names = discover(inputs, files=files, globs=globs, note=pytest.fail)
    return [(name.text, name.place) for name in names]


def items(*words: str, as_bytes: bool = False, stamps: bool = False) -> list[Item]:
    inputs = Inputs(parse_map(["f:g", *words]), as_bytes=as_bytes, stamps=stamps, note=pytest.fail)
    try:
        made = list(inputs)
        assert inputs.total == len(made)
        assert inputs.first is made[0]
        assert [item.i for item in made] == list(range(len(made)))
        return made
    finally:
        inputs.close()


def texts(*words: str) -> list[object]:
    return [item.text for item in items(*words)]


@pytest.fixture
def give_stdin(tmp_path: Path) -> Any:
    """Make descriptor 0 give these bytes."""
    saved = os.dup(0)

    def give(data: bytes) -> None:
        path = tmp_path / "standard input"
        path.write_bytes(data)
        descriptor = os.open(path, os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        path.unlink()

    yield give
    os.dup2(saved, 0)
    os.close(saved)


def test_inputs_literal_texts_and_files(tree: Path) -> None:
    """A text is itself; a file by that name has a place, brackets or not."""
    assert found("plain text", "a2.txt", "photo[1].jpg", "") == [
        ("plain text", None),
        ("a2.txt", "a2.txt"),
        ("photo[1].jpg", "photo[1].jpg"),
        ("", None),
    ]


def test_inputs_globs_find_files_in_natural_order(tree: Path) -> None:
    """`*` in a folder, `**` at any depth, folders and hidden files left out."""
    assert found("*.txt") == [("a2.txt", "a2.txt"), ("a10.txt", "a10.txt")]
    assert [text for text, _ in found("**/*.txt")] == ["a2.txt", "a10.txt", "sub/c.txt"]
    assert found("sub/**/*.pdf") == [("sub/deep/d.pdf", "deep/d.pdf")]
    assert found("[ab]*") == [
        ("a2.txt", "a2.txt"),
        ("a10.txt", "a10.txt"),
        ("b.pdf", "b.pdf"),
    ]


def test_inputs_folders_need_files(tree: Path) -> None:
    """--files takes the files in and below a folder, with places relative to it."""
    assert found("sub", files=True) == [("sub/c.txt", "c.txt"), ("sub/deep/d.pdf", "deep/d.pdf")]
    assert found("s*", files=True) == [("sub/c.txt", "c.txt"), ("sub/deep/d.pdf", "deep/d.pdf")]
    assert [text for text, _ in found(".", files=True, globs=("*.pdf",))] == [
        "./b.pdf",
        "./sub/deep/d.pdf",
    ]
    assert [text for text, _ in found(".", files=True, globs=("sub/*.txt", "a2*"))] == [
        "./a2.txt",
        "./sub/c.txt",
    ]
    assert [text for text, _ in found(".", files=True, globs=("sub/**/*.pdf",))] == [
        "./sub/deep/d.pdf"
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((("*.zip",), False, ()), "no file matches"),
        ((("what?",), False, ()), "give it with --from"),
        ((("su?",), False, ()), "1 folders do; --files"),
        ((("sub",), False, ()), "--files"),
        ((("empty",), True, ()), "no file in it"),
        ((("sub",), True, ("*.jpg",)), "matches '*.jpg'"),
        ((("missing",), True, ()), "no such file"),
    ],
)
def test_inputs_nothing_found_is_usage(tree: Path, arguments: Any, said: str) -> None:
    """A pattern or folder without a file is an error that names it."""
    with pytest.raises(Usage) as caught:
        found(*arguments[0], files=arguments[1], globs=arguments[2])
    assert said in str(caught.value)


def test_inputs_unreadable_folders_are_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be read is left out, and said."""
    notes: list[str] = []
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    names = discover(["sub"], files=True, globs=(), note=notes.append)
    assert [name.text for name in names] == ["sub/c.txt"]
    assert notes == ["left out: sub/deep: Permission denied"]


def test_inputs_place_of_a_name_has_no_root_and_no_parents(tree: Path) -> None:
    """An absolute path, or one that goes up, stays below --out-dir."""
    up = f"../{tree.name}/b.pdf"
    absolute = str(tree / "b.pdf")
    assert [place for _, place in found(up, absolute)] == [f"{tree.name}/b.pdf", absolute[1:]]


def test_inputs_from_a_list(tree: Path) -> None:
    """Names one per line, or per NUL; empty ones are left out; the files among them have places."""
    (tree / "list").write_bytes(b"a2.txt\n\nhttp://x\r\nlast")
    made = items("--from", "list")
    assert [item.text for item in made] == ["a2.txt", "http://x", "last"]
    assert [item.place for item in made] == ["a2.txt", None, None]
    (tree / "list0").write_bytes(b"two\nlines\0\0b\0")
    assert texts("--from", "list0", "-0") == ["two\nlines", "b"]
    with pytest.raises(Usage, match="no such file"):
        items("--from", "missing")


def test_inputs_from_standard_input(tree: Path, give_stdin: Callable[[bytes], None]) -> None:
    """Without INPUT, standard input is a list, or lines; `-` names it."""
    give_stdin(b"a\n\nb\n")
    assert texts() == ["a", "b"]
    give_stdin(b"a\n\nb\n")
    assert texts("--lines") == ["a", "", "b"]
    give_stdin(b"a\0b\0")
    assert texts("-0") == ["a", "b"]
    give_stdin(b"x\n")
    assert texts("--from", "-") == ["x"]
    give_stdin(b"x\n")
    assert texts("--lines", "-") == ["x"]
    give_stdin(b"a2.txt\0")
    assert texts("--lines", "-0") == ["text of a2.txt"]
    give_stdin(b"")
    with pytest.raises(Usage, match="no input"):
        items()


def test_inputs_lines_keep_all_but_their_ends(tree: Path) -> None:
    """Empty lines count, ends go, bytes that are no UTF-8 are carried."""
    (tree / "lines").write_bytes(b"one\r\n\n two \n\xff\xfe\nlast")
    assert texts("--lines", "lines") == ["one", "", " two ", "\udcff\udcfe", "last"]
    assert [item.payload for item in items("--lines", "lines", as_bytes=True)] == [
        b"one",
        b"",
        b" two ",
        b"\xff\xfe",
        b"last",
    ]


def test_inputs_lines_of_several_files(tree: Path) -> None:
    """Files, globs and folders are read one after the other; one that is missing is an error."""
    assert texts("--lines", "*.txt", "sub", "--files", "--glob", "*.txt") == [
        "text of a2.txt",
        "text of a10.txt",
        "text of sub/c.txt",
    ]
    with pytest.raises(Usage, match="--lines reads files"):
        items("--lines", "missing")


def test_inputs_kwargs_leave_out_blank_lines(tree: Path) -> None:
    """A blank line among JSON lines is no call."""
    (tree / "runs").write_text('{"a": 1}\n\n  \n{"a": 2}\n')
    assert texts("--kwargs", "runs") == ['{"a": 1}', '{"a": 2}']


def test_inputs_batches(tree: Path) -> None:
    """--batch makes lists, the last one shorter."""
    (tree / "lines").write_text("1\n2\n3\n4\n5\n")
    made = items("--lines", "lines", "--batch", "2")
    assert [item.payload for item in made] == [["1", "2"], ["3", "4"], ["5"]]
    assert [item.text for item in items("x", "y", "z", "--batch", "3")] == [["x", "y", "z"]]


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b""))), st.integers(1, 50))
def test_inputs_blocks_cover_the_file_and_end_behind_newlines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    """Ranges follow each other without gap; each but the last ends behind a newline."""
    path = tmp_path_factory.getbasetemp() / "blocks"
    data = b"\n".join(lines)
    path.write_bytes(data)
    ranges = list(block_ends(str(path), size))
    assert b"".join(data[start:stop] for start, stop in ranges) == data
    for (_, stop), (start, _) in itertools.pairwise(ranges):
        assert stop == start
        assert data[stop - 1 : stop] == b"\n"
    for start, stop in ranges[:-1]:
        assert stop - start >= size
        assert b"\n" not in data[start + size - 1 : stop - 1]


def test_inputs_blocks_are_items(tree: Path) -> None:
    """A range is named by its path and its bytes, and carries them."""
    (tree / "log").write_bytes(b"aaa\nbbb\nccc\n")
    made = items("log", "--block", "5", stamps=True)
    assert [item.text for item in made] == ["log:0-8", "log:8-12"]
    assert [item.payload for item in made] == [("log", 0, 8), ("log", 8, 12)]
    assert made[0].stamp is not None
    with pytest.raises(Usage, match="--block reads files"):
        items("missing", "--block", "5")


def test_inputs_stamps_are_of_files_only(tree: Path) -> None:
    """Size and time of a file; a text has none, not even one with a NUL in it."""
    made = items("a2.txt", "text", "nul\0", stamps=True)
    status = os.stat("a2.txt")
    assert [item.stamp for item in made] == [(status.st_size, status.st_mtime_ns), None, None]
    assert [item.stamp for item in items("a2.txt")] == [None]


def test_inputs_file_that_goes_missing_breaks_the_run(tree: Path) -> None:
    """What was there when the run began and cannot be read later is no input without rows."""
    (tree / "first").write_text("1\n")
    inputs = Inputs(
        parse_map(["f:g", "--lines", "first", "a2.txt"]),
        as_bytes=False,
        stamps=False,
        note=pytest.fail,
    )
    try:
        (tree / "a2.txt").unlink()
        with pytest.raises(Broken, match=r"a2\.txt cannot be read"):
            list(inputs)
    finally:
        inputs.close()


def test_inputs_number_is_guessed_from_the_bytes(tree: Path) -> None:
    """While a file is read, its length tells about how many lines there will be."""
    (tree / "lines").write_text("12345678\n" * 1000)
    inputs = Inputs(
        parse_map(["f:g", "--lines", "lines"]), as_bytes=False, stamps=False, note=pytest.fail
    )
    try:
        stream = iter(inputs)
        for _ in range(100):
            next(stream)
        guess = inputs.guess()
        assert guess is not None
        assert 900 < guess < 1100
    finally:
        inputs.close()


def test_inputs_stop_ends_a_read_of_silent_standard_input() -> None:
    """A thread that waits for standard input is let go."""
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.write(writing, b"a\nb\n")
        inputs = Inputs(
            parse_map(["f:g", "--lines"]), as_bytes=False, stamps=False, note=pytest.fail
        )
        stream = iter(inputs)
        assert [next(stream).text, next(stream).text] == ["a", "b"]
        inputs.stop.set()
        assert list(stream) == []
        assert inputs.total is None
        inputs.close()
    finally:
        os.dup2(saved, 0)
        for descriptor in (saved, reading, writing):
            os.close(descriptor)


@given(st.lists(st.binary(max_size=5)), st.booleans())
def test_inputs_records_of_nul_lists(parts: list[bytes], terminated: bool) -> None:
    """NUL-separated records, terminated or not, come back as they were."""
    parts = [part.replace(b"\0", b"") for part in parts]
    data = b"\0".join(parts) + (b"\0" if terminated and parts else b"")
    expected = parts if terminated or not parts or parts[-1] else parts[:-1]
    assert list(records(io.BufferedReader(io.BytesIO(data)), b"\0")) == expected
