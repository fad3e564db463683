"""The parent's burial taken apart: before each of its stores somebody else takes steps, or dies in one.

Beside `forest.py`, where a burial is one step. The parent has one thread that buries, so it is never
interrupted by itself; what it holds a ring's lock for, nobody else does meanwhile.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from mpsched._pool.obituary import Death
from mpsched._tasks import state as st
from tests.support.forest import KEY, Forest, Place, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODYS = -1
ONE, TWO = -1, -2
"""Steps that somebody takes while the parent stands."""


class StepWorld(World):
    """A world in which the parent's locks count.

    Attributes:
        held: whose ring the parent has locked, or NOBODYS.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = NOBODYS
        self.trees._pool.locks = SimpleNamespace(  # type: ignore[assignment]
            try_acquire=self.acquire, release=self.release
        )

    def acquire(self, lock: int) -> bool:
        self.held = lock - self.layout.workers
        return True

    def release(self, lock: int) -> None:
        del lock
        self.held = NOBODYS

    def repair(self) -> None:
        for ring in self.rings.deques:
            self.acquire(ring.lock)
            ring.repair()
            self.release(ring.lock)

    def settle(self) -> bool:
        """Say what becomes of the root, whose worker is buried: True if nothing of it runs any more."""
        return not self.trees.wait_for(self.task, Death(0, 10, -9), 0)


class Steps(Forest):
    """Walks as `Forest`, and through every burial with steps of another worker before each store."""

    world: StepWorld

    def _following(self, snapshot: bytes, place: Place) -> list[tuple[bytes, Place]]:
        found = super()._following(snapshot, place)
        for worker, at in enumerate(place.at):
            if at == -1:

                def bury(worker: int = worker) -> None:
                    self._bury(worker)

                found += self._meanwhile(snapshot, place, bury)
        if place.waiting or place.dying:
            found += self._meanwhile(snapshot, place, self._check)
        return found

    def _check(self) -> None:
        world = self.world
        settled = bool(world.trees.check())
        world.place = world.place._replace(settled=world.place.settled or settled)

    def _bury(self, worker: int) -> None:
        world = self.world
        world.bury(worker)
        settled = world.place.settled
        if worker == 0:
            settled = world.settle()
        ats = list(world.place.at)
        ats[worker] = -2
        world.place = world.place._replace(at=tuple(ats), settled=settled)

    def _meanwhile(
        self, snapshot: bytes, place: Place, parent: Callable[[], None]
    ) -> list[tuple[bytes, Place]]:
        world, stores = self.world, self.world.rings.stores
        world.load(snapshot, place)
        made = stores.of(parent)
        found = []
        for store in range(made):
            for other, dies in self._others(snapshot, place):
                world.load(snapshot, place)
                done: list[bool] = []

                def act(other: int = other, dies: int = dies, done: list[bool] = done) -> None:
                    done.append(self._act(other, dies))

                with stores.meanwhile(store, act):
                    parent()
                world.held = NOBODYS
                if done[0]:
                    if dies >= 0:
                        self.deaths += 1
                    found.append(world.save())
        return found

    def _others(self, snapshot: bytes, place: Place) -> Iterator[tuple[int, int]]:
        """Give (worker, ONE or TWO steps, or the store of one before which it dies) of each that may."""
        for other, at in enumerate(place.at):
            if not 0 <= at < len(self.scripts[other]):
                continue
            yield other, ONE
            yield other, TWO
            if other in self.mortal:
                self.world.load(snapshot, place)
                made = self.world.rings.stores.of(lambda other=other: self._do(other))  # type: ignore[misc]
                for store in range(made + 1):
                    yield other, store

    def _act(self, other: int, dies: int) -> bool:
        """Take a worker's next step while the parent stands; False if it cannot."""
        world = self.world
        if world.held == self._ring_of(other) != NOBODYS:
            return False  # the parent has the lock
        if dies < 0:
            if not self._do(other):
                return False
            self._advance(other)
            at = world.place.at[other]
            if dies == ONE or at >= len(self.scripts[other]):
                return True
            return self._act(other, ONE)
        with world.rings.stores.killed_before(dies):
            self._do(other)
        self._die(other)
        return True

    def _ring_of(self, worker: int) -> int:
        """Return whose ring the next step of a worker locks."""
        what, arg = self.scripts[worker][self.world.place.at[worker]]
        if what == "steal":
            return arg
        if what == "help":
            state, thief = st.parts(self.world.rings.state[self.world.rings.handle(worker, arg)])
            return thief if state == st.RUNNING else NOBODYS
        return worker if what in {"publish", "join"} else NOBODYS


# --- parents that are wrong in one step -------------------------------------------------------------


class LooksAtRunFirst(StepWorld):
    """It looks who runs something of the root before it has told them that there is no root."""

    def bury(self, worker: int) -> None:
        self.running = self.trees.still_run(KEY)
        super().bury(worker)

    def settle(self) -> bool:
        return super().settle() if [w for w in self.running if w] else True


class NoLock(StepWorld):
    """It takes children out of a dead home's ring without having the ring's lock."""

    def acquire(self, lock: int) -> bool:
        del lock
        return True


class RepairsOneRing(StepWorld):
    """It repairs the ring of the dead only, not those in which the dead was a thief."""

    def bury(self, worker: int) -> None:
        self.rings.deques[worker].repair()
        self.trees.bury(worker, 10 + worker, -9)
