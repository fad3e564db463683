# Users leave parameters without annotations, and so do these functions:
# mypy: disable-error-code="no-untyped-def, type-arg"
"""The signature: what the first parameter gets, and `--arg`."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Mapping  # noqa: TC003 - an annotation that is evaluated
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from mpsched.cli.bind import bind
from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal


def plain(text): ...
def a_str(text: str): ...
def a_path(path: Path): ...
def a_pure_path(path: pathlib.PurePosixPath): ...
def some_bytes(data: bytes): ...
def an_int(n: int): ...
def a_float(x: float): ...
def a_dict(row: dict[str, Any]): ...
def a_mapping(row: Mapping[str, int]): ...
def maybe_path(path: Path | None): ...
def old_maybe(n: Optional[int]): ...  # noqa: UP045 - users write it
def path_or_text(path: str | Path): ...
def annotated(path: Annotated[Path, "an input"]): ...
def only_for_checkers(x: Decimal): ...
def quoted(path: pathlib.Path): ...
def variadic(*paths: Path): ...


class Caller:
    def __call__(self, path: Path): ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, "text"),
        (a_str, "text"),
        (a_path, "path"),
        (a_pure_path, "path"),
        (some_bytes, "bytes"),
        (an_int, "int"),
        (a_float, "float"),
        (a_dict, "dict"),
        (a_mapping, "dict"),
        (maybe_path, "path"),
        (old_maybe, "int"),
        (path_or_text, "text"),
        (annotated, "path"),
        (only_for_checkers, "text"),
        (quoted, "path"),
        (variadic, "path"),
        (Caller(), "path"),
        (functools.partial(a_path), "path"),
        (len, "text"),
        (os.path.getsize, "text"),
    ],
)
def test_bind_first_parameter_decides_what_is_passed(
    function: Callable[..., Any], kind: str
) -> None:
    """The annotation of the first parameter, however it is written."""
    assert bind(function, "f", "text", ()).first == kind


def test_bind_batch_looks_into_the_list() -> None:
    """With --batch the annotation of the elements counts."""

    def numbers(ns: list[int]): ...
    def paths(ps: list[Path]): ...
    def anything(xs: list): ...

    kinds = [bind(function, "f", "batch", ()).first for function in (numbers, paths, anything)]
    assert kinds == ["int", "path", "text"]


def full(
    text,
    lang: str = "eng",
    out: Path | None = None,
    n: int = 1,
    x: float = 0.0,
    flag: bool = False,
    data: dict | None = None,
    free=None,
    *,
    last: bytes = b"",
): ...


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (("lang", "1.10"), "1.10"),
        (("lang", "null"), "null"),
        (("out", "a/b"), Path("a/b")),
        (("out", "null"), None),
        (("n", "3"), 3),
        (("x", "3"), 3.0),
        (("x", "1e3"), 1000.0),
        (("flag", "true"), True),
        (("data", '{"a": [1]}'), {"a": [1]}),
        (("free", "[1, 2]"), [1, 2]),
        (("free", "deu"), "deu"),
        (("free", "NaN"), "NaN"),
        (("free", ""), ""),
        (("last", "é"), "é".encode()),
    ],
)
def test_bind_arg_is_converted(given: tuple[str, str], value: object) -> None:
    """By the annotation, else JSON if it parses, else text."""
    bound = bind(full, "f", "text", [given])
    assert bound.fixed == {given[0]: value}
    assert type(bound.fixed[given[0]]) is type(value)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([("lnag", "x")], "no parameter 'lnag'"),
        ([("text", "x")], "gets the input"),
        ([("n", "x")], "not int"),
        ([("n", "1.5")], "not int"),
        ([("n", "true")], "not int"),
        ([("x", "fast")], "not float"),
        ([("flag", "1")], "not bool"),
        ([("n", "1"), ("n", "2")], "twice"),
    ],
)
def test_bind_wrong_arg_is_usage(args: list[tuple[str, str]], said: str) -> None:
    """A name or value that does not fit is found before anything runs."""
    with pytest.raises(Usage) as caught:
        bind(full, "f", "text", args)
    assert said in str(caught.value)


def test_bind_missing_parameter_is_named() -> None:
    """A parameter without a value is asked for."""

    def needs(text, lang): ...

    with pytest.raises(Usage, match=r"lang.*--arg NAME=VALUE"):
        bind(needs, "f.py:needs", "text", ())
    assert bind(needs, "f", "text", [("lang", "x")]).fixed == {"lang": "x"}


def test_bind_function_that_takes_nothing_is_refused() -> None:
    """There must be a parameter for the input."""

    def nothing(): ...

    with pytest.raises(Usage, match="takes 0"):
        bind(nothing, "f", "text", ())


def test_bind_keywords_of_any_name() -> None:
    """`**kwargs` takes any name, with JSON values."""

    def anything(text, **more): ...

    assert bind(anything, "f", "text", [("a", "1"), ("b", "x")]).fixed == {"a": 1, "b": "x"}


def test_bind_block_needs_three_parameters() -> None:
    """--block passes path, start, stop."""

    def ranged(path: Path, start, stop, n=1): ...

    bound = bind(ranged, "f", "block", [("n", "2")])
    assert (bound.first, bound.fixed) == ("path", {"n": 2})
    with pytest.raises(Usage, match="start"):
        bind(ranged, "f", "block", [("start", "2")])
    with pytest.raises(Usage, match="path, start, stop"):
        bind(a_path, "f", "block", ())


def test_bind_kwargs_checks_the_first_line() -> None:
    """A line must be an object whose keys FUNC takes; --arg fills in."""

    def sweep(fast: int, slow: int, out: Path): ...

    bound = bind(sweep, "f", "kwargs", [("out", "o")])
    assert bound.paths == {"out"}
    bound.check_kwargs('{"fast": 1, "slow": 2}')
    for line, said in [
        ("x", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"fast": 1}', "slow"),
        ('{"fast": 1, "slow": 2, "medium": 3}', "medium"),
    ]:
        with pytest.raises(Usage) as caught:
            bound.check_kwargs(line)
        assert said in str(caught.value)


def test_bind_function_without_signature_is_trusted() -> None:
    """Some C functions do not tell; the first call does."""
    bound = bind(dict, "builtins:dict", "kwargs", ())
    bound.check_kwargs(json.dumps({"a": 1}))
    assert bound.describe().startswith("builtins:dict")
