"""`options(...)`: every key, its default and its reach."""

from __future__ import annotations

import concurrent.futures as cf
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor, current_task
from mpsched.errors import DecodeError, TaskTimeout, WorkerDied
from tests.support import bombs, faults, tasks

if TYPE_CHECKING:
    from tests.support.gates import Gate

HANG_S = 60.0


def test_options_refuses_an_unknown_key(pool: WorkStealingExecutor) -> None:
    """The message names it, the nearest known one and all others."""
    with pytest.raises(TypeError, match=r"'timeuot'.*'timeout'.*retries"):
        pool.options(timeuot=3)
    with pytest.raises(TypeError, match="'colour'"):
        pool.options(colour="red")
    with pytest.raises(TypeError):
        pool.options(3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "bad",
    [
        {"priority": "high"},
        {"priority": 1.5},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "3"},
        {"grace": -1},
        {"grace": None},
        {"retries": -1},
        {"retries": 1.5},
        {"retries": None},
        {"retry_on": "ValueError"},
        {"retry_on": (ValueError, 3)},
        {"on_cancel": "explode"},
        {"rng": "seed"},
        {"rng": 1.5},
        {"name": 3},
        {"blocking": 1},
        {"blocking": None},
    ],
    ids=str,
)
def test_options_refuses_values_that_make_no_sense(
    default_pool: WorkStealingExecutor, bad: dict[str, Any]
) -> None:
    """At the call, naming the key."""
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        default_pool.options(**bad)


def test_options_returns_an_executor(pool: WorkStealingExecutor) -> None:
    """With submit, run, map and starmap; options of options add up; the pool's own stay."""
    view = pool.options(name="one")
    assert isinstance(view, cf.Executor)
    assert view.submit(tasks.square, 3).result() == 9
    assert view.run(tasks.square, 3) == 9
    assert list(view.map(tasks.square, [1, 2])) == [1, 4]
    assert list(view.starmap(pow, [(2, 3)])) == [8]
    both = view.options(retries=2, retry_on=ValueError)
    assert both.submit(tasks.fail_before, 3).result() == 3
    error = both.submit(tasks.fail, "x").exception()
    assert any("one" in note for note in error.__notes__)  # type: ignore[union-attr]
    assert isinstance(view.submit(tasks.fail_before, 3).exception(), ValueError)


def test_timeout_ends_a_task_that_runs_too_long(start_method: str, gate: Gate) -> None:
    """Its future fails with TaskTimeout, nobody else's does, and the worker is replaced."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        other = ex.submit(gate.hold, "other")
        gate.wait_for(1)
        future = ex.options(timeout=0.2).submit(time.sleep, 600)
        error = future.exception(HANG_S)
        assert isinstance(error, TaskTimeout)
        assert isinstance(error, TimeoutError)
        assert error.seconds == 0.2
        assert error.attempt == 1
        assert error.task_id is not None
        assert "0.2 s" in str(error)
        gate.open()
        assert other.result(HANG_S) == "other"
        assert ex.submit(tasks.square, 3).result(HANG_S) == 9


def test_timeout_counts_from_the_start_and_not_from_the_submit(
    start_method: str, gate: Gate
) -> None:
    """A task that waits behind a long one loses nothing of its time."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        held = ex.submit(gate.hold)
        gate.wait_for(1)
        futures = [ex.options(timeout=HANG_S).submit(deadline_of) for _ in range(5)]
        begun = time.monotonic()
        gate.open()
        assert all(future.result(HANG_S) >= begun + HANG_S for future in futures)
        assert held.result(HANG_S) == "task"


