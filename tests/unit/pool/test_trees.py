"""What the parent does about children when a worker is dead; the processes are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mpsched._pool.obituary import Death
from mpsched._pool.options import Options
from mpsched._pool.trees import Trees
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._tasks.children import Children
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsched._pool.task import Task

HOME, THIEF, THIRD = 0, 1, 2
KILLED = -9


class Grove:
    """A quiet pool of three workers, its trees, and home's and the thief's children.

    Attributes:
        kills: workers that the parent has killed.
        now: what `time.monotonic()` says.
    """

    def __init__(self) -> None:
        self.pool = QuietPool(3)
        self.kills: list[int] = []
        self.now = 100.0
        self.pool.supervisor = SimpleNamespace(kill=lambda worker, *_: self.kills.append(worker))
        self.trees = Trees(self.pool.as_pool)
        self.table, self.layout = self.pool.table, self.pool.layout
        for ring in self.trees.deques:
            ring._state = self.table.state
        self.children = [Children(self.table, self.layout, worker) for worker in range(3)]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def word(self, worker: int, word: int) -> int:
        return int(self.pool.segment.words[self.layout.block(worker) + word])

    def store(self, worker: int, word: int, value: int) -> None:
        self.pool.segment.words[self.layout.block(worker) + word] = value

    def published(self, home: int = HOME) -> int:
        """Return a child that lies in its home's ring."""
        handle = self.children[home].allocate()
        assert handle is not None
        self.table.state[handle] = st.word(st.QUEUED, home)
        self.trees.deques[home].push([handle])
        return handle

    def taken(self, by: int, home: int = HOME, *, running: bool = True) -> int:
        """Return a child that another worker has taken out of the ring."""
        handle = self.published(home)
        assert self.trees.deques[home].take(9, by) == [handle]
        if running:
            self.table.below[handle] = self.children[by].mark()
            self.table.state[handle] = st.word(st.RUNNING, by)
        return handle

    def state(self, handle: int) -> tuple[int, int]:
        return st.parts(self.table.state[handle])

    def root(self, options: Options | None = None) -> Task:
        """Return a root that home runs."""
        task = self.pool.task()
        task.options = options or Options()
        self.pool.submit(task)
        self.pool.dispatcher.pump()
        worker = self.table.state[task.handle] >> 8
        assert self.pool.dispatcher.inboxes[worker].take(1, HOME) == [task.handle]
        self.table.state[task.handle] = st.word(st.RUNNING, HOME)
        return task

    def close(self) -> None:
        self.trees.__dict__.clear()
        self.children.clear()
        self.__dict__.pop("table")
        self.pool.close()


@pytest.fixture
def grove(monkeypatch: pytest.MonkeyPatch) -> Iterator[Grove]:
    made = Grove()
    monkeypatch.setattr("mpsched._pool.trees.time", made)
    yield made
    made.close()


# --- burying a home ------------------------------------------------------------------------------------


def test_trees_children_that_a_dead_home_had_published_are_in_no_ring(grove: Grove) -> None:
    """A thief must not find a child that nobody waits for."""
    handles = [grove.published() for _ in range(3)]
    other = grove.published(THIRD)
    grove.trees.bury(HOME, 11, KILLED)
    assert [grove.state(handle)[0] for handle in handles] == [st.FREE] * 3
    assert grove.trees.deques[HOME].handles() == []
    assert grove.trees.deques[HOME].take(9, THIEF) == []
    assert grove.state(other) == (st.QUEUED, THIRD)
    assert not grove.trees.busy()


def test_trees_child_that_a_dead_home_had_not_pushed_yet_is_freed(grove: Grove) -> None:
    """Killed between the state word and TAIL: QUEUED, and in no ring."""
    handle = grove.children[HOME].allocate()
    assert handle is not None
    grove.table.state[handle] = st.word(st.QUEUED, HOME)
    grove.trees.bury(HOME, 11, KILLED)
    assert grove.state(handle)[0] == st.FREE


@pytest.mark.parametrize("end", [st.DONE, st.FAILED])
def test_trees_outcomes_that_a_dead_home_did_not_fetch_are_freed(grove: Grove, end: int) -> None:
    """So are children that were given back to it."""
    handle = grove.taken(THIEF)
    grove.table.state[handle] = st.word(end, THIEF)
    returned = grove.taken(THIEF, running=False)
    grove.table.state[returned] = st.word(st.RETURNED, HOME)
    grove.trees.bury(HOME, 11, KILLED)
    assert grove.state(handle)[0] == grove.state(returned)[0] == st.FREE


