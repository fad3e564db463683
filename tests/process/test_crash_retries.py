"""Attempts after a death or an error: how many, in which order, and when there is none."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mpsched.errors import TaskTimeout, WorkerDied
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    kill,
    pids,
    pool,
    release,
    template_of,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path

    import mpsched

KILL = f"signal {signal.SIGKILL:d}"


def attempts_in(log: Path) -> list[int]:
    return [int(line.split()[0]) for line in log.read_text().splitlines()]


def test_retry_after_deaths_gives_the_result(start_method: str, tmp_path: Path) -> None:
    """Two deaths and a success are three attempts, each in a process of its own."""
    log = tmp_path / "log"
    with pool(2, start_method) as ex:
        future = ex.options(retries=2).submit(calls.die_until, 3, KILL, str(log))
        assert future.result(DEADLINE_S) == 3
        assert future.attempts == 3
    assert attempts_in(log) == [1, 2, 3]
    assert len({line.split()[1] for line in log.read_text().splitlines()}) == 3


def test_poison_task_uses_up_its_retries_and_no_more(tmp_path: Path) -> None:
    """It dies once per attempt; WorkerDied tells the last one; everything else runs."""
    log = tmp_path / "log"
    with pool(2) as ex:
        poison = ex.options(retries=3, name="poison").submit(
            calls.die_until, 99, "_exit 3", str(log)
        )
        others = [ex.submit(calls.nap, 0.002) for _ in range(100)]
        error = poison.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert (error.attempt, error.exitcode) == (4, 3)
        assert "'poison'" in str(error)
        assert poison.attempts == 4
        assert [future.result(DEADLINE_S) for future in others] == [0.002] * 100
        assert_full_width(ex, tmp_path)
        assert ex.stats().deaths == 4
    assert attempts_in(log) == [1, 2, 3, 4]


def test_many_poison_tasks_at_once_end(tmp_path: Path) -> None:
    """Each fails by itself, with an error of its own, and the pool is whole afterwards."""
    log = tmp_path / "log"
    with pool(3) as ex:
        poison = [
            ex.options(retries=1).submit(calls.die_until, 99, KILL, str(log)) for _ in range(10)
        ]
        errors = [future.exception(DEADLINE_S) for future in poison]
        assert {type(error) for error in errors} == {WorkerDied}
        assert len({error.task_id for error in errors if isinstance(error, WorkerDied)}) == 10
        assert_full_width(ex, tmp_path)
    assert sorted(attempts_in(log)) == [1] * 10 + [2] * 10


def test_error_is_not_retried_unless_listed(tmp_path: Path) -> None:
    """By default `retries` counts deaths and killing limits, not exceptions of the task."""
    log = tmp_path / "log"
    with pool(1) as ex:
        future = ex.options(retries=5).submit(calls.fail_until, 3, str(log))
        assert isinstance(future.exception(DEADLINE_S), ConnectionError)
        assert future.attempts == 1
    assert attempts_in(log) == [1]


def test_listed_error_is_retried(tmp_path: Path) -> None:
    """Attempts go on while the error is of a listed class; subclasses count."""
    log = tmp_path / "log"
    with pool(2) as ex:
        view = ex.options(retries=5, retry_on=(OSError,))
        future = view.submit(calls.fail_until, 3, str(log))
        assert future.result(DEADLINE_S) == 3
        assert future.attempts == 3
        assert isinstance(view.submit(calls.act, "raise").exception(DEADLINE_S), ValueError)
        # Deaths are not listed now.
        assert isinstance(view.submit(calls.die, KILL).exception(DEADLINE_S), WorkerDied)
    assert attempts_in(log) == [1, 2, 3]


def test_error_after_the_last_retry_is_the_tasks_own(tmp_path: Path) -> None:
    """The last attempt's exception comes out, with its remote traceback."""
    log = tmp_path / "log"
    with pool(1) as ex:
        future = ex.options(retries=2, retry_on=ConnectionError).submit(
            calls.fail_until, 99, str(log)
        )
        error = future.exception(DEADLINE_S)
        assert isinstance(error, ConnectionError)
        assert str(error) == "attempt 3"
        assert "fail_until" in str(error.__cause__)
    assert attempts_in(log) == [1, 2, 3]


def test_attempts_are_serial(tmp_path: Path) -> None:
    """No attempt begins before the one before has ended, and its future is not final before."""
    log = tmp_path / "log"
    with pool(3) as ex:
        future = ex.options(retries=4).submit(calls.slow_death, 5, 0.05, str(log))
        assert future.result(DEADLINE_S) == 5
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [(int(number), what) for number, what, _ in lines] == [
        (number, what) for number in range(1, 6) for what in ("begin", "end")
    ]
    times = [int(ns) for *_, ns in lines]
    assert times == sorted(times)


