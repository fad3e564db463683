"""Every example runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.house import places
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# name -> arguments that make a long example short; its work is then a part of the real one.
_SHORTER = {"stdlib_report": ["--every", "20"]}


def names() -> list[str]:
    """Return what can follow `python -m examples.`."""
    files = [path.stem for path in places.EXAMPLES.glob("*.py") if path.stem != "__init__"]
    return sorted([*files, *(path.parent.name for path in places.EXAMPLES.glob("*/__main__.py"))])


@pytest.mark.parametrize("name", names())
def test_examples_run_to_their_end(name: str, tmp_path: Path) -> None:
    """An example ends with status 0, from any folder."""
    result = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *_SHORTER.get(name, [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip(), "an example prints what it shows"
    assert result.stderr == ""


def test_examples_are_there() -> None:
    """The folder of examples was found."""
    assert names()
