"""The heap: what is due, in which order, and which version of an id is valid."""

from __future__ import annotations

import doctest
import itertools
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Due, VersionedTimerHeap, Wait
from mpsched._timers import heap as heap_module
from mpsched.errors import PendingLimitReached
from tests.support.timers import Drops, drain, function, state, take

if TYPE_CHECKING:
    import random


def test_heap_hands_out_what_was_given() -> None:
    """`Due` has the arguments of `schedule`, the version and the attempt."""
    heap = VersionedTimerHeap()
    version = heap.schedule("a", 5, 3, max, args=(1, 2), kwargs={"key": abs})
    due = take(heap, 5.0)
    assert due == Due("a", version, 5.0, 3, version, max, (1, 2), {"key": abs}, 1)


def test_heap_says_how_long_to_wait() -> None:
    """`next` gives the seconds to the first time, and None when nothing waits for one."""
    heap = VersionedTimerHeap()
    assert heap.next(0.0) is None
    assert heap.peek(0.0) is None
    heap.schedule("late", 9.0, 0, function)
    heap.schedule("soon", 4.0, 0, function)
    assert heap.next(1.5) == Wait(2.5) == heap.peek(1.5)
    assert heap.peek(4.0) == Wait(0.0)
    take(heap, 4.0)
    assert heap.next(4.0) == Wait(5.0)
    heap.cancel("late")
    assert heap.next(4.0) is None


def test_heap_orders_by_time_then_priority_then_submission() -> None:
    """Earliest first; among equal times the higher priority; then who came first."""
    heap = VersionedTimerHeap()
    for name, run_at, priority in [
        ("e", 2.0, 9), ("d", 1.0, -1), ("b", 1.0, 0), ("c", 1.0, 0), ("a", 1.0, 5),
    ]:  # fmt: skip
        heap.schedule(name, run_at, priority, function)
    assert drain(heap, 2.0) == ["a", "b", "c", "d", "e"]


def test_heap_ids_of_any_kind_are_never_compared() -> None:
    """Equal in time and priority, ids that cannot be ordered come in order of submission (B18)."""

    class Id:
        __hash__ = object.__hash__

        def __lt__(self, other: object) -> bool:
            raise AssertionError("an id was compared")

        __gt__ = __le__ = __ge__ = __lt__

    heap = VersionedTimerHeap()
    ids: list[Any] = [("id", n) if n % 3 == 0 else n if n % 3 == 1 else Id() for n in range(300)]
    for task_id in ids:
        heap.schedule(task_id, 1.0, 5, lambda: None)
    assert drain(heap, 1.0) == ids


