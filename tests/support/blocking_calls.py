"""Tasks that block and say so, for tests of spare workers."""

from __future__ import annotations

import mpsched
from tests.support.crash_calls import hold


def blocked(folder: str, name: str) -> int:
    """Block until the test lets it go on; return this worker's index."""
    worker = mpsched.current_worker()
    assert worker is not None
    with mpsched.blocking():
        hold(folder, name)
    return worker.index


def index() -> int:
    """Return this worker's index."""
    worker = mpsched.current_worker()
    assert worker is not None
    return worker.index
