"""The door: what `import mpsched` offers, and what it must not load."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

import mpsched
from tests.house import places
from tests.support.scripts import run_script

# What costs more than the whole import may, or what a worker must not have.
HEAVY = (
    "asyncio",
    "cloudpickle",
    "concurrent.futures",
    "logging",
    "multiprocessing",
    "numpy",
    "psutil",
    "subprocess",
    "tqdm",
)

# The verbs are spelled as functions; these are values.
_WITHOUT_DOCSTRING = {"__version__"}


@pytest.mark.parametrize("name", mpsched.__all__)
def test_exports_each_name_resolves_and_is_documented(name: str) -> None:
    """Each public name exists and tells what it is."""
    found = getattr(mpsched, name)
    if name not in _WITHOUT_DOCSTRING:
        assert inspect.getdoc(found), f"mpsched.{name} has no docstring"


@pytest.mark.parametrize("name", mpsched.__all__)
def test_exports_each_name_comes_from_its_one_home(name: str) -> None:
    """The table names the module that really has the name."""
    home = mpsched._HOME[name]
    if home is None:
        assert getattr(mpsched, name) is importlib.import_module(f"mpsched.{name}")
    else:
        assert getattr(mpsched, name) is getattr(importlib.import_module(home), name)


def test_exports_lists_agree() -> None:
    """`__all__`, the table, `dir()` and what type checkers see are the same names and modules."""
    assert sorted(mpsched.__all__) == sorted(mpsched._HOME) == sorted(dir(mpsched))
    tree = ast.parse((places.PACKAGE / "__init__.py").read_text("utf-8"))
    seen: dict[str, str | None] = {}
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                assert isinstance(statement, ast.ImportFrom), ast.unparse(statement)
                home = None if statement.module == "mpsched" else statement.module
                seen |= {alias.asname or alias.name: home for alias in statement.names}
    assert seen == mpsched._HOME


def test_exports_unknown_name_is_an_attribute_error() -> None:
    """A name that is not there is reported as for any module."""
    with pytest.raises(AttributeError, match="module 'mpsched' has no attribute 'nonsense'"):
        mpsched.nonsense  # noqa: B018


@pytest.mark.parametrize("module", ["mpsched", "mpsched.errors", "mpsched._worker.main"])
def test_exports_import_loads_nothing_heavy(module: str) -> None:
    """Neither the door, nor the errors, nor a worker loads a module that costs milliseconds."""
    result = run_script(
        f"""
        import sys
        before = set(sys.modules)
        import {module}
        print(*sorted((set(sys.modules) - before) & {set(HEAVY)!r}))
        """
    )
    assert result.rc == 0, result.err
    assert result.out.split() == []
