"""The work that is measured: one source file to one row, one function to one shape.

Everything here runs in the workers, so it is plain, importable and free of shared state. Rows
hold numbers and text only; two systems agree when their rows are equal.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import re
import threading
import time
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Item = TypeVar("Item")
Value = TypeVar("Value")

# One more path through the function for each of these; a BoolOp counts by its operands.
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
BRANCHES = (ast.If, ast.IfExp, ast.ExceptHandler, ast.match_case, *LOOPS)
# Fields that hold names, flags or operators, and no child worth a visit.
LEAF_FIELDS = frozenset(
    ("arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level")
).union(("module", "name", "op", "ops", "rest", "simple", "str", "type_comment", "type_ignores"))
LEAF_KINDS = frozenset((ast.Constant, ast.Global, ast.MatchSingleton, ast.Nonlocal, ast.alias))

WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function or method of a file; `line` counts from 1."""

    name: str
    line: int
    lines: int
    complexity: int


@dataclass(frozen=True, slots=True)
class FileRow:
    """What is known of one file; `error` is empty when it parses. Sizes are in bytes."""

    path: str
    size: int
    lines: int
    error: str
    kinds: tuple[tuple[str, int], ...]
    functions: tuple[FunctionRow, ...]
    zlib_size: int


@dataclass(frozen=True, slots=True)
class Timed(Generic[Value]):
    """A value, the worker that made it and the CPU seconds it took there."""

    value: Value
    worker: tuple[int, int]
    seconds: float


def prepare() -> None:
    """Make a worker ready, in each system alike.

    Syntax trees hold no cycles, so collecting garbage less often saves a quarter of the time.
    Warnings are what the library's test files provoke on purpose.
    """
    gc.set_threshold(100_000)
    warnings.simplefilter("ignore", SyntaxWarning)
    warnings.simplefilter("ignore", DeprecationWarning)


def file_task(path: str) -> Timed[FileRow]:
    """`analyse` with the worker's name on it: what the three systems map over the files."""
    return _timed(analyse, path)


def function_task(source: str) -> Timed[str]:
    """`shape` with the worker's name on it: what the three systems map over the functions."""
    return _timed(shape, source)


def analyse(path: str) -> FileRow:
    """Read, compress, parse and count one source file.

    Args:
        path: A `.py` file. Some of the standard library do not parse, on purpose; their row says
            why in `error`.
    """
    source = Path(path).read_bytes()
    kinds: list[str] = []
    functions: list[FunctionRow] = []
    error = ""
    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure.args[0]}"
    else:
        kinds, functions = survey(tree)
    return FileRow(
        path=path,
        size=len(source),
        lines=source.count(b"\n"),
        error=error,
        kinds=tuple(sorted(Counter(kinds).items())),
        functions=tuple(functions),
        zlib_size=len(zlib.compress(source)),
    )


def shape(source: str) -> str:
    """Digest of a function's punctuation: what is left when words, numbers and layout are blanked.

    Args:
        source: The text of one function.

    Returns:
        A hex digest, the same for two functions that were copied and then renamed.
    """
    skeleton = "".join(WORD.sub("w", source).split())
    return hashlib.blake2b(skeleton.encode("utf-8", "replace"), digest_size=12).hexdigest()


def survey(tree: ast.Module) -> tuple[list[str], list[FunctionRow]]:
    """Walk a syntax tree once, without recursion, so that no file is too deep.

    Returns:
        The kind of every node, depth first (contexts and operators are left out), and the
        functions, with their cyclomatic complexity. A nested function counts for itself only.
    """
    kinds: list[str] = []
    functions: list[FunctionRow] = []
    open_functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]] = []
    complexity = 1  # of the innermost open function; that of the outer ones waits on the stack
    todo: list[ast.AST | _Leave] = [tree]
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind in _SPECIAL:  # few are, so the others pay one look-up
            if isinstance(node, _Leave):
                function, outer = open_functions.pop()
                lines = (function.end_lineno or function.lineno) - function.lineno + 1
                functions.append(FunctionRow(function.name, function.lineno, lines, complexity))
                complexity = outer
                continue
            if isinstance(node, ast.BoolOp):
                complexity += len(node.values) - 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                open_functions.append((node, complexity))
                complexity = 1
                todo.append(_LEAVE)
            else:
                complexity += 1
        kinds.append(kind.__name__)
        for field in _CHILD_FIELDS[kind]:
            child = getattr(node, field)
            if isinstance(child, list):
                todo.extend(item for item in child if item is not None)
            elif child is not None:
                todo.append(child)
    return kinds, functions


class _Leave:
    """Stands on the stack below a function's children: what is popped after it lies outside."""


class _ChildFields(dict[type, tuple[str, ...]]):
    """The fields of each node kind that may hold nodes, looked up once per kind."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        leaf = kind in LEAF_KINDS
        fields = () if leaf else tuple(f for f in kind._fields if f not in LEAF_FIELDS)
        self[kind] = fields
        return fields


_LEAVE = _Leave()
_SPECIAL = frozenset((*BRANCHES, ast.BoolOp, ast.FunctionDef, ast.AsyncFunctionDef, _Leave))
_CHILD_FIELDS = _ChildFields()


def _timed(function: Callable[[Item], Value], item: Item) -> Timed[Value]:
    start = time.thread_time()
    value = function(item)
    return Timed(value, (os.getpid(), threading.get_ident()), time.thread_time() - start)
