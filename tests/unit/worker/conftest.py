"""What the tests of a worker's parts have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def quiet() -> Iterator[QuietPool]:
    """A pool of two whose workers do what the test does with them."""
    pool = QuietPool()
    yield pool
    pool.close()