@pytest.mark.parametrize("running", [False, True])
def test_trees_children_of_a_dead_home_are_told_and_stay_taken(grove: Grove, running: bool) -> None:
    """Whoever has them sees CANCEL; the entry is free when he is through, for the next home."""
    handle = grove.taken(THIEF, running=running)
    before = grove.state(handle)
    grove.trees.bury(HOME, 11, KILLED)
    assert grove.state(handle) == before
    assert grove.table.cancel[handle] == 1
    heir = Children(grove.table, grove.layout, HOME)
    assert handle not in [heir.allocate() for _ in range(heir.capacity - 1)]
    grove.table.state[handle] = st.word(st.RUNNING, THIEF)
    grove.table.state[handle] = st.word(st.DONE, THIEF)
    assert heir.allocate() == handle


def test_trees_dead_worker_forks_runs_and_wants_nothing(grove: Grove) -> None:
    """Its words would send others to it."""
    names = (lay.B_FORKS, lay.B_RUN, lay.B_WAITS, lay.B_JOINING, lay.B_BLOCKED, lay.B_WANT)
    for name in names:
        grove.store(HOME, name, 7)
        grove.store(THIEF, name, 7)
    grove.trees.bury(HOME, 11, KILLED)
    assert [grove.word(HOME, name) for name in names] == [0] * len(names)
    assert [grove.word(THIEF, name) for name in names] == [7] * len(names)


def test_trees_ring_that_a_stopped_thief_holds_is_emptied_later(grove: Grove) -> None:
    """The parent waits for nobody; what the thief then takes it does not start, by CANCEL."""
    first, second = grove.published(), grove.published()
    grove.pool.locks.taken.add(grove.trees.deques[HOME].lock)
    grove.trees.bury(HOME, 11, KILLED)
    assert grove.pool.locks.tries > 1
    assert grove.trees.busy()
    assert grove.table.cancel[first] == grove.table.cancel[second] == 1
    assert grove.trees.deques[HOME].take(1, THIEF) == [first]
    heir = Children(grove.table, grove.layout, HOME)
    fresh = heir.allocate()
    assert fresh is not None
    grove.table.state[fresh] = st.word(st.QUEUED, HOME)
    grove.trees.deques[HOME].push([fresh])
    grove.trees.check()
    assert grove.trees.busy()
    grove.pool.locks.taken.clear()
    grove.trees.check()
    assert not grove.trees.busy()
    assert [grove.state(h) for h in (first, second, fresh)] == [
        (st.CLAIMED, THIEF),
        (st.FREE, 0),
        (st.QUEUED, HOME),
    ]
    assert grove.trees.deques[HOME].handles() == [fresh]


# --- burying a thief -----------------------------------------------------------------------------------


def test_trees_child_whose_thief_died_before_it_started_is_returned(grove: Grove) -> None:
    """Home runs it: it never ran."""
    handle = grove.taken(THIEF, running=False)
    grove.trees.bury(THIEF, 12, KILLED)
    assert grove.state(handle) == (st.RETURNED, HOME)


@pytest.mark.parametrize("status", [KILLED, 3, None])
def test_trees_child_whose_thief_died_in_it_is_lost_and_says_how(
    grove: Grove, status: int | None
) -> None:
    """Home makes its WorkerDied of exit status and pid."""
    handle = grove.taken(THIEF)
    grove.trees.bury(THIEF, 12, status)
    assert grove.state(handle) == (st.LOST, THIEF)
    assert grove.table.started[handle] == 12
    assert grove.table.length[handle] == (status or 0) & 0xFFFFFFFF


def test_trees_child_that_was_finished_is_not_lost(grove: Grove) -> None:
    """The outcome counts, whatever becomes of the thief afterwards."""
    handle = grove.taken(THIEF)
    grove.table.state[handle] = st.word(st.DONE, THIEF)
    grove.trees.bury(THIEF, 12, KILLED)
    assert grove.state(handle) == (st.DONE, THIEF)


