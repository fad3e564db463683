"""The rooms' specifications exist, and what they point at does too."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.house import places
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# An invariant is defined where its id opens a list item or a table row: "- SHM-1: ...".
_DEFINITION = re.compile(r"^\s*(?:[-*|]\s*)(?:\*\*|`)?([A-Z]{2,}-\d+)\b", re.MULTILINE)
_ID = re.compile(r"\b([A-Z]{2,})-(\d+)\b")
_TEST_NAME = re.compile(r"`(?:[\w/]+\.py::)?(test_\w+)(\.py)?`")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)?(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_CITED = re.compile(r'(?:(\w+)/)?README\.md,\s+"([^"]+)"')
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str:
    """Return a document without its code blocks."""
    return _FENCE.sub("", path.read_text("utf-8"))


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as code hosts make them."""
    headings = _HEADING.findall(text_of(path))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


DOCUMENTS = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in places.documents()]


@pytest.mark.parametrize("room", places.rooms(), ids=lambda room: room.name)
def test_readmes_every_room_has_its_specification(room: Path) -> None:
    """Each folder of the package has a README.md that says more than its name."""
    assert len((room / "README.md").read_text("utf-8").splitlines()) > 5


@pytest.mark.parametrize("room", places.rooms(), ids=lambda room: room.name)
def test_readmes_every_file_of_a_room_is_named(room: Path) -> None:
    """A room's README names each of its files."""
    text = (room / "README.md").read_text("utf-8")
    files = {path.name for path in room.glob("*.py")} - {"__init__.py"}
    assert {name for name in files if name not in text} == set()


def test_readmes_invariant_ids_are_defined_once() -> None:
    """No two invariants share an id, in any document."""
    ids = Counter(
        name for path in places.documents() for name in _DEFINITION.findall(text_of(path))
    )
    assert ids, "no invariant was found"
    assert {name: count for name, count in ids.items() if count > 1} == {}


def test_readmes_invariant_ids_that_are_used_are_defined() -> None:
    """Code and documents refer only to invariants that exist."""
    defined = {name for path in places.documents() for name in _DEFINITION.findall(text_of(path))}
    families = {name.partition("-")[0] for name in defined}
    dangling = [
        f"{path.relative_to(ROOT)}: {prefix}-{number}"
        for path in [*places.documents(), *places.code_files()]
        for prefix, number in _ID.findall(path.read_text("utf-8"))
        if prefix in families and f"{prefix}-{number}" not in defined
    ]
    assert dangling == []


def test_readmes_tests_that_are_named_exist() -> None:
    """A document that names a test, or a file of tests, names one that is there."""
    files = {path.stem for path in places.code_files() if path.stem.startswith("test_")}
    functions = {
        name
        for path in places.TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in places.documents()
        for name, is_file in _TEST_NAME.findall(text_of(path))
        if name not in (files if is_file else functions | files)
    ]
    assert missing == []


def test_readmes_headings_that_code_names_exist() -> None:
    """`See README.md, "Heading"` in a file of a room names a heading of that room's README."""
    missing = []
    cited = 0
    for path in sorted(places.PACKAGE.rglob("*.py")):
        for room, heading in _CITED.findall(path.read_text("utf-8")):
            readme = (path.parent if not room else places.PACKAGE / room) / "README.md"
            cited += 1
            if " ".join(heading.split()) not in _HEADING.findall(text_of(readme)):
                missing.append(f"{path.relative_to(ROOT)}: {heading}")
    assert cited > 30, "the citations were not found"
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_readmes_links_lead_somewhere(document: Path) -> None:
    """A relative link names a file that exists, and a heading that it has."""
    for target, anchor in _LINK.findall(text_of(document)):
        file = (document.parent / target).resolve() if target else document
        assert file.exists(), f"{target} does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors_of(file), f"{file.name} has no heading #{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_readmes_numbered_steps_are_contiguous(document: Path) -> None:
    """A numbered protocol has no step missing: each number follows the one before, or starts at 1."""
    last: dict[str, int] = {}
    for line in text_of(document).splitlines():
        if line.startswith("#"):
            last = {}
        if step := re.match(r"( *)(\d+)\. ", line):
            indent, number = step[1], int(step[2])
            assert number in {1, last.get(indent, 0) + 1}, line
            last[indent] = number
