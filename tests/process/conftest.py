"""What tests of by-value pickling get: a notebook, and another interpreter."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

import pytest

from tests.support.peer import Notebook, Peer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """This process's `__main__`, as a notebook has it."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return Notebook(module)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Another interpreter that plays the worker."""
    with Peer() as other:
        yield other
