"""Orders of what is due: by priority, with aging, by groups; and the bounds that are proved of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Due, VersionedTimerHeap
from mpsched._timers.states import State
from tests.support.timers import drain, function, take

if TYPE_CHECKING:
    import random


def test_order_of_ties_that_come_late() -> None:
    """What is scheduled when others of its time have been taken, or before them, is in its place."""
    heap = VersionedTimerHeap()
    for name, priority in [("c", 1), ("b", 2), ("e", 0), ("d", 1)]:
        heap.schedule(name, 2.0, priority, function)
    assert take(heap, 9.0).task_id == "b"
    heap.schedule("a", 2.0, 3, function)
    heap.schedule("f", 2.0, 0, function)
    heap.schedule("late", 2.5, 9, function)
    heap.schedule("early", 1.5, 0, function)
    heap.schedule("earlier", 1.0, 0, function)
    heap.schedule("early too", 1.5, 0, function)
    heap.cancel("e")
    assert heap.reschedule("c", priority=4)
    assert drain(heap, 9.0) == ["earlier", "early", "early too", "c", "a", "d", "f", "late"]
    assert heap.metrics().entries == 0


def test_order_of_many_ties_with_what_comes_meanwhile(rng: random.Random) -> None:
    """Hundreds at few instants, taken in pieces, while others come, go and move: always the first of all."""
    heap = VersionedTimerHeap()
    waiting: dict[int, tuple[float, int, int]] = {}
    number = 0

    def add(count: int) -> None:
        nonlocal number
        for _ in range(count):
            time, priority = float(rng.randrange(3)), rng.choice((-1, 0, 0, 0, 10**30))
            version = heap.schedule(number, time, priority, function)
            waiting[number] = (time, -priority, version)
            number += 1

    for _ in range(40):
        add(rng.choice((0, 1, 5, 200)))
        for _ in range(rng.choice((0, 3, 60))):
            if waiting:
                gone = rng.choice(list(waiting))
                assert heap.cancel(gone)
                del waiting[gone]
        if waiting and rng.random() < 0.5:
            moved = rng.choice(list(waiting))
            _time, negated, version = waiting[moved]
            assert heap.reschedule(moved, run_at=1.0)
            waiting[moved] = (1.0, negated, version)
        now, most = rng.choice((0.0, 1.0, 2.0)), rng.choice((1, 7, 150))
        due = sorted((key, one) for one, key in waiting.items() if key[0] <= now)[:most]
        expected = [one for _key, one in due]
        if rng.random() < 0.5:
            taken = [found for _ in expected if isinstance(found := heap.next(now), Due)]
        else:
            taken = heap.claim_many(now, most)
        assert [one.task_id for one in taken] == expected
        heap.check_invariants()
        for one in taken:
            del waiting[one.task_id]  # type: ignore[arg-type]
    assert drain(heap, 9.0) == [one for _key, one in sorted((k, one) for one, k in waiting.items())]


def test_order_of_ties_by_random_calls(rng: random.Random) -> None:
    """Ten times for a thousand entries that come, go and move between the takings: as sorted."""
    heap = VersionedTimerHeap()
    waits: dict[int, tuple[float, int, int]] = {}
    for number in range(3_000):
        run_at, priority = rng.randrange(10) / 2, rng.randrange(3)
        version = heap.schedule(number, run_at, priority, function)
        waits[number] = (run_at, -priority, version)
        if number % 5 == 1:
            one = rng.choice(sorted(waits))
            assert heap.reschedule(one, run_at=run_at)
            waits[one] = (run_at, *waits[one][1:])
        if number % 7 == 1:
            one = rng.choice(sorted(waits))
            heap.cancel(one)
            del waits[one]
        if number % 3 == 1:
            due = take(heap, 5.0) if number % 100 == 1 else heap.next(5.0)
            assert isinstance(due, Due)
            assert due.task_id == min(waits, key=waits.__getitem__)
            del waits[due.task_id]
    assert drain(heap, 5.0) == sorted(waits, key=waits.__getitem__)


@pytest.mark.parametrize("order", ["run_at", "priority"])
def test_order_zeros_are_one_time(order: Any) -> None:
    """0.0 and -0.0 are equal; a time that is false is a time, and what is handed out is a plain float."""
    heap = VersionedTimerHeap(ready_order=order)
    for name, run_at, priority in [("b", 0.0, 0), ("a", -0.0, 1), ("c", -0.0, 0), ("gone", 0.0, 5)]:
        heap.schedule(name, run_at, priority, function)
    assert heap.cancel("gone") is CancelResult.PREVENTED
    assert heap.cancel("gone") is CancelResult.TOO_LATE
    for name, known in [("gone", "cancelled"), ("a", "pending")]:
        status = heap.status(name)
        assert status is not None
        assert (status.state, type(status.run_at)) == (known, float)
    due = take(heap, 0.0)
    assert (due.task_id, due.run_at, type(due.run_at)) == ("a", 0.0, float)
    assert heap.state_of(due) is State.RUNNING
    assert heap.cancel("a") is CancelResult.REQUESTED
    assert drain(heap, 0.0) == ["b", "c"]


def test_order_priority_comes_first_among_what_is_due() -> None:
    """Highest priority, then earliest time, then submission; what is not due does not count."""
    heap = VersionedTimerHeap(ready_order="priority")
    for name, run_at, priority in [
        ("d", 3.0, 1), ("c", 2.0, 1), ("e", 3.0, 1), ("a", 5.0, 9), ("not yet", 6.0, 99), ("b", 4.0, 5),
        ("f", 1.0, 0),
    ]:  # fmt: skip
        heap.schedule(name, run_at, priority, function)
    assert drain(heap, 5.0) == ["a", "b", "c", "d", "e", "f"]
    assert drain(heap, 6.0) == ["not yet"]


def test_order_priority_looks_at_each_call() -> None:
    """What becomes due later with a higher priority goes before what waits."""
    heap = VersionedTimerHeap(ready_order="priority")
    for name in "abc":
        heap.schedule(name, 1.0, 0, function)
    heap.schedule("urgent", 2.0, 1, function)
    assert take(heap, 1.0).task_id == "a"
    assert heap.next(2.0)[0] == "urgent"  # type: ignore[index]
    assert heap.reschedule("c", priority=2)
    assert drain(heap, 2.0) == ["c", "b"]


@pytest.mark.parametrize("aging", [0.0, 1.0])
def test_order_priorities_that_no_float_holds(aging: float) -> None:
    """They are the first and the last there are, and lose nothing."""
    heap = VersionedTimerHeap(ready_order="priority", aging=aging)
    for name, priority in [("least", -(10**400)), ("low", -5), ("high", 5), ("most", 10**400)]:
        heap.schedule(name, 1.0, priority, function)
    assert drain(heap, 10.0) == ["most", "high", "low", "least"]
    heap.check_invariants()


def test_order_priority_revoked_is_in_its_old_place() -> None:
    """A claim that is taken back stands where it stood."""
    heap = VersionedTimerHeap(ready_order="priority")
    for name in "abc":
        heap.schedule(name, 1.0, 0, function)
    first, second = heap.claim_many(1.0, 2)
    assert heap.revoke(second)
    assert heap.revoke(first)
    heap.check_invariants()
    assert drain(heap, 1.0) == ["a", "b", "c"]


def test_order_strict_priority_starves_under_a_flood() -> None:
    """Without aging, low priority waits as long as higher ones keep coming: that is what it means."""
    heap = VersionedTimerHeap(ready_order="priority")
    heap.schedule("low", 0.0, -10, function)
    for now in range(2000):
        heap.schedule(now, float(now), 0, function)
        due = heap.next(float(now))
        assert isinstance(due, Due)
        assert due.task_id == now


@pytest.mark.parametrize(("aging", "gap"), [(1 / 60, 10), (0.5, 1), (2.0, 7), (3.0, 100)])
def test_order_aging_bounds_the_wait(aging: float, gap: int) -> None:
    """Only what was due within gap / aging seconds after it goes before a lower one (B43)."""
    heap = VersionedTimerHeap(ready_order="priority", aging=aging)
    heap.schedule("low", 5.0, -gap, function)
    bound = 5.0 + gap / aging
    now, before = 0.0, []
    while True:
        # A steady flood, exactly as fast as it is served.
        heap.schedule(("high", now), now, 0, function)
        due = heap.next(now)
        assert isinstance(due, Due)
        if due.task_id == "low":
            break
        before.append(due.run_at)
        now += 0.25
    assert now <= bound + 0.25
    assert all(run_at <= bound + 1e-6 for run_at in before)
    # It is a bound that is reached: a wait of nearly as long.
    assert now >= bound - 0.25


def test_order_aging_counts_from_when_it_was_due_or_came() -> None:
    """A time long past gives no age: what was scheduled for it waits since the last look at most."""
    heap = VersionedTimerHeap(ready_order="priority", aging=1.0)
    heap.peek(1000.0)
    heap.schedule("high", 1001.0, 5, function)
    heap.peek(1001.0)
    heap.schedule("low", 0.0, 0, function)
    assert drain(heap, 1002.0) == ["high", "low"]


def test_order_aging_goes_on_when_a_claim_is_taken_back() -> None:
    """It waits since it was due, not since it came back; a new time is a new wait."""
    heap = VersionedTimerHeap(ready_order="priority", aging=1.0)
    heap.schedule("old", 0.0, 0, function)
    heap.schedule("later", 3.0, 1, function)
    due = heap.claim(0.0)
    assert isinstance(due, Due)
    assert heap.peek(9.0) is not None
    assert heap.revoke(due)
    assert take(heap, 10.0).task_id == "old"
    for name in ("moved", "stays"):
        heap.schedule(name, 10.0, 0, function)
    heap.peek(10.0)
    heap.reschedule("moved", run_at=15.0)
    heap.schedule("between", 12.0, 0, function)
    assert drain(heap, 20.0) == ["later", "stays", "between", "moved"]


def test_order_aging_is_the_order_of_grown_priorities(rng: random.Random) -> None:
    """What is taken has the highest `priority + aging * (now - since)` at that moment."""
    aging = 0.37
    heap = VersionedTimerHeap(ready_order="priority", aging=aging)
    waiting: dict[int, tuple[float, int]] = {}
    now = 0.0
    for task_id in range(1000):
        run_at, priority = now + rng.random() * 5, rng.randrange(-5, 6)
        heap.schedule(task_id, run_at, priority, function)
        waiting[task_id] = run_at, priority
        now += rng.random()
        due = heap.next(now)
        if isinstance(due, Due):
            grown = {
                one: priority + aging * (now - run_at)
                for one, (run_at, priority) in waiting.items()
                if run_at <= now
            }
            assert grown[int(str(due.task_id))] >= max(grown.values()) - 1e-9
            del waiting[int(str(due.task_id))]


def fill(heap: VersionedTimerHeap, group: str | None, count: int, now: float = 0.0) -> None:
    for number in range(count):
        heap.schedule((group, number, now), now, 0, function, group=group)


def test_order_groups_get_starts_by_weight() -> None:
    """Of two groups with much to do, one of weight 3 starts three for one of weight 1."""
    heap = VersionedTimerHeap(groups={"web": 3, "batch": 1})
    fill(heap, "batch", 1000)
    fill(heap, "web", 1000)
    started = Counter(take_group(heap) for _ in range(400))
    assert started == {"web": 300, "batch": 100}


def take_group(heap: VersionedTimerHeap, now: float = 0.0) -> str | None:
    due = heap.next(now)
    assert isinstance(due, Due)
    group: str | None = due.task_id[0]  # type: ignore[index]
    heap.finish(due, "completed")
    return group


@pytest.mark.parametrize("order", ["run_at", "priority"])
def test_order_groups_stay_within_their_bound(rng: random.Random, order: str) -> None:
    """While both have work, starts divided by weight differ by 1/w + 1/v at most, in every interval."""
    weights = {"a": 5.0, "b": 1.0, "c": 2.5, "d": 0.3}
    heap = VersionedTimerHeap(groups=weights, ready_order=order)  # type: ignore[arg-type]
    for group in weights:
        for number in range(2000):
            heap.schedule((group, number), 0.0, rng.randrange(3), function, group=group)
    totals = [dict.fromkeys(weights, 0)]
    for _ in range(1500):
        name = take_group(heap)
        assert name is not None
        totals.append(totals[-1] | {name: totals[-1][name] + 1})
    for first in rng.sample(range(1500), 200):
        last = rng.randrange(first, 1501)
        for one, w in weights.items():
            for two, v in weights.items():
                gone = (totals[last][one] - totals[first][one]) / w
                others = (totals[last][two] - totals[first][two]) / v
                assert abs(gone - others) <= 1 / w + 1 / v + 1e-9


def test_order_groups_save_nothing_while_idle() -> None:
    """A group that had nothing due for long gets its share, and not what it missed."""
    heap = VersionedTimerHeap(groups={"web": 1, "batch": 1})
    fill(heap, "batch", 3000)
    for _ in range(1000):
        assert take_group(heap) == "batch"
    fill(heap, "web", 100)
    started = Counter(take_group(heap) for _ in range(100))
    assert abs(started["web"] - started["batch"]) <= 2  # 1/w + 1/v


def test_order_groups_within_one_by_time() -> None:
    """In a group: time, then priority, then submission; without a group: weight 1."""
    heap = VersionedTimerHeap(groups={"g": 1})
    for name, run_at, priority in [("c", 2.0, 0), ("b", 1.0, 0), ("a", 1.0, 1)]:
        heap.schedule(name, run_at, priority, function, group="g")
    heap.schedule("alone", 0.0, 0, function)
    heap.check_invariants()
    assert heap.metrics().live == 4
    order = drain(heap, 2.0)
    assert [name for name in order if name != "alone"] == ["a", "b", "c"]
    assert order.index("alone") <= 1


def test_order_groups_cancelled_ones_cost_no_turn() -> None:
    """What was cancelled in a group is skipped without counting as a start."""
    heap = VersionedTimerHeap(groups={"a": 1, "b": 1})
    fill(heap, "a", 200)
    fill(heap, "b", 200)
    heap.peek(0.0)
    for number in range(100):
        heap.cancel(("a", number, 0.0))
        heap.check_invariants()
    assert Counter(take_group(heap) for _ in range(100)) == {"a": 50, "b": 50}


def test_order_groups_unknown_is_refused() -> None:
    """The error names the groups that there are."""
    with pytest.raises(
        ValueError, match=r"no group 'x': give its weight in groups= \(known: a, b\)"
    ):
        VersionedTimerHeap(groups={"b": 1, "a": 1}).schedule("i", 1.0, 0, function, group="x")
    with pytest.raises(ValueError, match=r"known: none"):
        VersionedTimerHeap().schedule("i", 1.0, 0, function, group="x")
    with pytest.raises(TypeError, match="a group's name must be a str, not 3"):
        VersionedTimerHeap(groups={3: 1.0})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="the weight of group 'a' must be a number, not '3'"):
        VersionedTimerHeap(groups={"a": "3"})  # type: ignore[dict-item]


def test_order_everything_due_at_infinity_is_handed_out() -> None:
    """`next(inf)` drains a heap, whatever its order."""
    for heap in (
        VersionedTimerHeap(),
        VersionedTimerHeap(ready_order="priority", aging=1.0),
        VersionedTimerHeap(groups={"a": 2}),
    ):
        heap.schedule("late", 1e300, 0, function)
        assert drain(heap, math.inf) == ["late"]
        heap.schedule("early", 5.0, 0, function)
        assert drain(heap, 5.0) == ["early"]
