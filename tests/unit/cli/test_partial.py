"""`OUT.partial`, which one run at a time writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched.cli.companion import Companion, Header
from mpsched.cli.inputs import Item
from mpsched.cli.partial import FileSink, Rows, partial_path
from mpsched.cli.problems import Broken

if TYPE_CHECKING:
    from pathlib import Path

ROW = b'{"i": 0}\n'


def sink(out: Path) -> FileSink:
    """Return a sink that begins as a run without `--resume` does."""

    def begin() -> tuple[Companion, Rows]:
        open(partial_path(str(out)), "wb").close()
        return Companion(str(out), Header("f.py:g", "", {}, {})), Rows()

    return FileSink(str(out), begin, ordered=True)


def test_partial_of_another_run_is_left_alone(tmp_path: Path) -> None:
    """Of two runs that begin together the one with the later first row is refused."""
    out = tmp_path / "rows.jsonl"
    early, late = sink(out), sink(out)
    early.put(Item(0, "a", None, 0), ROW)
    early.flush()
    late.put(Item(0, "b", None, 0), ROW)
    with pytest.raises(Broken, match=r"another mpsched map is writing .*rows\.jsonl\.partial"):
        late.flush()
    late.close()
    early.finish()
    early.close()
    assert out.read_bytes() == ROW


def test_partial_is_free_when_its_run_has_ended(tmp_path: Path) -> None:
    """A run that was stopped does not keep the next one out."""
    out = tmp_path / "rows.jsonl"
    for _ in range(2):
        one = sink(out)
        one.put(Item(0, "a", None, 0), ROW)
        one.flush()
        one.close()
    assert (tmp_path / "rows.jsonl.partial").read_bytes() == ROW