def test_timeout_gives_the_task_its_grace(start_method: str, gate: Gate) -> None:
    """First the signal, and only `grace` seconds later the end of the worker."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        careful = ex.options(timeout=0.2, grace=HANG_S)
        future = careful.submit(gate.hold_until_cancelled)
        assert future.result(HANG_S) == "cancelled"
        assert ex.stats().deaths == 0
        assert isinstance(
            ex.options(timeout=0.1, grace=0.1).submit(time.sleep, 600).exception(HANG_S),
            TaskTimeout,
        )
        assert ex.stats().deaths == 1


def test_timeout_counts_per_item_of_a_map(start_method: str) -> None:
    """The others of the map are not touched."""
    naps = [0.0, 600.0, 0.0, 0.0]
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        found = list(ex.options(timeout=2.0).map(time.sleep, naps, return_exceptions=True))
        assert [type(one) for one in found] == [type(None), TaskTimeout, type(None), type(None)]
        assert "index 1" in "".join(getattr(found[1], "__notes__", ()))


def test_deadline_is_seen_by_the_task(pool: WorkStealingExecutor) -> None:
    """`current_task().deadline` is its start plus the limit; None without one."""
    before = time.monotonic()
    deadline = pool.options(timeout=500).submit(deadline_of).result()
    assert before + 500 <= deadline <= time.monotonic() + 500
    assert pool.submit(deadline_of).result() is None


def deadline_of() -> Any:
    """Return the running task's deadline. In a worker."""
    import mpsched

    task = mpsched.current_task()
    assert task is not None
    return task.deadline


def test_retries_run_a_task_again_whose_worker_died(start_method: str) -> None:
    """By default deaths are retried; `attempts` counts them all."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        future = ex.options(retries=2).submit(tasks.die_before, 3)
        assert future.result(HANG_S) == 3
        assert future.attempts == 3
        future = ex.options(retries=1).submit(tasks.die_before, 3)
        error = future.exception(HANG_S)
        assert isinstance(error, WorkerDied)
        assert (error.exitcode, error.attempt, error.started) == (9, 2, True)
        assert future.attempts == 2


def test_retries_count_only_what_retry_on_names(pool: WorkStealingExecutor) -> None:
    """An exception is retried only if it is listed, subclasses included."""
    again = pool.options(retries=3, retry_on=(OSError, ZeroDivisionError))
    assert again.submit(tasks.fail_before, 3, FileNotFoundError).result() == 3
    assert again.submit(tasks.fail_before, 2, ZeroDivisionError).result() == 2
    future = again.submit(tasks.fail_before, 2, KeyError)
    assert isinstance(future.exception(), KeyError)
    assert future.attempts == 1
    future = pool.options(retries=3).submit(tasks.fail_before, 2)
    assert isinstance(future.exception(), ValueError)


def test_retries_give_the_error_of_the_last_attempt(pool: WorkStealingExecutor) -> None:
    """After `retries` further attempts, and no more."""
    future = pool.options(retries=2, retry_on=ValueError).submit(tasks.fail_before, 9)
    assert str(future.exception()) == "attempt 3"
    assert future.attempts == 3


def test_retries_see_the_same_arguments(pool: WorkStealingExecutor) -> None:
    """What an attempt changes in its arguments, the next does not see."""
    future = pool.options(retries=2, retry_on=ValueError).submit(pop_and_fail, [1, 2, 3])
    assert future.result() == [1, 2]


def pop_and_fail(items: list[int]) -> list[int]:
    """Change the argument, and fail in the first two attempts. In a worker."""
    items.pop()
    tasks.fail_before(3)
    return items


def test_retries_count_per_item_of_a_map(pool: WorkStealingExecutor) -> None:
    """Each item has its own attempts."""
    again = pool.options(retries=2, retry_on=ValueError)
    assert list(again.map(tasks.fail_before, [1, 2, 3])) == [1, 2, 3]
    found = list(again.map(tasks.fail_before, [1, 4, 3], return_exceptions=True))
    assert (found[0], found[2]) == (1, 3)
    assert str(found[1]) == "attempt 3"


def test_retries_of_a_time_limit(start_method: str) -> None:
    """A killing limit is retried by default, each attempt with its full time."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        future = ex.options(timeout=2.0, retries=4).submit(tasks.sleep_in_the_first_attempt)
        assert future.result(HANG_S) >= 2