def test_heap_order_is_that_of_a_sorted_list(rng: random.Random) -> None:
    """100,000 random entries with many ties come out as `sorted` puts them."""
    heap = VersionedTimerHeap()
    entries = []
    for task_id in range(100_000):
        run_at, priority = float(rng.randrange(500)), rng.randrange(-2, 3)
        version = heap.schedule(task_id, run_at, priority, function)
        entries.append((run_at, -priority, version, task_id))
    assert drain(heap, 500.0) == [entry[3] for entry in sorted(entries)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_heap_refuses_times_that_are_not_finite(bad: float) -> None:
    """NaN would break the order of all the others (B10)."""
    heap = VersionedTimerHeap()
    cases: list[dict[str, Any]] = [
        {"run_at": bad},
        {"run_at": 1.0, "deadline": bad},
        {"run_at": 1.0, "at": bad},
    ]
    for times in cases:
        with pytest.raises(ValueError, match=f"must be finite, not {bad}"):
            heap.schedule("a", priority=0, fn=function, **times)
    assert heap.status("a") is None
    assert len(heap) == 0
    for look in (heap.next, heap.peek, heap.claim, heap.expire):
        with pytest.raises(ValueError, match="now must be a time, not nan"):
            look(math.nan)


@pytest.mark.parametrize("bad", ["5", None, True, 1 + 2j, b"5", [5]])
def test_heap_refuses_times_that_are_no_numbers(bad: Any) -> None:
    """Text, None, bool and the like are named in the error, and leave nothing behind (B10)."""
    heap = VersionedTimerHeap()
    with pytest.raises(TypeError, match="run_at must be a number of seconds, not"):
        heap.schedule("a", bad, 0, function)
    assert heap.status("a") is None


@pytest.mark.parametrize(
    ("bad", "hint"),
    [(timedelta(seconds=5), "total_seconds"), (datetime(2026, 1, 1, tzinfo=UTC), "as at=")],
)
def test_heap_refuses_times_of_the_calendar_with_a_hint(bad: Any, hint: str) -> None:
    """The heap has no clock; what it says names the way."""
    with pytest.raises(TypeError, match=f"run_at must be a number of seconds, .*{hint}"):
        VersionedTimerHeap().schedule("a", bad, 0, function)


@pytest.mark.parametrize("bad", ["5", None, True, 1.5])
def test_heap_refuses_priorities_that_are_no_ints(bad: Any) -> None:
    """A priority is an int."""
    with pytest.raises(TypeError, match="priority must be an int, higher is earlier, not"):
        VersionedTimerHeap().schedule("a", 1.0, bad, function)


def test_heap_refuses_ids_that_cannot_be_hashed() -> None:
    """An unhashable id is a TypeError, and the heap is as it was."""
    heap = VersionedTimerHeap()
    unhashable: Any = []
    with pytest.raises(TypeError, match="unhashable"):
        heap.schedule(unhashable, 1.0, 0, function)
    heap.check_invariants()
    assert heap.next(9.0) is None


def test_heap_takes_times_and_priorities_of_any_size() -> None:
    """Years before and after, ints beyond a float's precision, priorities beyond 64 bits (B11)."""
    heap = VersionedTimerHeap()
    for name, run_at, priority in [
        ("c", 1e300, 0), ("b", 10**30, 0), ("a", -1e300, 0), ("low", 0, -(10**30)), ("high", 0, 10**30),
    ]:  # fmt: skip
        heap.schedule(name, run_at, priority, function)
    assert drain(heap, 0.0) == ["a", "high", "low"]
    for days in (24.8, 24.9, 25, 49.7, 49.8, 400, 36500):
        heap.schedule(days, days * 86400, 0, function)
    assert heap.next(60.0) == Wait(24.8 * 86400 - 60.0)
    assert drain(heap, 24.8 * 86400) == [24.8]
    with pytest.raises(ValueError, match="must fit into a float"):
        heap.schedule("d", 10**400, 0, function)


def test_heap_past_times_are_due_now() -> None:
    """A time that has passed is due, once (B10)."""
    heap = VersionedTimerHeap()
    heap.schedule("past", -46.0, 0, function)
    assert drain(heap, 0.0) == ["past"]
    assert heap.next(0.0) is None


def test_heap_replaces_the_older_version_of_an_id() -> None:
    """The same id again: the old version never starts, wherever its new time lies (B16)."""
    for target in (20.0, 0.0, -5.0):
        drops = Drops()
        heap = VersionedTimerHeap(on_drop=drops)
        old = heap.schedule("k", 10.0, 0, max)
        new = heap.schedule("k", target, 0, min)
        assert new > old
        assert len(heap) == 1
        heap.check_invariants()
        due = take(heap, 30.0)
        assert (due.version, due.fn) == (new, min)
        assert heap.next(30.0) is None
        assert drops == [(("k", old), "superseded")]


def test_heap_versions_come_from_one_counter() -> None:
    """An id that was used before never gets an old version again (B23)."""
    heap = VersionedTimerHeap(remember=1)
    first = heap.schedule("x", 10.0, 0, max)
    heap.cancel("x")
    heap.schedule("other", 99.0, 0, function)
    heap.cancel("other")
    heap.schedule("more", 99.0, 0, function)
    heap.cancel("more")
    assert heap.status("x") is None  # forgotten, its item still lies in the heap
    second = heap.schedule("x", 20.0, 0, min)
    assert second > first + 2
    assert drain(heap, 10.0) == []
    assert take(heap, 20.0).fn is min


def test_heap_two_heaps_share_their_versions() -> None:
    """With one iterator no number is used twice."""
    numbers = itertools.count(7)
    one, two = VersionedTimerHeap(versions=numbers), VersionedTimerHeap(versions=numbers)
    assert [heap.schedule("a", 1.0, 0, function) for heap in (one, two, one)] == [7, 8, 9]


def test_heap_wakes_nobody_but_shows_the_new_head() -> None:
    """Earlier, later, gone, paused: `peek` shows it at once (B14, B15)."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 30.0, 0, function)
    assert heap.peek(0.0) == Wait(30.0)
    heap.schedule("b", 5.0, 0, function)
    assert heap.peek(0.0) == Wait(5.0)
    heap.reschedule("b", run_at=50.0)
    assert heap.peek(0.0) == Wait(30.0)
    heap.reschedule("a", run_at=60.0)
    assert heap.peek(0.0) == Wait(50.0)
    heap.pause("b")
    assert heap.peek(0.0) == Wait(60.0)
    heap.resume("b", 2.0)
    assert heap.peek(0.0) == Wait(2.0)
    heap.cancel("b")
    heap.cancel("a")
    assert heap.peek(0.0) is None


def test_heap_reschedule_keeps_version_and_place() -> None:
    """A moved task is the same version, and among equals where it was submitted."""
    heap = VersionedTimerHeap()
    for name in "abc":
        heap.schedule(name, 1.0, 0, function)
    before = heap.status("b")
    assert heap.reschedule("b", run_at=9.0, priority=4)
    assert heap.reschedule("b", run_at=1.0, priority=0)
    assert heap.status("b") == before
    heap.check_invariants()
    assert heap.reschedule("c", priority=1)
    assert drain(heap, 1.0) == ["c", "a", "b"]
    assert not heap.reschedule("a", run_at=3.0)
    assert not heap.reschedule("nobody", run_at=3.0)


def test_heap_reschedule_refuses_odd_input_and_changes_nothing() -> None:
    """A bad time or priority leaves the entry as it was."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 2, function)
    before = heap.status("a")
    for bad in (
        {"run_at": math.nan}, {"priority": 1.5}, {"at": math.inf, "run_at": 3.0}, {"at": 1003.0},
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            heap.reschedule("a", **bad)  # type: ignore[arg-type]
    assert heap.status("a") == before
    heap.check_invariants()


def test_heap_paused_waits_for_resume() -> None:
    """A paused task is pending, lies in no heap, and can be moved, replaced and cancelled."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 1.0, 0, function)
    assert heap.pause("a")
    assert heap.pause("a")
    assert (len(heap), heap.next(9.0)) == (1, None)
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.paused) == ("pending", True)
    assert heap.reschedule("a", run_at=5.0)
    assert heap.next(9.0) is None
    assert heap.resume("a")
    assert not heap.resume("a")
    assert heap.next(4.0) == Wait(1.0)
    heap.pause("a")
    heap.check_invariants()
    second = heap.schedule("a", 2.0, 0, function)
    heap.pause("a")
    assert heap.cancel("a") is CancelResult.PREVENTED
    heap.check_invariants()
    assert [why for _, why in drops] == ["superseded", "cancelled"]
    assert drops[1][0] == ("a", second)
    assert len(heap) == 0
    assert not heap.pause("a")
    assert not heap.resume("a")


def test_heap_limits_what_is_pending() -> None:
    """Replacing is no growth, nor is a task in a cancelled one's stead (B21)."""
    heap = VersionedTimerHeap(max_pending=3)
    for task_id in range(3):
        heap.schedule(task_id, 10.0, 0, function)
    with pytest.raises(PendingLimitReached, match="3 tasks that may be pending") as caught:
        heap.schedule(3, 10.0, 0, function)
    assert caught.value.limit == 3
    heap.schedule(1, 20.0, 0, function)
    heap.cancel(2)
    heap.schedule(3, 10.0, 0, function)
    with pytest.raises(PendingLimitReached):
        heap.schedule(4, 10.0, 0, function)
    take(heap, 10.0)
    heap.schedule(4, 10.0, 0, function)  # what runs is not pending
    heap.check_invariants()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ready_order": "time"}, "ready_order must be"),
        ({"aging": 1.0}, "aging=1.0 means nothing"),
        ({"aging": -1, "ready_order": "priority"}, "aging must be at least 0"),
        ({"aging": math.inf, "ready_order": "priority"}, "aging must be finite"),
        ({"groups": {"a": 0}}, "the weight of group 'a' must be above 0"),
        ({"groups": {"a": math.nan}}, "the weight of group 'a' must be finite"),
        ({"max_pending": 0}, "max_pending must be at least 1"),
        ({"remember": 0}, "remember must be at least 1"),
    ],
)
def test_heap_refuses_odd_options(options: dict[str, Any], message: str) -> None:
    """Each names the option and what it may be."""
    with pytest.raises(ValueError, match=message):
        VersionedTimerHeap(**options)


def test_heap_status_of_an_id_never_seen_is_none() -> None:
    """Nothing is known of it."""
    heap = VersionedTimerHeap()
    assert heap.status("a") is None
    assert heap.cancel("a") is CancelResult.UNKNOWN
    assert state(heap, "a") is None


def test_heap_example_is_true() -> None:
    """The docstring's example does what it shows."""
    assert doctest.testmod(heap_module).failed == 0


def test_heap_refuses_what_it_has_not_handed_out() -> None:
    """With what it is; nothing else changes."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 0.0, 0, function)
    for call in (heap.start, heap.revoke, heap.state_of, lambda due: heap.finish(due, "failed")):
        with pytest.raises(TypeError, match=r"\(a Due\), not 5"):
            call(5)  # type: ignore[arg-type]
    assert take(heap, 0.0).task_id == "a"