def test_trees_child_is_lost_only_when_nothing_of_it_runs(grove: Grove) -> None:
    """TREES-3: home may call a lost one again, so its own children elsewhere have to end before."""
    child = grove.taken(THIEF)
    below = grove.taken(THIRD, home=THIEF)
    grove.trees.bury(THIEF, 12, KILLED)
    assert grove.state(child) == (st.DYING, THIEF)
    assert grove.table.cancel[below] == 1
    grove.trees.check()
    assert grove.state(child) == (st.DYING, THIEF)
    grove.table.state[below] = st.word(st.DONE, THIRD)
    grove.pool.bells[HOME].drain()
    grove.trees.check()
    assert grove.state(child) == (st.LOST, THIEF)
    assert grove.pool.bells[HOME].wait(0)
    assert not grove.trees.busy()


def test_trees_child_two_deaths_up_waits_for_what_runs_below(grove: Grove) -> None:
    """The middle one dies too: what it ran is DYING, and so still part of what runs above it."""
    child = grove.taken(THIEF)
    below = grove.taken(THIRD, home=THIEF)
    leaf = grove.taken(HOME, home=THIRD)
    grove.trees.bury(THIEF, 12, KILLED)
    grove.trees.bury(THIRD, 13, KILLED)
    assert grove.state(below) == (st.DYING, THIRD)
    grove.trees.check()
    assert grove.state(child) == (st.DYING, THIEF)
    grove.table.state[leaf] = st.word(st.DONE, HOME)
    for _ in range(2):  # from the leaf up, one look each
        grove.trees.check()
    assert (grove.state(below)[0], grove.state(child)[0]) == (st.LOST, st.LOST)


def test_trees_worker_with_a_part_of_a_dead_child_is_ended_after_a_grace(grove: Grove) -> None:
    """Unless it runs the root itself, or has gone on to something else."""
    root = grove.root()
    key = grove.table.run_key(root.handle)
    child = grove.taken(THIEF)
    parts = [grove.taken(worker, home=THIEF) for worker in (THIRD, HOME)]
    for handle in parts:
        grove.table.place[handle], grove.table.root[handle] = root.handle, key
    grove.store(THIRD, lay.B_RUN, key)
    grove.store(HOME, lay.B_RUN, key)
    grove.trees.bury(THIEF, 12, KILLED)
    grove.trees.check()
    assert grove.kills == []
    grove.now += 0.6
    grove.trees.check()
    assert grove.kills == [THIRD]
    assert grove.word(THIRD, lay.B_KILL) == key
    grove.store(THIRD, lay.B_RUN, key + 1)
    grove.trees.check()
    assert grove.kills == [THIRD]
    assert grove.word(THIRD, lay.B_KILL) == 0
    assert grove.state(child) == (st.DYING, THIEF)


def test_trees_child_waits_only_for_what_is_below_it(grove: Grove) -> None:
    """TREES-5: of two that died with their thief, one may be below what keeps the other one waiting."""
    outer = grove.taken(THIEF)
    part = grove.taken(HOME, home=THIEF)  # of `outer`; home runs it while it waits
    inner = grove.taken(THIEF)  # of `part`; the thief runs it while it waits
    leaf = grove.taken(THIRD, home=THIEF)
    grove.trees.bury(THIEF, 12, KILLED)
    assert [grove.state(child)[0] for child in (outer, inner)] == [st.DYING, st.DYING]
    grove.table.state[leaf] = st.word(st.DONE, THIRD)
    grove.trees.check()
    assert [grove.state(child)[0] for child in (outer, inner)] == [st.DYING, st.LOST]
    grove.table.state[part] = st.word(st.DONE, HOME)
    grove.trees.check()
    assert grove.state(outer)[0] == st.LOST


def test_trees_entry_that_is_used_again_keeps_nobody_waiting(grove: Grove) -> None:
    """The heir's child in the same entry is another one: the ident tells."""
    child = grove.taken(THIEF)
    below = grove.taken(THIRD, home=THIEF)
    grove.trees.bury(THIEF, 12, KILLED)
    heir = grove.children[THIEF] = Children(grove.table, grove.layout, THIEF)
    grove.table.state[below] = st.word(st.DONE, THIRD)
    assert heir.reclaim() == 1
    assert grove.published(THIEF) == below
    grove.trees.check()
    assert grove.state(child) == (st.LOST, THIEF)


# --- lost roots ----------------------------------------------------------------------------------------


def lose(grove: Grove, task: Task) -> bool:
    """Bury home while it runs `task`; whether the root waits for its children."""
    grove.trees.bury(HOME, 11, KILLED)
    return grove.trees.wait_for(task, Death(HOME, 11, KILLED), 0)


