"""Which functions have a name that a worker can import."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import math
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._tasks import functions
from mpsched.errors import DecodeError
from tests.support import library

if TYPE_CHECKING:
    from pathlib import Path

NAME = library.__name__


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (len, ("builtins", "len")),
        (math.sqrt, ("math", "sqrt")),
        (int, ("builtins", "int")),
        (functools.partial, ("functools", "partial")),
        (library.get_state, (NAME, "get_state")),
        (library.Outer, (NAME, "Outer")),
        (library.Outer.Inner, (NAME, "Outer.Inner")),
        (library.Outer.double, (NAME, "Outer.double")),
        (library.Outer.method, (NAME, "Outer.method")),
    ],
)
def test_importable_name_gives_what_resolve_finds(fn: Any, name: tuple[str, str]) -> None:
    """Functions, classes, builtins, nested ones: module and qualified name lead to the same object."""
    assert functions.importable_name(fn) == name
    assert functions.resolve(*name) is fn


class _Awkward:
    def __call__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: None,
        library.state_reader(),
        library.Outer().method,
        functools.partial(len, ()),
        [].append,
        "abc".upper,
        type(None),
        types.FunctionType,
        _Awkward(),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_importable_name_refuses_what_is_found_nowhere(fn: Any) -> None:
    """Lambdas, closures, bound methods, partials, instances, types without a name."""
    assert functions.importable_name(fn) is None


def test_importable_name_refuses_what_stands_for_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name must lead to this very object, not to its replacement."""
    former = library.get_state
    monkeypatch.setattr(library, "get_state", lambda: None)
    assert functions.importable_name(former) is None


def test_importable_name_refuses_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker has this program's `__main__`."""
    module = types.ModuleType("__main__")
    exec("def f(): pass", vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert functions.importable_name(vars(module)["f"]) is None


def _load(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_importable_name_refuses_modules_that_only_this_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module loaded from a file beside the path, or made by hand, is not imported elsewhere."""
    path = tmp_path / "beside_the_path.py"
    path.write_text("def f(): pass\n")
    monkeypatch.setitem(sys.modules, "beside_the_path", types.ModuleType("beside_the_path"))
    module = _load(path, "beside_the_path")
    assert functions.importable_name(module.f) is None

    monkeypatch.syspath_prepend(str(tmp_path))
    module = _load(path, "beside_the_path")
    assert functions.importable_name(module.f) == ("beside_the_path", "f")

    handmade = types.ModuleType("handmade")
    exec("def f(): pass", vars(handmade))
    monkeypatch.setitem(sys.modules, "handmade", handmade)
    assert functions.importable_name(vars(handmade)["f"]) is None


def test_importable_name_refuses_another_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an import would find must be the file that the function is from."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "twice.py").write_text("def f(): pass\n")
    monkeypatch.setitem(sys.modules, "twice", types.ModuleType("twice"))
    monkeypatch.syspath_prepend(str(first))
    module = _load(second / "twice.py", "twice")
    assert functions.importable_name(module.f) is None


def test_importable_name_refuses_a_module_that_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would run its top level once more; afterwards it is a module like others."""
    source = (
        "from mpsched._tasks import functions\ndef f(): pass\nNAME = functions.importable_name(f)\n"
    )
    (tmp_path / "at_top_level.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("at_top_level")
    monkeypatch.delitem(sys.modules, "at_top_level", raising=False)
    monkeypatch.setitem(sys.modules, "at_top_level", module)
    assert module.NAME is None
    assert functions.importable_name(module.f) == ("at_top_level", "f")


def test_resolve_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such module, no such name, a module that exits: a DecodeError with the cause."""
    with pytest.raises(DecodeError, match="'no_such_module' cannot be imported") as error:
        functions.resolve("no_such_module", "f")
    assert isinstance(error.value.__cause__, ModuleNotFoundError)
    with pytest.raises(DecodeError, match=r"'math' has no 'no_such_name'"):
        functions.resolve("math", "no_such_name")
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DecodeError, match="SystemExit: 3"):
        functions.resolve("exits_at_import", "f")
