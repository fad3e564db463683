"""A keyword that a function does not have: the error says which one was meant."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpsched._base import keywords

ROOT = Path(__file__).resolve().parents[3]


@keywords.explained("sample", {"retries": "use retry()"})
def sample(first: int, /, second: int = 2, *more: int, third: int = 3) -> tuple[Any, ...]:
    """Return what it was given."""
    not_a_keyword = first
    return not_a_keyword, second, more, third


def test_keywords_that_are_known_arrive() -> None:
    """With everything else that the function was called with."""
    assert sample(1) == (1, 2, (), 3)
    assert sample(1, 5, 6, 7, third=8) == (1, 5, (6, 7), 8)
    assert sample(1, second=9) == (1, 9, (), 3)
    assert list(inspect.signature(sample).parameters) == ["first", "second", "more", "third"]
    assert sample.__doc__ == "Return what it was given."


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("thrid", "did you mean 'third'? (known: second, third)"),
        ("seconds", "did you mean 'second'? (known: second, third)"),
        ("retries", "use retry() (known: second, third)"),
    ],
)
def test_keywords_that_are_unknown_are_explained(key: str, hint: str) -> None:
    """With the nearest one, or with where it belongs."""
    with pytest.raises(TypeError) as caught:
        sample(1, **{key: 2})
    assert str(caught.value) == f"sample() got an unexpected keyword argument {key!r}; {hint}"


@pytest.mark.parametrize("key", ["xyz", "first", "more", "not_a_keyword"])
def test_keywords_that_nothing_is_near_to_are_named(key: str) -> None:
    """Positional parameters and local variables are no keywords."""
    with pytest.raises(TypeError) as caught:
        sample(1, **{key: 2})
    expected = f"sample() got an unexpected keyword argument {key!r} (known: second, third)"
    assert str(caught.value) == expected


def test_keywords_do_not_import_difflib() -> None:
    """Until there is a wrong one."""
    program = (
        "import sys, mpsched; ex = mpsched.WorkStealingExecutor(0)\n"
        "assert list(ex.map(abs, [-1], chunksize=2)) == [1]\n"
        "assert 'difflib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
