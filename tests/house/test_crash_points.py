"""Crash points: named once, listed with their roles, and not there without a plan."""

from __future__ import annotations

import ast
import collections
import marshal
import re
from typing import TYPE_CHECKING

import pytest

from mpsched.testing import crash_points
from mpsched.testing.crashpoints import POINT, rewritten
from mpsched.testing.faultplan import ROLES
from tests.house import places
from tests.support.crash_cells import table
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

_LIKE_A_POINT = re.compile(rb"^[ \t]*#.*crash.point\b.*$", re.MULTILINE | re.IGNORECASE)

SOURCES = [
    pytest.param(path, id=str(path.relative_to(places.PACKAGE)))
    for path in sorted(places.PACKAGE.rglob("*.py"))
    if POINT.search(path.read_bytes())
]


def is_hook(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "_crash_point"
    )


class WithoutHooks(ast.NodeTransformer):
    """Takes the calls out again."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if is_hook(node) else node


def starts_of(tree: ast.AST) -> list[tuple[int, int]]:
    return [(node.lineno, node.col_offset) for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def everything_in(code: CodeType) -> bytes:
    return marshal.dumps(code)


def test_crash_points_are_found() -> None:
    """There are some in each room that has a protocol."""
    rooms = {path.values[0].parent.name for path in SOURCES}  # type: ignore[union-attr]
    assert rooms >= {"_deque", "_tasks", "_worker", "_pool"}


def test_crash_points_have_one_place_each() -> None:
    """No name stands twice: a fault says where it strikes."""
    names = collections.Counter(
        name
        for path in places.PACKAGE.rglob("*.py")
        for _, name in POINT.findall(path.read_bytes())
    )
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_crash_points_are_well_formed() -> None:
    """A comment that speaks of a crash point is one, or it would be overlooked in silence."""
    wrong = [
        f"{path.relative_to(places.PACKAGE)}: {line.decode().strip()}"
        for path in places.PACKAGE.rglob("*.py")
        for line in _LIKE_A_POINT.findall(path.read_bytes())
        if not POINT.fullmatch(line)
    ]
    assert wrong == []


def test_crash_points_are_listed_with_their_roles() -> None:
    """The room's table has each point, and no other, with roles that there are."""
    rows = table()
    assert sorted(rows) == sorted(crash_points())
    assert {role for roles in rows.values() for role in roles} <= {*ROLES}


@pytest.mark.parametrize("path", SOURCES)
def test_crash_points_add_calls_and_nothing_else(path: Path) -> None:
    """With the calls taken out again, the tree is that of the source, and no line has moved."""
    source = path.read_bytes()
    struck = ast.parse(rewritten(source))
    hooks = {
        (node.lineno, node.value.args[0].value)  # type: ignore[attr-defined]
        for node in ast.walk(struck)
        if is_hook(node)
    }
    lines = source.splitlines()
    assert hooks == {
        (number, match[2].decode())
        for number, line in enumerate(lines, 1)
        if (match := POINT.match(line))
    }
    plain, without = ast.parse(source), WithoutHooks().visit(struck)
    assert ast.dump(without) == ast.dump(plain)
    assert starts_of(without) == starts_of(plain)


@pytest.mark.parametrize("path", SOURCES)
def test_crash_points_leave_no_trace_without_a_plan(path: Path) -> None:
    """The code that a program runs is the code of the source without these comments, byte for byte."""
    source = path.read_bytes()
    blank = POINT.sub(b"", source)
    assert blank != source
    as_it_is = everything_in(compile(source, path.name, "exec", dont_inherit=True))
    assert as_it_is == everything_in(compile(blank, path.name, "exec", dont_inherit=True))
    assert b"_crash_point" not in as_it_is
    # And the look is worth something: it finds them where they are.
    with_them = everything_in(compile(rewritten(source), path.name, "exec", dont_inherit=True))
    assert b"_crash_point" in with_them


def test_crash_points_cost_no_import_without_a_plan() -> None:
    """A worker's modules come without this room, unless a plan is named."""
    result = run_script(
        """
        import sys
        import mpsched._worker.main, mpsched.executor
        print(*(name for name in sys.modules if name.startswith("mpsched.testing")))
        print("_crash_point" in vars(mpsched._worker.main))
        """
    )
    assert result.rc == 0, result.err
    assert result.out.split() == ["False"]
