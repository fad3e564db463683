"""A pool that forks, in one process: every order of what home, thieves and parent do, and every kill.

An operation under a ring's lock is alone, so whole operations are interleaved; a process can die before
any of its stores. The rings and what the parent does (`Trees`) are the real ones; what workers do beside
is written out here as in `_deque/README.md`, so that tests can get it wrong on purpose.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpsched._pool.obituary import Death
from mpsched._pool.task import Task
from mpsched._pool.trees import Trees, _Dying
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from tests.support.boxes import Rings
from tests.support.stores import View, as_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KEY: Final = 5
"""Run key of the only root; home is worker 0."""
DEAD: Final = -1
BURIED: Final = -2

Step = tuple[str, int]
Script = tuple[Step, ...]


class Place(NamedTuple):
    """What is not in shared memory.

    Attributes:
        at: next step of each worker, DEAD or BURIED.
        hands: the children that each worker has taken and not finished, innermost last.
        calls: (child, worker) of each call that began, in order; those of dead workers taken out.
        busy: of these, the calls that have not ended.
        joined: children whose outcome their home has.
        parents: (child, the child whose call published it; -1: the root).
        looked: state word that home has read.
        settled: the root has failed for good, or its next attempt may start.
        waiting, dying: what `Trees` remembers.
    """

    at: tuple[int, ...]
    hands: tuple[tuple[int, ...], ...]
    calls: tuple[tuple[int, int], ...] = ()
    busy: tuple[tuple[int, int], ...] = ()
    joined: tuple[int, ...] = ()
    parents: tuple[tuple[int, int], ...] = ()
    looked: int = 0
    settled: bool = False
    waiting: tuple[Any, ...] = ()
    dying: tuple[Any, ...] = ()


class World:
    """Rings, words and parent of a pool of three workers, and what workers do.

    A test replaces a method to see that a wrong one is found.
    """

    def __init__(self) -> None:
        self.rings = Rings(3, slots=2, children=2)
        self.layout = layout = self.rings.layout
        words = View(self.rings.memory, self.rings.stores)
        self.words = as_memory(words)

        def field(first: int) -> View:
            return words[first : first + layout.total]  # type: ignore[no-any-return]

        self.table = SimpleNamespace(
            state=self.rings.state,
            cancel=field(layout.cancel),
            ident=field(layout.ident),
            length=field(layout.length),
            below=field(layout.below),
            started=field(layout.started),
            run_key=lambda _handle: KEY,
        )
        self.task = Task(1, 0, b"")
        self.task.handle = 0
        pool = SimpleNamespace(
            segment=SimpleNamespace(words=self.words),
            layout=layout,
            table=self.table,
            locks=SimpleNamespace(try_acquire=lambda _: True, release=lambda _: None),
            bells=[SimpleNamespace(wake=lambda: None)] * 3,
        )
        self.trees = Trees(pool)  # type: ignore[arg-type]
        for ring in self.trees.deques:
            ring._state = as_memory(self.rings.state)
        self.rings.memory[layout.block(0) + lay.B_RUN] = KEY
        self.place = Place((), ())
        self.asks = 0

    # --- what a worker does; `place` is what it knows ---------------------------------------------------

    def publish(self, worker: int, child: int) -> None:
        """Entry first, then the ring."""
        handle = self.rings.handle(worker, child)
        self.table.cancel[handle] = 0
        self.table.ident[handle] = handle + 1
        self.rings.state[handle] = st.word(st.QUEUED, worker)
        self.rings.deques[worker].push([handle])

    def take_back(self, worker: int, handle: int) -> bool:
        """TOMB first, then the entry."""
        ring = self.rings.deques[worker]
        ring.repair()
        if not ring.take_back(handle):
            return False
        self.rings.state[handle] = st.FREE
        return True

    def steal(self, worker: int, victim: int) -> list[int]:
        ring = self.rings.deques[victim]
        ring.repair()
        return ring.take(1, worker)

    def begin(self, worker: int, handle: int) -> None:
        """The first half of a start."""
        del handle
        self.words[self.layout.block(worker) + lay.B_RUN] = KEY

    def start(self, worker: int, handle: int) -> bool:
        """The second half; False if the child must not be called."""
        if self.table.cancel[handle]:
            self.rings.state[handle] = st.word(st.RETURNED, self.layout.home_of(handle))
            self.words[self.layout.block(worker) + lay.B_RUN] = 0
            return False
        self.rings.state[handle] = st.word(st.RUNNING, worker)
        return True

    def finish(self, worker: int, handle: int) -> None:
        """Outcome, then DONE, then RUN."""
        self.table.length[handle] = 3
        self.rings.state[handle] = st.word(st.DONE, worker)
        self.words[self.layout.block(worker) + lay.B_RUN] = 0

    def help(self, worker: int, handle: int, looked: int) -> list[int]:
        """While it waits for `handle`: take one of its descendants. S2."""
        del looked  # what was read before the lock was had
        state, thief = st.parts(self.rings.state[handle])
        return self.steal(worker, thief) if state == st.RUNNING else []

    # --- what the parent does -----------------------------------------------------------------------------

    def repair(self) -> None:
        for ring in self.rings.deques:
            ring.repair()

    def bury(self, worker: int) -> None:
        self.repair()
        self.trees.bury(worker, 10 + worker, -9)

    # --- beginning and end of a step -----------------------------------------------------------------------

    def load(self, snapshot: bytes, place: Place) -> None:
        """Go to where a path has been."""
        self.rings.restore(snapshot)
        self.place = place
        self.trees.waiting = dict(place.waiting)
        self.trees._dying = [
            _Dying(thief, handle, list(parts)) for thief, handle, parts in place.dying
        ]

    def save(self) -> tuple[bytes, Place]:
        """Return where this path is."""
        place = self.place._replace(
            waiting=tuple(self.trees.waiting.items()),
            dying=tuple((one.thief, one.handle, tuple(one.parts)) for one in self.trees._dying),
        )
        return self.rings.snapshot(), place


class Forest:
    """Walks through all interleavings and kills of three workers' scripts.

    Steps: ("publish", child), ("join", child) of the worker's own children; ("steal", victim),
    ("begin", 0), ("start", 0), ("finish", 0) of what it has taken, which do nothing if it has nothing; ("look", child) and then
    ("help", child): run a descendant of an own child that another worker runs.
    """

    def __init__(
        self, scripts: Sequence[Script], make: Callable[[], World] = World, *, mortal: Sequence[int]
    ) -> None:
        self.world = make()
        self.scripts = scripts
        self.mortal = mortal
        self.ends = self.deaths = self.places = 0

    def run(self) -> None:
        """Walk from the beginning."""
        idle: tuple[tuple[int, ...], ...] = ((), (), ())
        self.world.place = Place((0, 0, 0), idle)
        todo = [self.world.save()]
        seen = set()
        while todo:
            snapshot, place = todo.pop()
            mark = hash((snapshot, place))
            if mark in seen:
                continue
            seen.add(mark)
            following = self._following(snapshot, place)
            if not following:
                self.world.load(snapshot, place)
                self._end(place)
            todo += following
        self.places = len(seen)

    def _following(self, snapshot: bytes, place: Place) -> list[tuple[bytes, Place]]:
        world, found = self.world, []
        for worker, at in enumerate(place.at):
            if at == DEAD:
                world.load(snapshot, place)
                self._bury(worker)
                if DEAD not in world.place.at:
                    world.rings.check()
                found.append(world.save())
            elif 0 <= at < len(self.scripts[worker]):
                found += self._step(snapshot, place, worker)
        if place.waiting or place.dying:
            world.load(snapshot, place)
            settled = bool(world.trees.check())
            world.place = world.place._replace(settled=place.settled or settled)
            after = world.save()
            if after != (snapshot, place):
                found.append(after)
        return found

    def _step(self, snapshot: bytes, place: Place, worker: int) -> list[tuple[bytes, Place]]:
        world = self.world
        world.load(snapshot, place)
        world.rings.stores.count = 0
        if not self._do(worker):
            return []  # it waits
        made = world.rings.stores.count
        self._advance(worker)
        found = [world.save()]
        if DEAD not in place.at:
            world.repair()
            world.rings.check()
        if worker not in self.mortal:
            return found
        for store in range(made + 1):
            world.load(snapshot, place)
            with world.rings.stores.killed_before(store):
                self._do(worker)
            self.deaths += 1
            self._die(worker)
            found.append(world.save())
        return found

    def _advance(self, worker: int) -> None:
        ats = list(self.world.place.at)
        ats[worker] += 1
        self.world.place = self.world.place._replace(at=tuple(ats))

    def _die(self, worker: int) -> None:
        place = self.world.place
        ats, hands = list(place.at), list(place.hands)
        ats[worker], hands[worker] = DEAD, ()
        gone = {call for call in place.busy if call[1] == worker}
        state = self.world.rings.state
        cut = {call for call in gone if state[call[0]] != st.word(st.DONE, worker)}
        self.world.place = place._replace(
            at=tuple(ats),
            hands=tuple(hands),
            calls=tuple(call for call in place.calls if call not in cut),
            busy=tuple(call for call in place.busy if call not in gone),
        )

    def _bury(self, worker: int) -> None:
        world = self.world
        world.bury(worker)
        ats = list(world.place.at)
        ats[worker] = BURIED
        settled = world.place.settled
        if worker == 0:
            settled = not world.trees.wait_for(world.task, Death(0, 10, -9), 0)
        world.place = world.place._replace(at=tuple(ats), settled=settled)

    # --- steps -----------------------------------------------------------------------------------------

    def _do(self, worker: int) -> bool:
        """Take a worker's next step; False if it cannot be taken yet."""
        world = self.world
        what, arg = self.scripts[worker][world.place.at[worker]]
        hand = world.place.hands[worker]
        if what == "publish":
            if worker == 0 or hand:
                parent = (world.rings.handle(worker, arg), hand[-1] if hand else -1)
                parents = (*world.place.parents, parent)
                world.place = world.place._replace(parents=parents)
                world.publish(worker, arg)
            return True
        if what == "look":
            looked = world.rings.state[world.rings.handle(worker, arg)]
            world.place = world.place._replace(looked=looked)
            return True
        if what == "help":
            self._help(worker, world.rings.handle(worker, arg))
            return True
        if what == "join":
            handle = world.rings.handle(worker, arg)
            return (worker != 0 and not hand) or self._join(worker, handle)
        if what == "steal":
            self._hold(worker, hand + tuple(world.steal(worker, arg)))
            return True
        if not hand:
            return True
        handle = hand[-1]
        if what == "begin":
            world.begin(worker, handle)
        elif what == "start":
            if world.start(worker, handle):
                self._call(worker, handle)
            else:
                self._hold(worker, hand[:-1])
        else:
            assert what == "finish", what
            assert not world.place.settled, f"{handle} is finished after its root was settled"
            world.finish(worker, handle)
            self._ended(worker, handle)
            self._hold(worker, hand[:-1])
        return True

    def _help(self, worker: int, handle: int) -> None:
        world = self.world
        for taken in world.help(worker, handle, world.place.looked):
            above = dict(world.place.parents)
            parent = above[taken]
            while parent not in {handle, -1}:
                parent = above[parent]
            assert parent == handle, f"{taken}, which is not below {handle}, was taken"
            world.rings.state[taken] = st.word(st.RUNNING, worker)
            self._call(worker, taken)
            world.rings.state[taken] = st.word(st.DONE, worker)
            self._ended(worker, taken)

    def _join(self, worker: int, handle: int) -> bool:
        world = self.world
        state = world.rings.state[handle] & 255
        if state == st.QUEUED:
            if not world.take_back(worker, handle):
                return False
        elif state in {st.DONE, st.FAILED}:
            world.rings.state[handle] = st.FREE
            self._joined(handle)
            return True
        elif state in {st.RETURNED, st.LOST}:
            if state == st.LOST:
                self._nothing_of_it_runs(handle)
            world.rings.state[handle] = st.FREE
        else:
            return False
        self._call(worker, handle)
        self._ended(worker, handle)
        self._joined(handle)
        return True

    def _nothing_of_it_runs(self, handle: int) -> None:
        """TREES-3: `handle` is LOST, so nobody runs a child of it."""
        home = self.world.layout.home_of
        below = [call for call in self.world.place.busy if home(call[0]) not in {0, home(handle)}]
        assert not below, f"{handle} is called again while {below} run"

    def _hold(self, worker: int, hand: tuple[int, ...]) -> None:
        hands = list(self.world.place.hands)
        hands[worker] = hand
        self.world.place = self.world.place._replace(hands=tuple(hands))

    def _call(self, worker: int, handle: int) -> None:
        place = self.world.place
        assert not place.settled, f"{handle} is called after its root was settled (TREES-1)"
        assert handle not in {child for child, _ in place.calls}, f"{handle} is called twice"
        call = (handle, worker)
        self.world.place = place._replace(calls=(*place.calls, call), busy=(*place.busy, call))

    def _ended(self, worker: int, handle: int) -> None:
        place = self.world.place
        busy = tuple(call for call in place.busy if call != (handle, worker))
        self.world.place = place._replace(busy=busy)

    def _joined(self, handle: int) -> None:
        place = self.world.place
        assert handle not in place.joined, f"{handle} has two outcomes"
        self.world.place = place._replace(joined=(*place.joined, handle))

    def _end(self, place: Place) -> None:
        """Nobody can do anything any more."""
        world = self.world
        self.ends += 1
        world.repair()
        world.rings.check()
        for worker, at in enumerate(place.at):
            stuck = 0 <= at < len(self.scripts[worker])
            assert not stuck, f"worker {worker} waits for ever: {self.scripts[worker][at]}, {place}"
        if place.at[0] == BURIED:
            assert place.settled, "the root is never settled"
            return
        for step in self.scripts[0]:
            if step[0] == "join":
                handle = world.rings.handle(0, step[1])
                assert handle in place.joined, f"{handle} has no outcome"
                calls = [call for call in place.calls if call[0] == handle]
                assert len(calls) == 1, f"{handle} was called {len(calls)} times"