def test_arguments_are_the_same_in_each_attempt(tmp_path: Path) -> None:
    """What the caller changes after `submit` reaches no attempt."""
    with pool(1) as ex:
        items = [1, 2, 3]
        log = tmp_path / "log"
        future = ex.options(retries=1).submit(calls.note_and_die_once, items, str(log))
        items.append(4)
        assert future.result(DEADLINE_S) == [1, 2, 3]
    assert log.read_text().splitlines() == ["[1, 2, 3]", "[1, 2, 3]"]


def test_cancelled_task_is_not_run_again_after_its_death(tmp_path: Path) -> None:
    """A task that was asked to stop and dies is final, whatever its retries."""
    with pool(1) as ex:
        future = ex.options(retries=5).submit(calls.hold, str(tmp_path), "one")
        pid = wait_for_holders(tmp_path, "one")["one"]
        assert not future.cancel()
        kill(pid)
        assert isinstance(future.exception(DEADLINE_S), WorkerDied)
        assert future.attempts == 1


def test_retry_keeps_its_place_before_what_came_later(tmp_path: Path) -> None:
    """The next attempt runs before tasks that were submitted after it."""
    log = tmp_path / "log"
    with pool(1) as ex:
        blocker = ex.submit(calls.hold, str(tmp_path), "blocker")
        wait_for_holders(tmp_path, "blocker")
        again = ex.options(retries=1).submit(calls.die_until, 2, KILL, str(log))
        # More than a worker is given ahead.
        later = [ex.submit(calls.write_line, str(log), "9 later") for _ in range(2000)]
        release(tmp_path, "blocker")
        assert again.result(DEADLINE_S) == 2
        for future in later:
            future.result(DEADLINE_S)
        assert blocker.result() == "blocker"
    order = attempts_in(log)
    assert order.count(9) == 2000
    assert order.index(2) < len(order) - 1


def test_map_retries_each_item_by_itself(tmp_path: Path) -> None:
    """`retries` and `timeout` count per item; the neighbours run once."""
    log = tmp_path / "log"
    with pool(2) as ex:
        view = ex.options(retries=2)
        items = [(1 if number % 5 else 3, KILL, str(log)) for number in range(20)]
        assert list(view.starmap(calls.die_until, items)) == [item[0] for item in items]
    assert sorted(attempts_in(log)) == [1] * 20 + [2] * 4 + [3] * 4


def next_template(ex: mpsched.WorkStealingExecutor, old: int) -> int:
    """Wait until the pool has another template; return its process."""
    wait_until(lambda: template_of(ex) not in {old, 0}, "a new template")
    return template_of(ex)


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_killed_template_is_replaced(method: str, tmp_path: Path) -> None:
    """Running tasks fail or are retried, queued ones stay, a new template makes new workers."""
    with pool(2, method) as ex:
        once = ex.submit(calls.hold, str(tmp_path), "once")
        again = ex.options(retries=1).submit(calls.hold, str(tmp_path), "again")
        wait_for_holders(tmp_path, "once", "again")
        queued = [ex.submit(calls.identity, number) for number in range(100)]
        template = template_of(ex)
        kill(template)
        error = once.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.exitcode is None
        release(tmp_path, "again")
        assert again.result(DEADLINE_S) == "again"
        assert again.attempts == 2
        assert [future.result(DEADLINE_S) for future in queued] == list(range(100))
        assert_full_width(ex, tmp_path)
        assert template_of(ex) != template
    assert "once" not in [path.stem for path in tmp_path.glob("*.go")]


def test_template_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    """Also while it or its workers start: the pool comes back each time."""
    with pool(2) as ex:
        for number in range(5):
            assert ex.submit(calls.identity, number).result(DEADLINE_S) == number
            template = template_of(ex)
            kill(template)
            later = ex.submit(calls.identity, -number)
            if number % 2:
                template = next_template(ex, template)
                kill(template)
            # It may have been running already when the template was killed.
            assert later.exception(DEADLINE_S) is None or isinstance(later.exception(), WorkerDied)
            # With another one nobody is left who dies because of this one.
            next_template(ex, template)
        assert_full_width(ex, tmp_path)


def test_killed_template_of_an_idle_pool_is_not_noticed(tmp_path: Path) -> None:
    """Nothing runs, so nothing fails."""
    with pool(2) as ex:
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        before = pids(ex)
        kill(template_of(ex))
        wait_until(lambda: not any(map(alive, before)), "the end of the workers")
        assert_full_width(ex, tmp_path)


def test_time_limit_counts_as_an_attempt(tmp_path: Path) -> None:
    """A killing limit is retried like a death, and the last one is a TaskTimeout."""
    log = tmp_path / "log"
    # With what a new worker imports before it can note anything.
    with pool(1, preload=[calls.__name__]) as ex:
        view = ex.options(retries=1, timeout=2.0)
        future = view.submit(calls.slow_death, 1, 60.0, str(log))
        error = future.exception(DEADLINE_S)
        assert isinstance(error, TaskTimeout)
        assert (error.attempt, error.seconds) == (2, 2.0)
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["begin"] * 2
