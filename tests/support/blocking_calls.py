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


def held(folder: str, name: str) -> tuple[int, int]:
    """Hold without a word; return this worker's index and how many of its tasks block."""
    from mpsched._shm import layout as lay
    from mpsched._worker import context

    worker = context._worker
    assert worker is not None
    hold(folder, name)
    return worker.index, worker.words[worker.block + lay.B_BLOCKED]


def fail() -> None:
    """Fail with nothing in particular."""
    raise ValueError("on purpose")


def index() -> int:
    """Return this worker's index."""
    worker = mpsched.current_worker()
    assert worker is not None
    return worker.index
