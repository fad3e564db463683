"""What a pool tells of itself: one record for each thing that happens, once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

import mpsched
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    assert_full_width,
    kill,
    pids,
    pool,
    release,
    template_of,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path


def kinds(seen: list[mpsched.PoolEvent]) -> list[str]:
    return [event.kind for event in seen]


def of_kind(seen: list[mpsched.PoolEvent], kind: str) -> list[mpsched.PoolEvent]:
    return [event for event in list(seen) if event.kind == kind]


def test_events_tell_of_a_death_and_of_the_start_that_follows(
    start_method: str, tmp_path: Path
) -> None:
    """Which worker, which process, how; each once."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2, start_method) as ex:
        assert_full_width(ex, tmp_path)
        ex.events(seen.append)
        before = pids(ex)
        assert kill(before[1])
        wait_until(lambda: of_kind(seen, "started"), "a replacement")
        (died,) = of_kind(seen, "died")
        assert (died.worker, died.pid) == (1, before[1])
        assert "SIGKILL" in died.why
        assert str(died) == f"worker 1 (pid {before[1]}) died: {died.why}"
        (started,) = of_kind(seen, "started")
        assert (started.worker, started.pid) == (1, pids(ex)[1])
    # An ordinary end is nothing to tell.
    assert kinds(seen) == ["died", "started"]


def test_events_name_retries_and_poison(tmp_path: Path) -> None:
    """Each further attempt once, and in the end the task that ends every worker."""
    seen: list[mpsched.PoolEvent] = []
    with pool(1) as ex:
        ex.events(seen.append)
        view = ex.options(retries=2, name="bad")
        bad = view.submit(calls.die, "_exit 7")
        assert isinstance(bad.exception(DEADLINE_S), mpsched.errors.WorkerDied)
        assert "attempt 3 of 3" in str(bad.exception())
        wait_until(lambda: len(of_kind(seen, "died")) == 3, "three deaths")
        assert [event.attempt for event in of_kind(seen, "retried")] == [2, 3]
        (poison,) = of_kind(seen, "poison")
        assert (poison.name, poison.attempt) == ("bad", 3)
        assert "exit code 7" in poison.why
        assert len({event.task_id for event in seen if event.task_id is not None}) == 1


def test_events_tell_of_a_retried_exception_in_one_line() -> None:
    """Whoever reads the result; a message of several lines becomes one."""
    seen: list[mpsched.PoolEvent] = []
    with pool(1) as ex:
        ex.events(seen.append)
        view = ex.options(retries=1, retry_on=ValueError)
        assert isinstance(view.submit(calls.raise_lines).exception(DEADLINE_S), ValueError)
        wait_until(lambda: of_kind(seen, "retried"), "the event")
    (retried,) = of_kind(seen, "retried")
    assert retried.why == "ValueError: first second"


def test_events_tell_of_a_limit_and_why_its_worker_ended(tmp_path: Path) -> None:
    """The task was over its limit; the death of its worker says that it is because of that."""
    seen: list[mpsched.PoolEvent] = []
    with pool(1) as ex:
        ex.events(seen.append)
        slow = ex.options(timeout=0.1, name="slow").submit(calls.stubborn, str(tmp_path), "slow")
        assert isinstance(slow.exception(DEADLINE_S), mpsched.errors.TaskTimeout)
        wait_until(lambda: of_kind(seen, "died"), "the death")
    (over,) = of_kind(seen, "timed_out")
    assert over.name == "slow"
    (died,) = of_kind(seen, "died")
    assert "'slow' was over its limit of 0.1 s" in died.why


def test_events_tell_of_each_worker_that_makes_room_once(start_method: str) -> None:
    """`max_tasks_per_child`: a recycling is no death, and says what it is."""
    seen: list[mpsched.PoolEvent] = []
    with pool(1, start_method, max_tasks_per_child=2) as ex:
        ex.events(seen.append)
        assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(6)] == [*range(6)]
        wait_until(lambda: len(of_kind(seen, "recycled")) == 3, "three recyclings")
        assert all("2 tasks (max_tasks_per_child)" in e.why for e in of_kind(seen, "recycled"))
        assert not of_kind(seen, "died")
        wait_until(lambda: of_kind(seen, "started"), "a new one")


def test_events_tell_of_children_that_cannot_travel_once_per_worker(tmp_path: Path) -> None:
    """Pinned: a thousand of them are one line."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2) as ex:
        ex.events(seen.append)
        assert ex.submit(calls.pin, 50).result(DEADLINE_S) == 50
        wait_until(lambda: of_kind(seen, "pinned"), "the event")
        assert ex.submit(calls.pin, 50).result(DEADLINE_S) == 50
    found = of_kind(seen, "pinned")
    assert len({event.worker for event in found}) == len(found)


def test_events_tell_of_blocked_tasks_without_a_spare(tmp_path: Path) -> None:
    """Two block, and one spare is all there is."""
    from mpsched._base.settings import Settings

    seen: list[mpsched.PoolEvent] = []
    with pool(2, settings=Settings(max_spares=1)) as ex:
        ex.events(seen.append)
        tasks = [
            ex.options(blocking=True).submit(calls.hold, str(tmp_path), str(n)) for n in range(2)
        ]
        wait_until(lambda: of_kind(seen, "uncompensated"), "the event")
        release(tmp_path, "0", "1")
        assert [task.result(DEADLINE_S) for task in tasks] == ["0", "1"]
    assert len(of_kind(seen, "uncompensated")) == 1


def test_events_tell_of_a_template_that_died(tmp_path: Path) -> None:
    """Before the deaths of its workers."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2) as ex:
        assert_full_width(ex, tmp_path)
        ex.events(seen.append)
        assert kill(template_of(ex))
        wait_until(lambda: len(of_kind(seen, "started")) == 2, "two new workers")
    assert kinds(seen) == ["template_died", "died", "died", "started", "started"]


