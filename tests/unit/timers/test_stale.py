"""Lazy deletion: what is cancelled or replaced is let go at once, and swept out by a bound."""

from __future__ import annotations

import gc
import weakref

import pytest

from mpsched import Due, VersionedTimerHeap
from mpsched._timers.lazyqueue import STALE_LEFT
from tests.support.timers import drain, function, take


class Big:
    def run(self) -> None: ...


@pytest.mark.parametrize("order", ["run_at", "priority"])
def test_stale_cancelled_and_replaced_are_let_go_at_once(order: str) -> None:
    """The function and the arguments go with the call, not with the heap's item (B20)."""
    heap = VersionedTimerHeap(ready_order=order)  # type: ignore[arg-type]
    refs = []
    for turn in range(300):
        big, argument = Big(), Big()
        refs += [weakref.ref(big), weakref.ref(argument)]
        heap.schedule("k", 86400.0, 0, big.run, args=(argument,), kwargs={"one": argument})
        del big, argument
        if turn % 3 == 0:
            heap.cancel("k")
        elif turn % 3 == 1:
            heap.reschedule("k", run_at=5.0 + turn)
        # Nothing holds it but the heap, and nothing is in a cycle: no collection is needed.
        assert sum(ref() is not None for ref in refs) == (0 if turn % 3 == 0 else 2)
    heap.check_invariants()


def test_stale_finished_are_let_go() -> None:
    """What was handed out belongs to the caller when it is finished."""
    heap = VersionedTimerHeap()
    big = Big()
    ref = weakref.ref(big)
    heap.schedule("a", 1.0, 0, big.run, args=(big,))
    del big
    due = take(heap, 1.0)
    heap.finish(due, "completed")
    del due
    assert ref() is None


def test_stale_entries_stay_within_their_bound() -> None:
    """At every step, stale entries are at most 64 or half of what is there (B20)."""
    heap = VersionedTimerHeap()
    for task_id in range(1000):
        heap.schedule(task_id, 86400.0, 0, function)
    for turn in range(20_000):
        heap.schedule(turn % 1000, 86400.0 + turn, 0, function)
        metrics = heap.metrics()
        assert metrics.live == 1000
        assert metrics.stale <= max(STALE_LEFT, metrics.entries / 2)
        assert metrics.entries <= 2 * metrics.live
    # Each rebuild throws out more than 1,000 that took a call each to become stale.
    assert 15 <= heap.metrics().rebuilds <= 20
    heap.check_invariants()


@pytest.mark.parametrize("order", ["run_at", "priority"])
def test_stale_due_entries_are_swept_too(order: str) -> None:
    """With priority first, what is due lies in another queue; the bound holds over both."""
    heap = VersionedTimerHeap(ready_order=order)  # type: ignore[arg-type]
    for task_id in range(500):
        heap.schedule(task_id, 0.0, task_id % 3, function)
    heap.peek(1.0)
    for task_id in range(499):
        heap.cancel(task_id)
        heap.check_invariants()
    assert heap.metrics().rebuilds >= 2
    assert drain(heap, 1.0) == [499]


@pytest.mark.parametrize("order", ["run_at", "priority"])
def test_stale_bound_holds_while_live_ones_are_taken(order: str) -> None:
    """What is left when the live ones are gone is not all shells."""
    heap = VersionedTimerHeap(ready_order=order)  # type: ignore[arg-type]
    for task_id in range(1000):
        heap.schedule(task_id, 1.0 if task_id < 500 else 2.0, 0, function)
    for task_id in range(500, 1000):
        heap.cancel(task_id)
    for task_id in range(500):
        assert take(heap, 1.0).task_id == task_id  # looks at the bound each time
    assert heap.metrics().entries <= STALE_LEFT


def test_stale_heads_do_not_shorten_the_wait() -> None:
    """Cancelled entries on top are skipped by `next` and `peek`."""
    heap = VersionedTimerHeap()
    for task_id in range(50):
        heap.schedule(task_id, float(task_id), 0, function)
    for task_id in range(49):
        heap.cancel(task_id)
    wait = heap.next(0.0)
    assert wait == heap.peek(0.0) == (49.0,)
    assert heap.metrics().entries == 1


def schedule_and_cancel(times: int) -> int:
    heap = VersionedTimerHeap()
    most = 0
    for _ in range(times):
        heap.schedule("one", 86400.0, 0, function)
        heap.cancel("one")
        most = max(most, heap.metrics().entries)
    assert heap.metrics().remembered == 1
    heap.check_invariants()
    return most


def test_stale_one_id_for_ever_does_not_grow() -> None:
    """200,000 times scheduled and cancelled: never more than 65 items."""
    assert schedule_and_cancel(200_000) <= STALE_LEFT + 1


@pytest.mark.slow
def test_stale_one_id_ten_million_times_does_not_grow() -> None:
    """Ten million times scheduled and cancelled: as many items and objects as after a few."""
    assert schedule_and_cancel(1000) <= STALE_LEFT + 1
    gc.collect()
    before = len(gc.get_objects())
    assert schedule_and_cancel(10_000_000) <= STALE_LEFT + 1
    gc.collect()
    assert len(gc.get_objects()) <= before + 100


def test_stale_deadlines_do_not_grow() -> None:
    """Deadlines of what has started or ended are swept when more are added."""
    heap = VersionedTimerHeap()
    for task_id in range(5_000):
        heap.schedule(task_id, 0.0, 0, function, deadline=1e9)
        due = heap.next(0.0)
        assert isinstance(due, Due)
        heap.finish(due, "completed")
        assert len(heap._deadlines) <= 66
    for _ in range(5_000):
        heap.schedule("one", 9.0, 0, function, deadline=1e9)
        assert len(heap._deadlines) <= 66
    due = heap.claim(9.0)
    for _ in range(5_000):
        assert isinstance(due, Due)
        heap.revoke(due)
        due = heap.claim(9.0)
    assert len(heap._deadlines) <= 66


def test_stale_a_finalizer_may_use_the_heap() -> None:
    """An argument's finalizer that calls the heap finds it in order."""
    heap = VersionedTimerHeap()
    called: list[int] = []

    class Calls:
        def __del__(self) -> None:
            heap.check_invariants()
            called.append(heap.schedule(("again", len(called)), 5.0, 0, function))

    for how in ("cancel", "replace", "finish"):
        heap.schedule(how, 1.0, 0, function, args=(Calls(),))
        if how == "cancel":
            heap.cancel(how)
        elif how == "replace":
            heap.schedule(how, 2.0, 0, function)
        else:
            due = take(heap, 1.0)
            heap.finish(due, "completed")
            del due
    assert len(called) == 3
    heap.check_invariants()
