"""Workers that finish other roots are not inside of what they are said to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched._pool.alibi import Alibis, Held
from mpsched._shm import layout as lay
from mpsched._shm.layout import Layout
from mpsched._tasks import state as st

if TYPE_CHECKING:
    import random

LAYOUT = Layout.plan(2, entries=4, children=2, result_words=16, slab_bytes=64, function_bytes=64)
RUNNING = Held(3, 17, 1, st.word(st.RUNNING, 1))
CLAIMED = Held(3, 17, 1, st.word(st.CLAIMED, 1))
CHILD = Held(9, 17, 0, st.word(st.CLAIMED, 1))


class Looks:
    """Looks at worker 1, which says what it has executed."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(LAYOUT.size_bytes)).cast("Q")
        self.alibis = Alibis(self.words, LAYOUT)

    def at(self, held: Held, executed: int, incarnation: int = 1) -> bool:
        block = LAYOUT.block(1)
        self.words[block + lay.B_EXECUTED] = executed
        self.words[block + lay.B_INCARNATION] = incarnation
        self.alibis.begin()
        return self.alibis.elsewhere(held)


@pytest.mark.parametrize("held", [RUNNING, CHILD])
def test_alibi_third_change_proves_it(held: Held) -> None:
    """However much was done in the first two; what stands still proves nothing."""
    looks = Looks()
    told = [0, 0, 500, 500, 900, 900, 900, 901]
    assert [looks.at(held, executed) for executed in told] == [*[False] * 7, True]


def test_alibi_claimed_root_waits_for_those_before_it() -> None:
    """More than any claim has must have been run since the second change."""
    looks = Looks()
    told = [0, 5000, 9000, 9500, 10_024, 10_025]
    assert [looks.at(CLAIMED, executed) for executed in told] == [*[False] * 5, True]


def test_alibi_starts_anew_with_a_process_or_a_look_in_between() -> None:
    """The next process of an index, another word, or a look that did not see it: nothing is known."""
    looks = Looks()
    for executed in (1, 2, 3):
        assert not looks.at(RUNNING, executed)
    assert not looks.at(RUNNING, 4, incarnation=2)
    for executed in (5, 6):
        assert not looks.at(RUNNING, executed, incarnation=2)
    assert not looks.at(CLAIMED, 7, incarnation=2)  # `RUNNING` is not seen at this look
    for executed in (8, 9, 10):
        assert not looks.at(RUNNING, executed, incarnation=2)
    assert looks.at(RUNNING, 11, incarnation=2)


class Busy:
    """Worker 1, which finishes roots one after the other, and tells of them when it comes to it."""

    def __init__(self, words: memoryview, rng: random.Random) -> None:
        self.words, self.rng, self.executed = words, rng, 0

    def go_on(self) -> None:
        for _ in range(self.rng.choice((0, 0, 1, 2, 7))):
            if self.rng.random() < 0.5:
                self.executed += 1
            else:
                self.tell()

    def tell(self) -> None:
        self.words[LAYOUT.block(1) + lay.B_EXECUTED] = self.executed


def test_alibi_of_work_that_runs_is_never_found(rng: random.Random) -> None:
    """Counts are read, then the worker goes on, then what it runs by now is seen, at several looks."""
    for _ in range(300):
        looks = Looks()
        busy = Busy(looks.words, rng)
        for _ in range(60):
            looks.alibis.begin()
            busy.go_on()
            running = RUNNING._replace(ident=busy.executed)
            assert not looks.alibis.elsewhere(running), busy.executed
            for _ in range(rng.randrange(4)):
                looks.alibis.begin()
                assert not looks.alibis.elsewhere(running), busy.executed
                if rng.random() < 0.5:
                    busy.tell()
            busy.go_on()
