"""What is later lies unsorted: it is opened, halved and spilled, and nobody can tell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Due, VersionedTimerHeap
from mpsched._timers import book, lazyqueue, repair
from mpsched._timers.lazyqueue import LazyQueue
from tests.support.lines import before_line
from tests.support.timers import drain, function

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few items are many."""
    for module in (lazyqueue, repair):
        monkeypatch.setattr(module, "SMALL", 8)
    for module in (lazyqueue, book):
        monkeypatch.setattr(module, "STALE_LEFT", 8)
    monkeypatch.setattr(lazyqueue, "PIECE", 32)


SHAPES: dict[str, Callable[[random.Random, int], float]] = {
    "anywhere": lambda rng, _number: rng.random(),
    "at one instant": lambda _rng, _number: 5.0,
    "at few instants": lambda rng, _number: float(rng.randrange(3)),
    "later and later": lambda _rng, number: float(number),
    "sooner and sooner": lambda _rng, number: -float(number),
    "of all sizes": lambda rng, _number: rng.choice((-1, 1)) * 2.0 ** rng.randrange(-1074, 1023),
    "centuries ahead": lambda rng, number: 1e10 * (number % 7) + rng.random(),
    "small where it is looked": lambda rng, number: rng.random() - number % 16,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("small")
def test_later_halves_are_in_order(shape: str, rng: random.Random) -> None:
    """However the times lie, what is taken is the first of all in the whole order."""
    heap = VersionedTimerHeap()
    waits: dict[int, tuple[float, int, int]] = {}
    for number in range(1_000):
        run_at, priority = SHAPES[shape](rng, number), rng.choice((0, 0, 1))
        version = heap.schedule(number, run_at, priority, function)
        waits[number] = (run_at, -priority, version)
        if number % 3 == 0:
            gone = rng.randrange(number + 1)
            known = waits.pop(gone, None) is not None
            assert (heap.cancel(gone) is CancelResult.PREVENTED) == known
        if number % 100 == 99:
            heap.check_invariants()
            for _ in range(rng.randrange(40)):
                due = heap.next(math.inf)
                assert isinstance(due, Due)
                assert due.task_id == min(waits, key=waits.__getitem__)
                del waits[due.task_id]
            heap.check_invariants()
    assert drain(heap, math.inf) == sorted(waits, key=waits.__getitem__)
    assert heap.metrics().entries == 0


@pytest.mark.usefixtures("small")
def test_later_spills_keep_the_order() -> None:
    """What comes before all that is near makes room for itself; what was near comes back in its turn."""
    heap = VersionedTimerHeap()
    waits: dict[int, tuple[float, int, int]] = {}
    queue = heap._queue
    spilled = 0
    for turn in range(20):
        opened = len(queue.run)
        for number in range(100 * turn, 100 * turn + 100):
            run_at = float(number * 7 % 10 - 10 * turn)
            waits[number] = (run_at, 0, heap.schedule(number, run_at, 0, function))
        heap.check_invariants()
        spilled += opened > 0 and not queue.run
        for _ in range(3):
            due = heap.next(math.inf)
            assert isinstance(due, Due)
            assert due.task_id == min(waits, key=waits.__getitem__)
            del waits[due.task_id]
        heap.check_invariants()
    assert spilled > 5  # what was opened in the turn before
    assert drain(heap, math.inf) == sorted(waits, key=waits.__getitem__)


def test_later_small_heaps_are_plain_ones() -> None:
    """Up to SMALL timers nothing is later; and nothing is any more when so few are left."""
    heap = VersionedTimerHeap()
    queue = heap._queue
    for number in range(lazyqueue.SMALL):
        heap.schedule(number, float(number), 0, function)
    assert not queue.later
    for number in range(lazyqueue.SMALL, 4 * lazyqueue.SMALL):
        heap.schedule(number, float(number), 0, function)
    assert len(queue.heap) <= lazyqueue.SMALL
    assert len(queue.later) >= 3 * lazyqueue.SMALL
    assert drain(heap, 4.0 * lazyqueue.SMALL) == list(range(4 * lazyqueue.SMALL))
    heap.schedule("again", 9.0, 0, function)
    heap.schedule("and", 9e9, 0, function)
    assert drain(heap, 9.0) == ["again"]
    assert heap.next(0.0) == (9e9,)
    assert (queue.later, queue.edge) == ([], math.inf)


@pytest.mark.parametrize("shape", ["anywhere", "at one instant", "small where it is looked"])
@pytest.mark.usefixtures("small")
def test_later_an_open_pays_for_itself(shape: str, rng: random.Random) -> None:
    """At least one in 32 that is later becomes near, wherever the middle is looked for."""
    queue = LazyQueue(None)
    heap = VersionedTimerHeap()
    for number in range(2_000):
        heap.schedule(number, SHAPES[shape](rng, number), 0, function)
    queue.later[:] = [*heap._queue.heap, *heap._queue.later]
    while queue.later:
        there = len(queue.later)
        queue.open()
        assert there - len(queue.later) >= there // 32
        assert queue.run or not queue.later
        queue.run.clear()


def _schedule_many(heap: VersionedTimerHeap) -> None:
    for number in range(40):
        heap.schedule(number, -float(number), 0, function)


def _take_many(heap: VersionedTimerHeap) -> None:
    for _ in range(15):
        heap.next(99.0)


def _claim_and_back(heap: VersionedTimerHeap) -> None:
    for due in heap.claim_many(99.0, 15):
        heap.start(due) if due.version % 2 else heap.revoke(due)


def _cancel_many(heap: VersionedTimerHeap) -> None:
    for number in range(35):
        heap.cancel(number)


def _replace_running(heap: VersionedTimerHeap) -> None:
    due = heap.next(99.0)
    assert isinstance(due, Due)
    heap.schedule(due.task_id, 1.0, 0, function)
    heap.finish(due, "completed")


@pytest.mark.parametrize(
    ("of", "what"),
    [
        (LazyQueue.spill, _schedule_many),
        (LazyQueue.open, _take_many),
        (LazyQueue.sweep, _cancel_many),
        (VersionedTimerHeap.schedule, _replace_running),
        (VersionedTimerHeap.finish, _replace_running),
        (VersionedTimerHeap.next, _take_many),
        (VersionedTimerHeap.claim_many, _claim_and_back),
        (VersionedTimerHeap.revoke, _claim_and_back),
        (VersionedTimerHeap.cancel, _cancel_many),
    ],
)
@pytest.mark.usefixtures("small")
def test_later_repair_at_each_line(of: Any, what: Callable[[VersionedTimerHeap], None]) -> None:
    """An exception out of nowhere, before any line: after `repair` each version is where it was, or is over."""

    def struck() -> None:
        raise KeyboardInterrupt

    line = 0
    while True:
        heap = VersionedTimerHeap()
        for number in range(60):
            heap.schedule(number, float(number % 10), number % 2, function)
        with before_line(of, line, struck) as seen:
            try:
                what(heap)
            except KeyboardInterrupt:
                heap.repair()
        heap.check_invariants()
        waits = {
            number: (one.run_at, -one.priority, one.version)
            for number in range(60)
            if (one := heap.status(number)) is not None and one.state == "pending"
            if not one.claimed
        }
        running = [one for number in range(60) if (one := heap.status(number)) and one.running]
        assert sum(len(one.running) for one in running) == heap.metrics().running
        assert len(heap) == len(waits)
        assert drain(heap, 99.0) == sorted(waits, key=waits.__getitem__)
        if seen.count <= line:
            break
        line += 1 if line < 40 else 7
    assert line > 5