def test_name_is_shown_in_errors(start_method: str) -> None:
    """Of the task itself, of its worker's death and of its time limit."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        named = ex.options(name="nightly import")
        error = named.submit(tasks.fail).exception(HANG_S)
        assert "nightly import" in "".join(error.__notes__)  # type: ignore[union-attr]
        assert "nightly import" in str(named.submit(tasks.kill_process).exception(HANG_S))
        slow = named.options(timeout=0.1).submit(time.sleep, 600)
        assert "nightly import" in str(slow.exception(HANG_S))
        assert "nightly import" in repr(slow)


def test_rng_gives_each_task_its_own_stream(pool: WorkStealingExecutor) -> None:
    """The same seed gives the same numbers, whoever runs them; other seeds give others."""

    def batch(seed: int) -> list[float]:
        view = pool.options(rng=seed)
        return [future.result() for future in [view.submit(tasks.draw) for _ in range(50)]]

    first = batch(7)
    assert len(set(first)) == 50
    assert batch(7) == first
    assert not set(batch(8)) & set(first)
    assert list(pool.options(rng=7).map(tasks.draw, range(50))) == first


def test_rng_does_not_depend_on_the_number_of_workers(start_method: str) -> None:
    """One worker, three workers or none: the same numbers."""
    found = []
    for workers in (0, 1, 3):
        with WorkStealingExecutor(workers, mp_context=start_method) as ex:
            found.append(list(ex.options(rng=11).map(tasks.draw, range(30))))
    assert found[0] == found[1] == found[2]


def test_rng_is_the_same_in_every_attempt(pool: WorkStealingExecutor) -> None:
    """A retried task draws what it would have drawn."""
    view = pool.options(rng=7, retries=1, retry_on=ValueError)
    drawn = view.submit(draw_late).result()
    assert drawn == pool.options(rng=7).submit(tasks.draw).result()


def draw_late() -> float:
    """Fail in the first attempt after drawing. In a worker."""
    number = tasks.draw()
    tasks.fail_before(2)
    return number


def test_rng_without_a_seed_differs_from_task_to_task(pool: WorkStealingExecutor) -> None:
    """Nobody shares a stream by accident."""
    drawn = [future.result() for future in [pool.submit(tasks.draw) for _ in range(40)]]
    assert len(set(drawn)) == 40


def test_options_view_outlives_nothing(start_method: str) -> None:
    """Shutting down the view shuts down the pool."""
    from mpsched.errors import SchedulerClosed

    ex = WorkStealingExecutor(1, mp_context=start_method)
    view = ex.options(priority=2)
    assert view.submit(faults.raise_if, KeyError, 1, 2).result(HANG_S) == 2
    view.shutdown()
    assert ex.state == "terminated"
    with pytest.raises(SchedulerClosed):
        view.submit(tasks.square, 3)


def test_deadline_of_a_task_that_cannot_be_unpickled_goes_with_it(
    default_pool: WorkStealingExecutor,
) -> None:
    """What runs after it in the same worker has no limit, and blocks nobody, unless it says so."""
    view = default_pool.options(timeout=500, blocking=True, rng=3)
    lost = [view.submit(tasks.identity, bombs.RaisesAtUnpickle(ValueError)) for _ in range(8)]
    assert all(isinstance(one.exception(), DecodeError) for one in lost)
    later = [default_pool.submit(deadline_of) for _ in range(8)]
    assert [one.result() for one in later] == [None] * 8


def test_wait_cancelled_ends_when_the_task_is_asked_to_stop(
    default_pool: WorkStealingExecutor, gate: Gate
) -> None:
    """It waits for the signal in place of sleeping; without one it answers False in time."""
    assert default_pool.submit(waits, None, 0.0).result() is False
    assert default_pool.submit(waits, None, 0.01).result() is False
    running = default_pool.submit(waits, gate, None)
    gate.wait_for(1)
    assert not running.cancel()
    assert running.result(HANG_S) is True


def waits(gate: Gate | None, timeout: float | None) -> bool:
    """Wait for the signal of the running task. In a worker."""
    task = current_task()
    assert task is not None
    if gate is not None:
        gate.arrive()
    return task.wait_cancelled(timeout)
