"""What tests of the command share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def imports_as_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules and folders of tests' own that FUNC was loaded from."""
    path = sys.path[:]
    base = str(tmp_path_factory.getbasetemp().resolve())
    yield
    sys.path[:] = path
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(base):
            del sys.modules[name]
