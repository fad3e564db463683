"""FUNC: from the text to the function."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from mpsched.cli.func import find
from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
from helpers import clean
from json import dumps

class Reader:
    @staticmethod
    def text(path):
        return "text of " + path

    def own(self, path):
        return path

def extract(path):
    return clean(path)

def extract_all(path):
    return path

def _hidden(path):
    return path

LIMIT = 3

if __name__ == "__main__":
    raise SystemExit("the main block has run")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a file with a sibling, and a package, in a folder of its own."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "extracting.py").write_text(SOURCE)
    (folder / "helpers.py").write_text("def clean(text):\n    return text.strip()\n")
    (folder / "bundle").mkdir()
    (folder / "bundle" / "__init__.py").write_text("")
    (folder / "bundle" / "inner.py").write_text("def twice(text):\n    return text * 2\n")
    (folder / "bundle" / "relative.py").write_text("from .inner import twice\n")
    (folder / "raising.py").write_text("def f(x): return x\n\n1 / 0\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit('no licence')\n")
    (folder / "needing.py").write_text("import a_module_that_is_not_there\ndef f(x): return x\n")
    (folder / "json.py").write_text("def parse(text):\n    return 'mine'\n")
    monkeypatch.chdir(folder)
    return folder


def test_func_file_is_loaded_with_its_siblings(place: Path) -> None:
    """The file's folder can be imported from, and the main block does not run."""
    ref, function = find("extracting.py:extract")
    assert function("  a ") == "a"
    assert function.__module__ == "extracting"
    assert ref.path == str(place / "extracting.py")


def test_func_file_in_another_folder_is_one_module(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is loaded once, under its own name, wherever the command runs."""
    monkeypatch.chdir(tmp_path)
    _, function = find("place/extracting.py:extract")
    assert sys.modules["extracting"].extract is function
    assert find(str(place / "extracting.py") + ":extract")[1] is function


def test_func_module_is_found_in_the_current_folder(place: Path) -> None:
    """`package.module:name` works as with `python -m`."""
    assert find("bundle.inner:twice")[1]("ab") == "abab"


def test_func_dot_for_the_colon_is_understood(place: Path) -> None:
    """The longest prefix that is a module, then names."""
    assert find("bundle.inner.twice")[1]("ab") == "abab"
    assert find("extracting.Reader.text")[1]("x") == "text of x"


def test_func_dotted_names_go_into_classes(place: Path) -> None:
    """`Class.method` is found."""
    assert find("extracting.py:Reader.text")[1]("x") == "text of x"


def test_func_reference_travels_and_loads_the_same(place: Path) -> None:
    """A reference that was pickled gives the same function."""
    ref, function = find("extracting.py:extract")
    assert pickle.loads(pickle.dumps(ref)).load() is function


def test_func_file_does_not_take_the_place_of_a_library(place: Path) -> None:
    """A file named as a module of the standard library does not replace it."""
    import json

    _, function = find("json.py:parse")
    assert function("x") == "mine"
    assert sys.modules["json"] is json
    assert function.__module__ == "json_py"


def test_func_wrong_name_lists_the_nearest_first(place: Path) -> None:
    """The functions there are, public ones of this file only, nearest first."""
    with pytest.raises(Usage) as caught:
        find("extracting.py:extract_al")
    said = str(caught.value)
    assert "extract_all, extract" in said
    assert "_hidden" not in said
    assert "clean" not in said
    assert "dumps" not in said


@pytest.mark.parametrize("text", ["extracting.py", "extracting.py:", "extracting", "extracting:"])
def test_func_no_name_lists_the_functions(place: Path, text: str) -> None:
    """A file or module alone says what could be named."""
    with pytest.raises(Usage, match=r"which function\?.*extract"):
        find(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("missing.py:f", "there is no file 'missing.py'"),
        ("missing:f", "no module named 'missing'"),
        ("bundle.missing:f", "no module named 'bundle.missing'"),
        ("missing.f", "no module named 'missing'"),
        ("extracting.py:LIMIT", "not a function"),
        ("extracting.py:Reader.nothing", "no 'Reader.nothing'"),
        ("raising.py:f", "ZeroDivisionError"),
        ("raising:f", "ZeroDivisionError"),
        ("raising.f", "ZeroDivisionError"),
        ("leaving.py:f", "no licence"),
        ("needing.py:f", "a_module_that_is_not_there"),
        ("bundle/relative.py:twice", "package.module:name"),
    ],
)
def test_func_what_cannot_be_loaded_is_usage(place: Path, text: str, said: str) -> None:
    """Whatever is wrong with FUNC is said, with the user's frames and no others."""
    with pytest.raises(Usage) as caught:
        find(text)
    assert said in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_func_file_for_a_module_is_offered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`name:f` where the module cannot be found but a file can."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(place)}])
    monkeypatch.setattr("mpsched.cli.func._importable", lambda _folder: None)
    with pytest.raises(Usage, match=r"extracting\.py:NAME"):
        find("extracting:extract")
