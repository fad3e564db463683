"""Roots that lie nowhere are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched._deque.ring import TOMB
from mpsched._pool.audit import Audit
from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def quiet() -> Iterator[QuietPool]:
    """A pool whose workers do nothing."""
    pool = QuietPool()
    yield pool
    pool.close()


def looks(audit: Audit, count: int) -> None:
    """Look so often, without waiting between."""
    for _ in range(count):
        audit._due = 0.0
        audit.look()


def dispatch(quiet: QuietPool, count: int) -> None:
    """Dispatch roots, as many to each worker."""
    for _ in range(count):
        quiet.ready.append(quiet.task(), 0)
    quiet.dispatcher.pump()


def test_audit_of_a_sound_pool_finds_nothing(quiet: QuietPool) -> None:
    """Roots in inboxes, in a worker's hands, and none."""
    audit = Audit(quiet.as_pool)
    looks(audit, 3)
    dispatch(quiet, 6)
    looks(audit, 3)
    worker = quiet.workers[0]
    assert worker._claim()
    looks(audit, 3)


def test_audit_finds_a_root_that_lies_nowhere(quiet: QuietPool) -> None:
    """At the second look: it fails the pool, with a text that says which."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.INBOX_HEADER + words[base + lay.I_HEAD] % quiet.layout.inbox_slots] = TOMB
    audit = Audit(quiet.as_pool)
    looks(audit, 1)
    with pytest.raises(Damaged, match=r"waits for worker 0, and lies in no inbox"):
        looks(audit, 1)


def test_audit_finds_an_index_that_is_wrong(quiet: QuietPool) -> None:
    """A HEAD beyond TAIL looks empty to whoever only glances at it."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.I_HEAD] = words[base + lay.I_TAIL] + 3
    with pytest.raises(Damaged, match="the inbox of worker 0 is damaged"):
        looks(Audit(quiet.as_pool), 1)


def test_audit_waits_for_nobody_who_holds_an_inbox(quiet: QuietPool) -> None:
    """What somebody moves is looked at the next time."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.INBOX_HEADER + words[base + lay.I_HEAD] % quiet.layout.inbox_slots] = TOMB
    quiet.locks.tries = 0
    audit = Audit(quiet.as_pool)
    quiet.locks.taken = {0}
    looks(audit, 3)
    quiet.locks.taken = set()
    looks(audit, 1)
    with pytest.raises(Damaged):
        looks(audit, 1)
