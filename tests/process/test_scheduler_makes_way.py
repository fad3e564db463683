"""What was handed out and has not started makes way for what comes before it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Scheduler
from tests.support import tasks
from tests.support.gates import Gate, wait_until

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from mpsched import TaskHandle

HANG_S = 60.0
ORDERS = pytest.mark.parametrize("order", ["priority", "run_at"])


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where jobs note that they have started."""
    return Gate(tmp_path / "gate")


class Scene:
    """A scheduler whose workers all run a job that ends when it is told to."""

    def __init__(self, s: Scheduler, gate: Gate, workers: int) -> None:
        self.s = s
        self.gate = gate
        self.handles: list[TaskHandle[Any]] = []
        self.gates = [Gate(gate.folder / f"long{n}") for n in range(workers)]
        for n, one in enumerate(self.gates):
            self.handles.append(s.schedule(f"long{n}", after=-1000.0, fn=one.hold, priority=1000))
        for one in self.gates:
            one.wait_for(1)

    def schedule(self, name: str, rank: int) -> TaskHandle[Any]:
        """Schedule what is due; the lower its rank, the earlier it comes, in either order."""
        handle = self.s.schedule(
            name, after=rank - 500.0, fn=self.gate.arrive, args=(name,), priority=-rank
        )
        self.handles.append(handle)
        return handle

    def claimed(self, name: str) -> bool:
        """Whether it is with the pool, and has not started."""
        status = self.s.status(name)
        return status is not None and status.claimed

    def wait_for(self, name: str) -> None:
        """Wait until others have made way for it: the dispatcher may just be at it, for one of them."""
        wait_until(lambda: self.claimed(name), f"the turn of {name}")

    def end(self) -> list[str]:
        """Let everything run; return the names of what arrived, in order."""
        for one in self.gates:
            one.open()
        for handle in self.handles:
            handle.result(HANG_S)
        return self.gate.arrivals()

    def check(self) -> None:
        """Assert that each has one record, as the first attempt, whatever made way for what."""
        for handle in self.handles:
            assert [run.attempt for run in self.s.history(handle.task_id)] == [1], handle
        with self.s._desk.lock:
            self.s._desk.workers.check_invariants()


@ORDERS
@pytest.mark.parametrize("workers", [1, 2])
def test_making_way_what_comes_first_is_the_next_to_start(
    order: Any, workers: int, gate: Gate, rng: random.Random
) -> None:
    """The windows are full of others; whichever worker gets free starts it, and nothing else."""
    for turn in range(4):
        here = Gate(gate.folder / str(turn))
        with Scheduler(workers, ready_order=order) as s:
            scene = Scene(s, here, workers)
            low = [f"low{n}" for n in range(5 * workers)]
            for name in low:
                scene.schedule(name, rng.randrange(1, 90))
            assert any(map(scene.claimed, low))
            scene.schedule("high", 0)
            scene.wait_for("high")
            assert not any(map(scene.claimed, low))
            rng.choice(scene.gates).open()
            assert here.wait_for(1)[0] == "high"
            assert sorted(scene.end()) == sorted([*low, "high"])
            scene.check()


@ORDERS
def test_making_way_keeps_all_of_it_in_order(order: Any, gate: Gate, rng: random.Random) -> None:
    """One worker: whatever comes while it is busy, and however late, starts in its place."""
    ranks = rng.sample(range(90), 30)
    with Scheduler(1, ready_order=order) as s:
        scene = Scene(s, gate, 1)
        for rank in ranks:
            scene.schedule(str(rank), rank)
        scene.wait_for(str(min(ranks)))
        assert scene.end() == [str(rank) for rank in sorted(ranks)]
        scene.check()


