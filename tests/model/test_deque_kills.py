"""Published children with home and thieves killed before any store, and all orders of the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import pytest

from mpsched._shm import layout as lay
from mpsched._shm.layout import I_HEAD
from mpsched._tasks import state as st
from tests.support.forest import KEY, Forest, Script, World

RUN: Final[Script] = (("begin", 0), ("start", 0), ("finish", 0))
STEAL: Final[Script] = (("steal", 0), *RUN)

SCRIPTS: Final[dict[str, tuple[tuple[Script, Script, Script], tuple[int, ...]]]] = {
    "two children, one thief": (
        (
            (("publish", 0), ("publish", 1), ("join", 1), ("join", 0)),
            (*STEAL, *STEAL),
            (),
        ),
        (0, 1),
    ),
    "oldest first, two thieves": (
        (
            (("publish", 0), ("publish", 1), ("join", 0), ("join", 1)),
            STEAL,
            STEAL,
        ),
        (1, 2),
    ),
    "a child of a child": (
        (
            (("publish", 0), ("join", 0)),
            (("steal", 0), *RUN[:2], ("publish", 0), ("join", 0), RUN[2]),
            (("steal", 1), *RUN),
        ),
        (0, 1, 2),
    ),
    "help the one who has it": (
        (
            (("publish", 0), ("publish", 1), ("look", 0), ("help", 0), ("join", 0), ("join", 1)),
            (*STEAL, ("steal", 0), *RUN[:2], ("publish", 0), ("join", 0), RUN[2]),
            (),
        ),
        (1,),
    ),
    "help with what is below": (
        (
            (("publish", 0), ("look", 0), ("help", 0), ("join", 0)),
            (
                ("steal", 0),
                *RUN[:2],
                ("publish", 0),
                ("publish", 1),
                ("join", 1),
                ("join", 0),
                RUN[2],
            ),
            (("steal", 1), *RUN),
        ),
        (1,),
    ),
}


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is killed for being slow."""
    still = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr("mpsched._pool.trees.time", still)


@pytest.mark.parametrize("script", SCRIPTS)
def test_deque_kills_lose_no_child_and_call_none_twice(script: str) -> None:
    """Whoever is killed at whatever store: one outcome each, and no call after its root is settled."""
    scripts, mortal = SCRIPTS[script]
    forest = Forest(scripts, mortal=mortal)
    forest.run()
    assert forest.deaths > 100
    assert forest.ends > 10


# --- the test can fail: protocols that are wrong in one line -----------------------------------------


class IndexFirst(World):
    """A thief moves HEAD before it says that it has the child."""

    def steal(self, worker: int, victim: int) -> list[int]:
        ring = self.rings.deques[victim]
        handles = ring.handles()[:1]
        if handles:
            at = ring._base + I_HEAD
            self.words[at] = self.words[at] + len(ring) - len(ring.handles()) + 1
            self.rings.state[handles[0]] = st.word(st.CLAIMED, worker)
        return handles


class NoRepair(World):
    """The parent looks at state words before it has repaired the rings."""

    def bury(self, worker: int) -> None:
        self.trees.bury(worker, 10 + worker, -9)
        self.repair()


class EntryFirst(World):
    """Home frees the entry before the ring has let go of it."""

    def take_back(self, worker: int, handle: int) -> bool:
        ring = self.rings.deques[worker]
        ring.repair()
        if self.rings.state[handle] != st.word(st.QUEUED, worker):
            return False
        self.rings.state[handle] = st.FREE
        return ring.remove(handle)


class LooksBeforeLock(World):
    """Home takes from the worker that ran its child when it looked, before it had the lock."""

    def help(self, worker: int, handle: int, looked: int) -> list[int]:
        del handle
        state, thief = st.parts(looked)
        return self.steal(worker, thief) if state == st.RUNNING else []


class DeafThief(World):
    """A thief starts what it has claimed, whatever has become of home."""

    def start(self, worker: int, handle: int) -> bool:
        self.rings.state[handle] = st.word(st.RUNNING, worker)
        return True


class LooksTooEarly(World):
    """A thief looks at CANCEL and then says what it runs."""

    def begin(self, worker: int, handle: int) -> None:
        if self.table.cancel[handle]:
            self.rings.state[handle] = st.word(st.RUNNING, worker)

    def start(self, worker: int, handle: int) -> bool:
        if self.rings.state[handle] & 255 == st.RUNNING:
            self.rings.state[handle] = st.word(st.FAILED, worker)
            return False
        self.words[self.layout.block(worker) + lay.B_RUN] = KEY
        self.rings.state[handle] = st.word(st.RUNNING, worker)
        return True


class NotTold(World):
    """The parent does not tell the children of a dead home."""

    def bury(self, worker: int) -> None:
        super().bury(worker)
        for handle in range(len(self.rings.state)):
            self.table.cancel[handle] = 0


class LostTooSoon(World):
    """The parent does not wait for what runs below a child whose thief is dead."""

    def bury(self, worker: int) -> None:
        super().bury(worker)
        for dying in self.trees._dying:
            self.rings.state[dying.handle] = st.word(st.LOST, dying.thief)
        self.trees._dying.clear()


class RunsForgotten(World):
    """A thief says that it runs nothing while it still writes the outcome."""

    def begin(self, worker: int, handle: int) -> None:
        """RUN stays 0."""


MUTANTS: Final[list[tuple[type[World], str]]] = [
    (IndexFirst, "two children, one thief"),
    (NoRepair, "two children, one thief"),
    (EntryFirst, "two children, one thief"),
    (LooksBeforeLock, "help the one who has it"),
    (DeafThief, "two children, one thief"),
    (LooksTooEarly, "two children, one thief"),
    (NotTold, "two children, one thief"),
    (RunsForgotten, "two children, one thief"),
    (LostTooSoon, "a child of a child"),
]


@pytest.mark.parametrize(("wrong", "script"), MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_deque_kills_find_a_wrong_protocol(wrong: type[World], script: str) -> None:
    """The exploration notices each of the usual mistakes."""
    scripts, mortal = SCRIPTS[script]
    with pytest.raises(AssertionError):
        Forest(scripts, wrong, mortal=mortal).run()
