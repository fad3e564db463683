"""How many workers stand in for blocked ones; none of them is a process."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mpsched._pool.events import Events
from mpsched._pool.slot import Slot
from mpsched._pool.spares import Spares
from mpsched._shm import layout as lay

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 3


class Bench:
    """A pool of three workers and some spares, as the supervisor sees it.

    Attributes:
        rung: workers whose bell was rung.
        read: workers whose results are read since.
        now: what `time.monotonic()` says.
    """

    def __init__(self, spares: int) -> None:
        workers = WIDTH + spares
        self.layout = lay.Layout.plan(workers, spares=spares)
        self.words = memoryview(bytearray(self.layout.size_bytes)).cast("Q")
        self.words[lay.H_LIVE] = WIDTH
        self.rung: list[int] = []
        self.read: list[int] = []
        self.now = 50.0
        self.slots = [Slot(spare=worker >= WIDTH) for worker in range(workers)]

        def bell(worker: int) -> SimpleNamespace:
            return SimpleNamespace(wake=lambda: self.rung.append(worker))

        self.events = Events(lambda: None)
        pool = SimpleNamespace(
            width=WIDTH,
            layout=self.layout,
            segment=SimpleNamespace(words=self.words),
            bells=[bell(worker) for worker in range(workers)],
            leader=SimpleNamespace(read_from=self.read.append),
            events=self.events,
        )
        self.spares = Spares(pool, self.slots)  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.now

    def block(self, *workers: int) -> None:
        """Let exactly these workers block."""
        for worker in range(self.layout.workers):
            self.words[self.layout.block(worker) + lay.B_BLOCKED] = worker in workers

    def look(self, after: float = 0.0) -> list[int]:
        """Take the supervisor's look some seconds later; returns the spares that are wanted."""
        self.now += after
        self.spares.check()
        self.events.deliver()
        for slot in self.slots:
            if slot.start_at is not None and slot.start_at <= self.now:
                slot.start_at, slot.alive = None, True
        return [index for index, slot in enumerate(self.slots) if index >= WIDTH and slot.wanted]

    def stop(self, worker: int) -> int:
        return int(self.words[self.layout.block(worker) + lay.B_STOP])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Bench]:
    def make(spares: int = 2) -> Bench:
        made = Bench(spares)
        monkeypatch.setattr("mpsched._pool.spares.time", made)
        return made

    return make


def test_spares_are_as_many_as_workers_block(bench: Callable[[int], Bench]) -> None:
    """One each, as long as there are some; the lowest index first."""
    pool = bench(2)
    assert pool.look() == []
    pool.block(1)
    assert pool.look() == [3]
    pool.block(1, 2)
    assert pool.look() == [3, 4]
    pool.block(0, 1, 2)
    assert pool.look() == [3, 4]
    assert [slot.alive for slot in pool.slots[WIDTH:]] == [True, True]


def test_spares_are_seen_by_everybody_before_they_start(bench: Callable[[int], Bench]) -> None:
    """SPARE-1: LIVE counts them, and their results are read, from then on once."""
    pool = bench(2)
    pool.block(0)
    pool.spares.check()
    assert (pool.words[lay.H_LIVE], pool.read, pool.slots[3].alive) == (4, [3], False)
    pool.block()
    assert pool.look(2.0) == [3]
    assert pool.look(2.0) == []
    pool.block(0)
    assert pool.look() == [3]
    assert (pool.words[lay.H_LIVE], pool.read) == (4, [3])


def test_spares_leave_after_a_second_without_need_one_by_one(
    bench: Callable[[int], Bench],
) -> None:
    """A task that blocks again and again keeps its spare."""
    pool = bench(2)
    pool.block(0, 1)
    assert pool.look() == [3, 4]
    pool.block()
    assert pool.look() == [3, 4]
    pool.block(0, 1)
    assert pool.look(0.9) == [3, 4]
    pool.block()
    assert pool.look(0.9) == [3, 4]
    assert pool.look(0.9) == [3, 4]
    assert pool.look(0.2) == [3]
    assert (pool.stop(3), pool.stop(4), pool.rung) == (0, 1, [4])
    assert pool.look(0.9) == [3]
    assert pool.look(0.2) == []
    assert (pool.stop(3), pool.rung) == (1, [4, 3])


def test_spares_that_have_not_left_yet_stay_when_they_are_needed(
    bench: Callable[[int], Bench],
) -> None:
    """Nothing is started twice."""
    pool = bench(1)
    pool.block(0)
    pool.look()
    pool.block()
    pool.look()
    assert pool.look(1.1) == []
    pool.block(0)
    assert pool.look() == [3]
    assert pool.stop(3) == 0
    assert pool.slots[3].start_at is None


def test_spares_blocked_one_needs_a_spare_as_well(bench: Callable[[int], Bench]) -> None:
    """It runs tasks like any worker."""
    pool = bench(2)
    pool.block(0)
    pool.look()
    pool.block(0, 3)
    assert pool.look() == [3, 4]


def test_spares_too_few_are_told_once(
    bench: Callable[[int], Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Until nobody blocks any more."""
    pool = bench(1)
    with caplog.at_level(logging.WARNING, "mpsched"):
        for _ in range(3):
            pool.block(0, 1)
            pool.look()
        assert len(caplog.records) == 1
        assert "2 tasks block at once, and the pool has 1 spare" in caplog.text
        pool.block()
        for _ in range(3):
            pool.look(1.1)
        pool.block(0, 1)
        pool.look()
        assert len(caplog.records) == 2


def test_spares_that_cannot_be_started_are_tried_again_later(
    bench: Callable[[int], Bench],
) -> None:
    """SPARE-2: and the pool lives."""
    pool = bench(1)
    pool.block(0)
    pool.look()
    assert pool.spares.has(pool.slots[3])
    assert not pool.spares.has(pool.slots[2])
    pool.slots[3].alive = False
    pool.spares.failed(pool.slots[3])
    assert pool.look(0.5) == []
    assert pool.look(0.6) == [3]


def test_spares_of_a_pool_without_any_never_start(bench: Callable[[int], Bench]) -> None:
    """`max_spares=0`."""
    pool = bench(0)
    pool.block(0, 1, 2)
    assert pool.look() == []


def test_spares_are_looked_at_only_while_somebody_blocks_or_one_is_there(
    bench: Callable[[int], Bench],
) -> None:
    """The supervisor of an idle pool sleeps without a limit."""
    pool = bench(1)
    assert pool.spares.next() is None
    pool.block(0)
    assert pool.spares.next() is not None
    pool.look()
    pool.block()
    assert pool.spares.next() is not None
    pool.look()
    pool.look(1.1)
    assert pool.spares.next() is None