@ORDERS
def test_making_way_for_what_was_moved(order: Any, gate: Gate) -> None:
    """A job that waits and gets an earlier time, or a higher priority, comes first from then on."""
    with Scheduler(1, ready_order=order) as s:
        scene = Scene(s, gate, 1)
        for n in range(5):
            scene.schedule(f"low{n}", 10 + n)
        s.reschedule("low4", after=-600.0, priority=5)
        scene.wait_for("low4")
        assert not scene.claimed("low0")
        assert scene.end() == ["low4", "low0", "low1", "low2", "low3"]
        scene.check()


def test_making_way_when_its_time_comes(gate: Gate) -> None:
    """The window is full, and what has a higher priority becomes due: it starts next."""
    with Scheduler(1, ready_order="priority") as s:
        scene = Scene(s, gate, 1)
        for n in range(4):
            scene.schedule(f"low{n}", 10)
        later = [
            s.schedule(name, after=after, fn=gate.arrive, args=(name,), priority=priority)
            for name, after, priority in (
                ("high", 0.05, 5),
                ("higher", 0.1, 6),
                ("lower", 0.1, -99),
            )
        ]
        scene.handles += later
        scene.wait_for("higher")
        assert not any(map(scene.claimed, ("high", "lower", "low0", "low1", "low2", "low3")))
        assert scene.end() == ["higher", "high", "low0", "low1", "low2", "low3", "lower"]
        scene.check()


def test_making_way_with_aging_goes_by_the_grown_priority(gate: Gate) -> None:
    """What has waited long enough does not make way for a somewhat higher priority."""
    with Scheduler(1, ready_order="priority", aging=10.0) as s:
        scene = Scene(s, gate, 1)
        old = s.schedule("old", after=0, fn=gate.arrive, args=("old",), priority=0)
        wait_until(lambda: s.now() > old.run_at + 0.25, "two points and a half")
        scene.handles += [
            old,
            s.schedule("two", after=0, fn=gate.arrive, args=("two",), priority=2),
            s.schedule("fifty", after=0, fn=gate.arrive, args=("fifty",), priority=math.floor(5e9)),
        ]
        scene.wait_for("fifty")
        assert not scene.claimed("old")
        assert scene.end() == ["fifty", "old", "two"]
        scene.check()


def test_making_way_is_over_when_nobody_wants_the_first_any_more(gate: Gate) -> None:
    """It is cancelled before it starts; what made way for it goes on in its order."""
    with Scheduler(2, ready_order="priority") as s:
        scene = Scene(s, gate, 2)
        for n in range(6):
            scene.schedule(f"low{n}", 10)
        high = scene.schedule("high", 0)
        assert s.cancel("high") is CancelResult.PREVENTED
        assert high.cancelled()
        scene.handles.remove(high)
        scene.gates[0].open()
        assert sorted(gate.wait_for(6)) == [f"low{n}" for n in range(6)]
        assert "high" not in scene.end()
        scene.check()


def test_making_way_costs_nothing_while_priorities_are_equal(gate: Gate) -> None:
    """Nobody looks for what might make way, in either order, as long as nothing comes late."""
    orders: tuple[Any, ...] = ("run_at", "priority")
    for order in orders:
        with Scheduler(1, ready_order=order) as s:
            here = Gate(gate.folder / order)
            handles = [
                s.schedule(n, after=0, fn=here.hold, args=(n,), priority=4) for n in range(50)
            ]
            here.wait_for(1)
            assert not s._desk.mixed
            here.open()
            for handle in handles:
                handle.result(HANG_S)
            assert s.schedule("after", after=0.01, fn=tasks.square, args=(3,), priority=4).result(
                HANG_S
            )
            assert not s._desk.mixed


def test_making_way_is_not_for_short_jobs(gate: Gate) -> None:
    """Where a window is long, what waits in it is over sooner than it could be taken back."""
    with Scheduler(1, ready_order="priority") as s:
        pool = s._desk.pool
        assert pool is not None
        pool.dispatcher.note_times(1000.0, 0.0)
        scene = Scene(s, gate, 1)
        scene.schedule("low", 10)
        scene.schedule("high", 0)
        assert scene.claimed("low")
        assert scene.claimed("high")
        assert scene.end() == ["low", "high"]
