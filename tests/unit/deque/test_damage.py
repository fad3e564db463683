"""Rings whose words something has overwritten: a clear error, no loop and no read that goes astray."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mpsched._deque.deque import Deque
from mpsched._deque.inbox import Inbox
from mpsched._shm.layout import I_DIRTY, INBOX_HEADER, Layout
from mpsched._shm.words import Damaged
from mpsched._tasks import state as st
from tests.support.damage import damage, ends

if TYPE_CHECKING:
    from mpsched._deque.ring import Ring

SLOTS = 8
ROUNDS = 1500


class Box:
    """One ring with something in it, in plain memory."""

    def __init__(self, kind: type[Inbox | Deque], dice: random.Random) -> None:
        self.layout = layout = Layout.plan(
            2,
            entries=16,
            inbox_slots=SLOTS,
            ring_slots=SLOTS,
            children=16,
            child_bytes=8,
            result_words=2,
            slab_bytes=8,
            function_bytes=8,
            function_slots=2,
        )
        self.words = memoryview(bytearray(layout.size_bytes)).cast("Q")
        self.ring: Inbox | Deque = kind(self.words, layout, 0)
        kind.initialise(self.words, layout, 0)
        self.base = layout.inbox(0) if kind is Inbox else layout.ring(0)
        self.places = range(self.base, self.base + INBOX_HEADER + SLOTS)
        handles = dice.sample(range(layout.total), dice.randint(0, SLOTS))
        state = self.words[layout.state : layout.state + layout.total]
        for handle in handles:
            state[handle] = st.word(st.QUEUED, 0)
        self.ring.push(handles)
        self.ring.take(dice.randint(0, 4), 1)
        if dice.random() < 0.5:
            self.words[self.base + I_DIRTY] = dice.choice([1, 2]) | dice.randrange(2) << 8


def use(ring: Ring, dice: random.Random) -> list[int]:
    """Do something as a holder of the lock does it; returns the handles that came out."""
    ring.repair()
    what = dice.randrange(5)
    if what == 0:
        return ring.take(dice.randint(1, 9), 1)
    if what == 1:
        ring.push([3])
    elif what == 2:
        ring.remove(3)
    elif what == 3:
        assert len(ring.handles()) <= SLOTS + 1  # and the early one
    elif isinstance(ring, Inbox):
        ring.give_back([4, 5])
    return []


@pytest.mark.parametrize("kind", [Inbox, Deque])
@pytest.mark.parametrize("seed", range(4))
def test_damage_of_a_ring_is_an_error_or_harmless(kind: type[Inbox | Deque], seed: int) -> None:
    """Whatever its words say: operations end, say `Damaged`, and give out no handle that is none."""
    dice = random.Random(seed)
    errors: list[Damaged] = []
    with ends():
        for number in range(ROUNDS):
            box = Box(kind, dice)
            changed = damage(box.words, box.places, dice)
            assert 0 <= len(box.ring) <= SLOTS
            handles = []
            try:
                for _ in range(3):
                    handles += use(box.ring, dice)
            except Damaged as error:
                errors.append(error)
            assert max(handles, default=0) < box.layout.total, (seed, number, changed, handles)
    assert len(errors) > ROUNDS // 10
    assert all("is damaged" in str(error) for error in errors)


def test_damage_of_a_slot_stops_whoever_comes_next() -> None:
    """A handle that is none: nothing is taken, now or after the repair, which says the same."""
    box = Box(Inbox, random.Random(1))
    box.words[box.base + I_DIRTY] = 0
    box.ring.take(SLOTS, 1)
    box.ring.push([2])
    slot = next(place for place in box.places[INBOX_HEADER:] if box.words[place] == 2)
    box.words[slot] = 1 << 40
    with pytest.raises(Damaged):
        box.ring.take(1, 1)
    with pytest.raises(Damaged):
        box.ring.repair()
    with pytest.raises(Damaged):
        box.ring.verify()
    assert len(box.ring) == 1