def test_events_tell_of_starts_that_fail_and_of_the_pools_failure(tmp_path: Path) -> None:
    """An initializer that fails in a replacement is tried again, later each time, then no more."""
    seen: list[mpsched.PoolEvent] = []
    with pool(1, initializer=calls.fail_while_there, initargs=(str(tmp_path / "bad"),)) as ex:
        assert_full_width(ex, tmp_path)
        ex.events(seen.append)
        (tmp_path / "bad").touch()
        kill(pids(ex)[0])
        wait_until(lambda: ex.state == "failed", "the failure")
        assert ex.await_termination(DEADLINE_S)
    failures = of_kind(seen, "start_failed")
    assert [event.why.rsplit(" in ", 1)[1] for event in failures] == ["0.1 s", "0.2 s", "0.4 s"]
    assert all("a bad start" in event.why for event in failures)
    assert kinds(seen)[-1] == "failed"


def test_template_that_cannot_start_fails_the_pool_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A module that is not there will not be there the next time: one line, and no second try."""
    seen: list[mpsched.PoolEvent] = []
    with caplog.at_level(logging.INFO, "mpsched"), pool(2, preload=("nmupy",)) as ex:
        ex.events(seen.append)
        wait_until(lambda: ex.state == "failed", "the failure")
        with pytest.raises(mpsched.errors.PoolFailed, match="No module named 'nmupy'"):
            ex.submit(calls.identity, 1)
        assert ex.await_termination(DEADLINE_S)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "template process cannot start" in lines[0]


def test_initializer_that_fails_in_one_worker_does_not_fail_the_others(tmp_path: Path) -> None:
    """While another worker does the work, it is tried again for as long as it takes."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2, initializer=calls.fail_while_there, initargs=(str(tmp_path / "bad"),)) as ex:
        assert_full_width(ex, tmp_path)
        ex.events(seen.append)
        (tmp_path / "bad").touch()
        kill(pids(ex)[0])
        wait_until(lambda: len(of_kind(seen, "start_failed")) > 4, "more failures than tries")
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        (tmp_path / "bad").unlink()
        assert_full_width(ex, tmp_path)


def test_events_go_to_the_log_line_by_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a callback too; what nobody reads at that level is not written."""
    with caplog.at_level(logging.INFO, "mpsched"), pool(1) as ex:
        assert_full_width(ex, tmp_path)
        pid = pids(ex)[0]
        kill(pid)
        wait_until(lambda: "died" in caplog.text, "the line")
        assert_full_width(ex, tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"worker 0 (pid {pid}) died: killed by SIGKILL"]


def test_events_callback_runs_in_the_pools_thread_and_may_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is logged; the others are called, and the pool goes on."""
    threads: list[str] = []

    def bad(event: mpsched.PoolEvent) -> None:
        threads.append(threading.current_thread().name)
        raise SystemExit(str(event))

    seen: list[mpsched.PoolEvent] = []
    with pool(1) as ex:
        assert_full_width(ex, tmp_path)
        ex.events(bad)
        ex.events(seen.append)
        kill(pids(ex)[0])
        wait_until(lambda: of_kind(seen, "started"), "a replacement")
        assert_full_width(ex, tmp_path)
    assert set(threads) == {"mpsched-supervisor"}
    assert "a callback of events() raised" in caplog.text


def test_events_callback_may_use_the_pool(tmp_path: Path) -> None:
    """It submits and waits, in the thread that brings the result."""
    values: list[int] = []
    with pool(1) as ex:
        assert_full_width(ex, tmp_path)
        with ex.events(lambda _: values.append(ex.submit(calls.identity, 7).result(DEADLINE_S))):
            kill(pids(ex)[0])
            wait_until(lambda: len(values) == 2, "both events")
    assert values == [7, 7]


def test_events_subscription_ends_when_it_is_closed(tmp_path: Path) -> None:
    """By `close` or by leaving its block; twice is as once."""
    seen: list[mpsched.PoolEvent] = []
    also: list[mpsched.PoolEvent] = []
    with pool(1) as ex:
        assert_full_width(ex, tmp_path)
        with ex.events(seen.append) as subscription:
            pass
        subscription.close()
        ex.events(also.append)
        kill(pids(ex)[0])
        wait_until(lambda: of_kind(also, "started"), "a replacement")
    assert not seen


def test_events_refuse_what_cannot_be_called() -> None:
    """At once, with the value; also without workers, where only retries are told."""
    with pool(1) as ex, pytest.raises(TypeError, match="not 'log'"):
        ex.events("log")  # type: ignore[arg-type]
    seen: list[mpsched.PoolEvent] = []
    with mpsched.WorkStealingExecutor(0) as serial:
        serial.events(seen.append)
        view = serial.options(retries=1, retry_on=ValueError)
        assert isinstance(view.submit(calls.raise_lines).exception(), ValueError)
    assert kinds(seen) == ["retried"]
