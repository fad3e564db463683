"""Where the house's files are, and how they are found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import mpsched
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# The installed package, which is not in the checkout when the tests run against a wheel.
PACKAGE = Path(mpsched.__file__).parent
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
CODE = (PACKAGE, TESTS, ROOT / "benchmarks", EXAMPLES)


def rooms() -> list[Path]:
    """Return the folders of the package, each of which has a specification."""
    return sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


def code_files() -> Iterator[Path]:
    """Yield every Python file of the repository."""
    for folder in CODE:
        yield from sorted(folder.rglob("*.py"))


def documents() -> list[Path]:
    """Return every document of the repository."""
    folders = (*CODE, ROOT / "docs")
    return sorted(
        [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))]
    )
