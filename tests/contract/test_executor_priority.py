"""Order among what waits: priorities and aging."""

from __future__ import annotations

import concurrent.futures as cf
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from tests.support import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gates import Gate

HANG_S = 60.0
AHEAD = 2
"""Tasks that one worker is given ahead while it runs a long one: they cannot be overtaken for sure."""


@pytest.fixture
def single(start_method: str) -> Iterator[WorkStealingExecutor]:
    """A pool of one worker, so that the order of the starts is the order of the tasks."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        yield ex


def test_priority_runs_the_higher_first(single: WorkStealingExecutor, gate: Gate) -> None:
    """Whatever was submitted before: 100 low ones, then a high and a higher one."""
    held = single.submit(gate.hold, "held")
    gate.wait_for(1)
    low = [single.submit(gate.log, f"low{n:03}") for n in range(100)]
    high = single.options(priority=1).submit(gate.log, "high")
    higher = single.options(priority=7).submit(gate.log, "higher")
    lower = single.options(priority=-5).submit(gate.log, "lower")
    gate.open()
    cf.wait([held, *low, high, higher, lower], HANG_S)
    order = gate.arrivals()
    assert order[0] == "held"
    assert order.index("higher") <= 1 + AHEAD
    assert order.index("high") <= 2 + AHEAD
    assert order[-1] == "lower"


def test_priority_keeps_the_order_of_submission_among_equals(
    single: WorkStealingExecutor, gate: Gate
) -> None:
    """First come, first served."""
    held = single.submit(gate.hold, "held")
    gate.wait_for(1)
    futures: list[cf.Future[Any]] = []
    for number in range(60):
        view = single.options(priority=number % 3)
        futures.append(view.submit(gate.log, f"{number % 3}-{number:03}"))
    gate.open()
    cf.wait([held, *futures], HANG_S)
    order = gate.arrivals()[1:]
    for priority in "012":
        mine = [name for name in order if name.startswith(priority)]
        assert mine == sorted(mine)
    rest = [name for name in order if name not in {f"{n % 3}-{n:03}" for n in range(AHEAD + 1)}]
    assert [name[0] for name in rest] == sorted((name[0] for name in rest), reverse=True)


def test_priority_of_a_map_goes_before_submitted_tasks(
    single: WorkStealingExecutor, gate: Gate
) -> None:
    """A map waits in the same queue."""
    held = single.submit(gate.hold, "held")
    gate.wait_for(1)
    low = [single.submit(gate.log, f"low{n:02}") for n in range(30)]
    results = single.options(priority=3).map(gate.log, [f"map{n}" for n in range(10)])
    gate.open()
    assert list(results) == [f"map{n}" for n in range(10)]
    cf.wait([held, *low], HANG_S)
    order = gate.arrivals()
    last = max(n for n, name in enumerate(order) if name.startswith("map"))
    # A task may be dispatched ahead between two pieces of the map.
    assert sum(name.startswith("low") for name in order[:last]) <= 5 * AHEAD


def test_priority_does_not_stop_what_runs(single: WorkStealingExecutor, gate: Gate) -> None:
    """A running task is never interrupted for another one."""
    held = single.submit(gate.hold, "held")
    gate.wait_for(1)
    urgent = single.options(priority=1000).submit(gate.log, "urgent")
    with pytest.raises(TimeoutError):
        urgent.result(0.05)
    gate.open()
    assert (held.result(HANG_S), urgent.result(HANG_S)) == ("held", "urgent")


def test_aging_lets_the_low_ones_through(start_method: str, gate: Gate) -> None:
    """With 1,000 points a second, what waited for 0.1 s overtakes a priority of 5."""
    with WorkStealingExecutor(1, mp_context=start_method, aging=1000.0) as ex:
        held = ex.submit(gate.hold, "held")
        gate.wait_for(1)
        low = [ex.submit(gate.log, f"low{n:02}") for n in range(20)]
        time.sleep(0.1)  # the question: they wait
        high = [ex.options(priority=5).submit(gate.log, f"high{n:02}") for n in range(20)]
        gate.open()
        cf.wait([held, *low, *high], HANG_S)
    order = gate.arrivals()[1:]
    assert order == [f"low{n:02}" for n in range(20)] + [f"high{n:02}" for n in range(20)]


def test_aging_that_is_small_leaves_priorities_alone(start_method: str, gate: Gate) -> None:
    """With a thousandth of a point a second the higher priority still wins."""
    with WorkStealingExecutor(1, mp_context=start_method, aging=0.001) as ex:
        held = ex.submit(gate.hold, "held")
        gate.wait_for(1)
        low = [ex.submit(gate.log, f"low{n:02}") for n in range(20)]
        high = [ex.options(priority=5).submit(gate.log, f"high{n:02}") for n in range(20)]
        gate.open()
        cf.wait([held, *low, *high], HANG_S)
    order = gate.arrivals()[1:]
    assert sum(name.startswith("low") for name in order[: 20 + AHEAD]) <= AHEAD


def test_aging_pool_cancels_and_maps_like_any_other(start_method: str, gate: Gate) -> None:
    """The other queue inside behaves the same."""
    with WorkStealingExecutor(2, mp_context=start_method, aging=1.0) as ex:
        held = [ex.submit(gate.hold) for _ in range(2)]
        gate.wait_for(2)
        waiting = [ex.submit(gate.log, "never") for _ in range(50)]
        assert all(future.cancel() for future in waiting)
        gate.open()
        cf.wait(held, HANG_S)
        assert list(ex.map(tasks.square, range(200))) == [n * n for n in range(200)]
        assert [ex.submit(tasks.square, n).result(HANG_S) for n in range(50)] == [
            n * n for n in range(50)
        ]
    assert "never" not in gate.arrivals()


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1"])
def test_aging_refuses_values_that_make_no_sense(value: Any) -> None:
    """At construction, with the value in the message."""
    with pytest.raises((TypeError, ValueError), match="aging"):
        WorkStealingExecutor(1, aging=value)
