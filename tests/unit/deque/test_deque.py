"""The public end of a split deque, one process, nobody killed."""

from __future__ import annotations

import pytest

from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from tests.support.boxes import Rings


@pytest.fixture
def rings() -> Rings:
    return Rings(2, slots=4)


def test_deque_gives_thieves_the_oldest(rings: Rings) -> None:
    """What was published first is taken first, one at a time, CLAIMED by who takes it."""
    rings.push(0, [0, 1, 2])
    ring = rings.deques[0]
    assert ring.take(1, claimer=1) == [rings.handle(0, 0)]
    assert st.parts(rings.state_of(0, 0)) == (st.CLAIMED, 1)
    assert ring.take(1, claimer=1) == [rings.handle(0, 1)]
    rings.check()


def test_deque_take_back_is_for_what_no_thief_has(rings: Rings) -> None:
    """Home has it once or not at all; a thief that comes afterwards passes the gap."""
    rings.push(0, [0, 1, 2])
    ring = rings.deques[0]
    assert ring.take_back(rings.handle(0, 1))
    rings.free(0, 1)
    assert not ring.take_back(rings.handle(0, 1))
    rings.check()
    assert ring.take(1, claimer=1) == [rings.handle(0, 0)]
    assert ring.take(1, claimer=1) == [rings.handle(0, 2)]
    assert not ring.take_back(rings.handle(0, 0))


def test_deque_room_counts_gaps_as_taken(rings: Rings) -> None:
    """A TOMB is in the way until the head has passed it."""
    rings.push(0, [0, 1, 2])
    ring = rings.deques[0]
    assert ring.room() == 1
    ring.take_back(rings.handle(0, 1))
    rings.free(0, 1)
    assert ring.room() == 1
    ring.take(1, claimer=1)
    assert ring.room() == 2
    ring.take(1, claimer=1)
    assert ring.room() == 4


def test_deque_of_one_worker_is_not_anothers(rings: Rings) -> None:
    """Rings, and their locks, are apart from each other and from the inboxes."""
    rings.push(0, [0])
    rings.push(1, [0, 1])
    assert rings.deques[1].take(4, claimer=0) == [rings.handle(1, 0), rings.handle(1, 1)]
    assert len(rings.deques[0]) == 1
    assert {ring.lock for ring in rings.deques} == {2, 3}
    firsts = {rings.layout.ring(0), rings.layout.ring(1), rings.layout.inbox(0)}
    assert len(firsts) == 3
    assert rings.layout.ring(1) - rings.layout.ring(0) == lay.INBOX_HEADER + 4
