"""Files of results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mpsched.cli import outdir
from mpsched.cli.rows import NotJson

if TYPE_CHECKING:
    from pathlib import Path


def test_outdir_targets_mirror_the_input(tmp_path: Path) -> None:
    """A path keeps its folders and loses its suffix; any other input has its number."""
    targets = outdir.Targets(str(tmp_path))
    assert targets.of(3, "a/b.tar.gz") == str(tmp_path / "a" / "b.tar")
    assert targets.of(3, None) == str(tmp_path / "00000003")


@pytest.mark.parametrize(
    ("value", "suffix", "name", "content"),
    [
        (b"abc", None, "x.bin", b"abc"),
        (bytearray(b"abc"), ".jpg", "x.jpg", b"abc"),
        ("é", None, "x.txt", "é".encode()),
        ("é", ".html", "x.html", "é".encode()),
    ],
)
def test_outdir_writes_by_type_or_suffix(
    tmp_path: Path, value: object, suffix: str | None, name: str, content: bytes
) -> None:
    """Bytes as they are, text as UTF-8; nothing else lies in the folder afterwards."""
    target = str(tmp_path / "new" / "x")
    result = outdir.write(value, target, suffix)
    assert result == {"path": str(tmp_path / "new" / name), "bytes": len(content)}
    assert (tmp_path / "new" / name).read_bytes() == content
    assert os.listdir(tmp_path / "new") == [name]
    assert outdir.existing(target, suffix) == result


def test_outdir_arrays_are_npy(tmp_path: Path) -> None:
    """A NumPy array can be loaded again."""
    np = pytest.importorskip("numpy")
    outdir.write(np.arange(5), str(tmp_path / "x"), None)
    assert np.load(tmp_path / "x.npy").tolist() == [0, 1, 2, 3, 4]


def test_outdir_none_writes_nothing(tmp_path: Path) -> None:
    """A function that returns None has written for itself."""
    assert outdir.write(None, str(tmp_path / "x"), None) is None
    assert os.listdir(tmp_path) == []
    assert outdir.existing(str(tmp_path / "x"), None) is None


@pytest.mark.parametrize("value", [{"a": 1}, 3, [b"x"], "\udcff"])
def test_outdir_other_values_have_no_file(tmp_path: Path, value: object) -> None:
    """What has no file form is refused, and nothing is left."""
    with pytest.raises(NotJson):
        outdir.write(value, str(tmp_path / "x"), None)
    assert os.listdir(tmp_path) == []


def test_outdir_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file appears under its name only when it is whole."""
    (tmp_path / "x.bin").write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        outdir.write(b"new", str(tmp_path / "x"), None)
    assert (tmp_path / "x.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_outdir_paths_are_shown_as_the_user_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative below the current folder, absolute elsewhere."""
    monkeypatch.chdir(tmp_path)
    result = outdir.write(b"", outdir.Targets("made").of(0, "a/b.c"), ".d")
    assert result == {"path": "made/a/b.d", "bytes": 0}


def test_outdir_unfinished_file_of_a_dead_worker_is_removed(tmp_path: Path) -> None:
    """What a killed call leaves is found by the target alone."""
    target = str(tmp_path / "x")
    left = tmp_path / ".x.mpsched-part"
    left.write_bytes(b"half")
    outdir.remove_unfinished(target)
    outdir.remove_unfinished(target)
    assert os.listdir(tmp_path) == []