def test_trees_root_without_children_elsewhere_is_settled_at_once(grove: Grove) -> None:
    """The dead worker's own RUN word does not count, nor do other roots'."""
    task, other = grove.root(), grove.root()
    grove.store(HOME, lay.B_RUN, grove.table.run_key(task.handle))
    grove.store(THIEF, lay.B_RUN, grove.table.run_key(other.handle))
    assert not lose(grove, task)
    assert not grove.trees.busy()


def test_trees_root_is_settled_when_the_last_child_elsewhere_ends(grove: Grove) -> None:
    """TREES-1; and it is told meanwhile that it is not wanted, without being cancelled for good."""
    task = grove.root()
    key = grove.table.run_key(task.handle)
    grove.store(THIEF, lay.B_RUN, key)
    grove.store(THIRD, lay.B_RUN, key)
    assert lose(grove, task)
    assert grove.trees.holds(task)
    assert grove.table.cancel[task.handle]
    assert grove.trees.check() == []
    grove.store(THIEF, lay.B_RUN, 0)
    assert grove.trees.check() == []
    grove.store(THIRD, lay.B_RUN, 0)
    (lost,) = grove.trees.check()
    assert (lost.task, lost.end) == (task, Death(HOME, 11, KILLED))
    assert not grove.trees.holds(task)
    assert not grove.table.cancel[task.handle]
    assert grove.kills == []


def test_trees_root_that_its_user_cancelled_stays_cancelled(grove: Grove) -> None:
    """So no further attempt of it is queued."""
    task = grove.root()
    grove.store(THIEF, lay.B_RUN, grove.table.run_key(task.handle))
    assert lose(grove, task)
    grove.table.cancel[task.handle] = 1
    grove.store(THIEF, lay.B_RUN, 0)
    assert grove.trees.check()
    assert grove.table.cancel[task.handle] == 1


@pytest.mark.parametrize(("grace", "after"), [(0.0, 0.5), (3.0, 3.0)])
def test_trees_children_that_do_not_stop_are_killed_after_their_grace(
    grove: Grove, grace: float, after: float
) -> None:
    """Those that run a part of this root, and no others; KILL is taken back in the end."""
    task = grove.root(Options(grace=grace))
    key = grove.table.run_key(task.handle)
    grove.store(THIEF, lay.B_RUN, key)
    grove.store(THIRD, lay.B_RUN, key + 1)
    assert lose(grove, task)
    grove.now += after - 0.01
    grove.trees.check()
    assert grove.kills == []
    grove.now += 0.02
    grove.trees.check()
    assert grove.kills == [THIEF]
    assert [grove.word(worker, lay.B_KILL) for worker in range(3)] == [0, key, 0]
    grove.trees.bury(THIEF, 12, KILLED)
    assert [lost.task for lost in grove.trees.check()] == [task]
    assert grove.word(THIEF, lay.B_KILL) == 0


@pytest.mark.parametrize("why", ["timeout", "cancel"])
def test_trees_children_of_a_root_that_is_killed_are_killed_at_once(grove: Grove, why: str) -> None:
    """It has had its grace."""
    task = grove.root()
    grove.store(THIEF, lay.B_RUN, grove.table.run_key(task.handle))
    task.killed = why
    assert lose(grove, task)
    grove.trees.check()
    assert grove.kills == [THIEF]


def test_trees_worker_that_came_to_its_end_in_time_is_not_killed(
    grove: Grove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TREES-4: between the look at RUN and the kill, KILL has been stored and RUN is read again."""
    task = grove.root()
    grove.store(THIEF, lay.B_RUN, grove.table.run_key(task.handle))
    task.killed = "timeout"
    assert lose(grove, task)
    seen = []

    def ends() -> None:
        seen.append(grove.word(THIEF, lay.B_KILL))
        grove.store(THIEF, lay.B_RUN, 0)

    monkeypatch.setattr("mpsched._pool.trees.fence", ends)
    grove.trees.check()
    assert seen == [grove.table.run_key(task.handle)]
    assert grove.kills == []


def test_trees_root_that_failed_with_its_pool_is_not_settled_twice(grove: Grove) -> None:
    """Its entry is gone, and its future is final."""
    task = grove.root()
    grove.store(THIEF, lay.B_RUN, grove.table.run_key(task.handle))
    assert lose(grove, task)
    grove.pool.entries.free(task.handle)
    grove.store(THIEF, lay.B_RUN, 0)
    assert grove.trees.check() == []
    assert not grove.trees.busy()
