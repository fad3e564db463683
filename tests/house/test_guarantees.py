"""`docs/guarantees.md`: each promise names the tests that hold it, and they run by day."""

from __future__ import annotations

import re
from typing import Final

from tests.house import places

TEXT: Final = (places.TESTS.parent / "docs" / "guarantees.md").read_text("utf-8")
_PROMISE: Final = re.compile(
    r"^(\d+)\. \*\*(.+?)\*\*(.*?)(?=^\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL
)
_FUNCTION: Final = re.compile(r"((?:^@.*\n)*)^def (test_\w+)", re.MULTILINE)


def promises() -> dict[int, list[str]]:
    """Return the tests that each promise names."""
    return {
        int(number): re.findall(r"`(test_\w+)`", body.partition("*Tests*:")[2])
        for number, _, body in _PROMISE.findall(TEXT)
    }


def test_guarantees_name_the_tests_that_hold_them() -> None:
    """Numbered without a gap, and each has two tests or more."""
    found = promises()
    assert list(found) == list(range(1, len(found) + 1))
    assert len(found) >= 17
    assert [number for number, tests in found.items() if len(tests) < 2] == []


def test_guarantees_tests_exist_and_run_by_day() -> None:
    """Each test is there, and is not one that only the night runs."""
    marks = {
        name: decorators
        for path in places.TESTS.rglob("test_*.py")
        for decorators, name in _FUNCTION.findall(path.read_text("utf-8"))
    }
    named = {name for tests in promises().values() for name in tests}
    assert sorted(named - marks.keys()) == []
    assert sorted(name for name in named if "mark.slow" in marks[name]) == []
