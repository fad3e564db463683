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


def test_deque_push_at_any_store_of_a_take_is_kept(rings: Rings) -> None:
    """Home pushes without the lock: whatever a thief is about to store, each is where it belongs."""
    rings.push(0, [0, 1])
    ring, begin = rings.deques[0], rings.snapshot()
    stores = rings.stores.of(lambda: ring.take(1, claimer=1))
    assert stores >= 5
    for store in range(stores):
        rings.restore(begin)
        with rings.stores.meanwhile(store, lambda: rings.push(0, [2])):
            assert ring.take(1, claimer=1) == [rings.handle(0, 0)], store
        rings.check()
        assert ring.handles() == [rings.handle(0, 1), rings.handle(0, 2)], store


def test_deque_push_beside_what_a_killed_thief_left_is_kept(rings: Rings) -> None:
    """Home, which takes no lock, repairs nothing; whoever has the lock next does, and finds all."""
    rings.push(0, [0, 1])
    ring, begin = rings.deques[0], rings.snapshot()
    stores = rings.stores.of(lambda: ring.take(1, claimer=1))
    for killed in range(stores):
        rings.restore(begin)
        with rings.stores.killed_before(killed):
            ring.take(1, claimer=1)
        rings.push(0, [2])
        dirty = rings.snapshot()
        repairs = rings.stores.of(ring.repair)
        for store in range(repairs):
            rings.restore(dirty)
            with rings.stores.meanwhile(store, lambda: rings.push(0, [3])):
                ring.repair()
            rings.check()
        taken = st.parts(rings.state_of(0, 0))[0] == st.CLAIMED
        left = [0, 1, 2, 3][taken : 4 if repairs else 3]
        assert ring.handles() == [rings.handle(0, child) for child in left], killed


def test_deque_push_meanwhile_is_not_taken(rings: Rings) -> None:
    """Who reads TAIL, looks at something, and then takes, gets nothing that was pushed after its reading."""
    rings.push(0, [0])
    ring = rings.deques[0]
    until = ring.tail
    rings.push(0, [1])
    assert ring.take(1, 1, until) == [rings.handle(0, 0)]
    assert ring.take(1, 1, until) == []
    rings.check()
    assert ring.take(1, 1) == [rings.handle(0, 1)]
    # Nor is it an error that others have gone on meanwhile.
    assert ring.take(1, 1, until) == []


def test_deque_ends_differ_while_something_is_in_it(rings: Rings) -> None:
    """A thief may look at two words instead of asking for the length."""
    ring = rings.deques[0]
    head, tail = ring.ends
    assert rings.memory[head] == rings.memory[tail]
    rings.push(0, [0])
    assert rings.memory[head] + 1 == rings.memory[tail]
    ring.take(1, claimer=1)
    assert rings.memory[head] == rings.memory[tail]
