"""Files stay small enough to be read in one sitting."""

from __future__ import annotations

from tests.house import places
from tests.support.scripts import ROOT

LIMIT = 600

# path -> why it is longer. An entry whose file has become short must go.
LONGER: dict[str, str] = {}


def test_sizes_no_code_file_is_over_the_limit() -> None:
    """No Python file has more than 600 lines, unless a reason is given here."""
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in places.code_files()
    }
    assert len(sizes) > 10, "the files were not found"
    longer = {path: lines for path, lines in sizes.items() if lines > LIMIT}
    assert longer.keys() == LONGER.keys(), longer


def test_sizes_nothing_is_left_for_later() -> None:
    """No file says that something is still to be done."""
    marks = tuple(first + rest for first, rest in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*places.code_files(), *places.documents()]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert found == []
