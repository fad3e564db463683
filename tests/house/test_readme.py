"""What the README shows runs, and prints what the README says."""

from __future__ import annotations

import re

import pytest

from mpsched._pool.options import KEYS
from tests.support.scripts import ROOT, run_script

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)


def printed_by(block: str) -> str:
    """Return what the block's `#>` lines say that it prints."""
    return "".join(f"{line}\n" for line in re.findall(r"^#> (.*)$", block, re.MULTILINE))


@pytest.mark.parametrize("number", range(len(BLOCKS)))
@pytest.mark.parametrize("stdin", [False, True], ids=["file", "stdin"])
def test_readme_block_prints_what_it_says(number: int, stdin: bool) -> None:
    """Each block is a whole program, as a file and fed to `python -`, without a main guard."""
    result = run_script(BLOCKS[number], stdin=stdin)
    assert (result.rc, result.err) == (0, "")
    assert result.out == printed_by(BLOCKS[number]) != ""


_GUIDES = [
    pytest.param(block, id=f"{name}-{number}")
    for name in ("executor", "forkjoin", "scheduler")
    for number, block in enumerate(
        re.findall(
            r"^```python\n(.*?)^```",
            (ROOT / "docs" / f"{name}.md").read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    )
]


@pytest.mark.parametrize("block", _GUIDES)
def test_guide_block_prints_what_it_says(block: str) -> None:
    """Each block of a guide is a whole program, too."""
    result = run_script(block)
    assert (result.rc, result.err) == (0, "")
    assert result.out == printed_by(block) != ""


def test_executor_guide_lists_every_option_with_its_default() -> None:
    """The table of options has each key, in order, and no other."""
    text = (ROOT / "docs" / "executor.md").read_text("utf-8")
    table = text[text.index("## Options") : text.index("```python", text.index("## Options"))]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == KEYS


def test_readme_shows_the_forms_that_people_paste() -> None:
    """The quick start has a block for each of the six forms, beside the first one."""
    forms = (
        r"^    ex\.map\(",  # never iterated
        r"as_completed\(inputs\)",
        r"initializer=",
        r"for .*\n.*lambda",
        r"\*= 2",
        r"partial\(",
    )
    for form in forms:
        assert any(re.search(form, block, re.MULTILINE) for block in BLOCKS), form
