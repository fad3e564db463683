"""Workers that hold too much memory: who makes room, who is ended, and what runs alone afterwards."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import psutil
import pytest

import mpsched
from mpsched import CancelResult
from mpsched._base.settings import Settings
from mpsched.errors import WorkerDied
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    assert_full_width,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)

MB = 1 << 20
SWOLLEN = 300  # far above what a worker has by itself, in MB
HARD = 150 * MB
OOM_SCORE = Path("/proc/self/oom_score_adj")


def limit(start_method: str) -> int:
    """Return a limit in bytes that a new worker keeps, and one with `SWOLLEN` more does not.

    One that is forked begins with all that this process has, after a long run of tests as much again.
    """
    return HARD + (psutil.Process().memory_info().rss if start_method == "fork" else 0)


def of_kind(seen: list[mpsched.PoolEvent], kind: str) -> list[mpsched.PoolEvent]:
    return [event for event in list(seen) if event.kind == kind]


def test_memory_worker_above_max_rss_makes_room_between_tasks(
    start_method: str, tmp_path: Path
) -> None:
    """It finishes what it runs; it is replaced once, which is no death, and nothing is lost."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2, start_method, max_rss=limit(start_method)) as ex:
        ex.events(seen.append)
        assert_full_width(ex, tmp_path)
        before = pids(ex)
        big = ex.submit(calls.swell, SWOLLEN, str(tmp_path), "big")
        pid = wait_for_holders(tmp_path, "big")["big"]
        assert not of_kind(seen, "recycled")
        release(tmp_path, "big")
        assert big.result(DEADLINE_S) == "big"
        kept = ex.run(calls.keep, SWOLLEN)
        wait_until(lambda: not alive(kept), "its end")
        assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(50)] == [*range(50)]
        assert_full_width(ex, tmp_path)
        after = pids(ex)
        assert ex.stats().deaths == 0
    recycled = of_kind(seen, "recycled")
    assert {event.pid for event in recycled} <= {kept, pid}
    assert len({event.pid for event in recycled}) == len(recycled) == len({*before} - {*after})
    assert re.search(r"more than max_rss=\d+ MB", recycled[-1].why)


def test_memory_idle_worker_above_max_rss_makes_room_too(tmp_path: Path) -> None:
    """Nobody has to submit anything for it."""
    with pool(1, max_rss=HARD) as ex:
        kept = ex.run(calls.keep, SWOLLEN)
        wait_until(lambda: pids(ex) != [kept] and alive(pids(ex)[0]), "another process")
        assert not alive(kept)


def test_memory_task_above_the_hard_limit_fails_alone(start_method: str, tmp_path: Path) -> None:
    """Its worker ends, its error says why; the other runs on, and what waits runs."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2, start_method, max_rss_hard=limit(start_method)) as ex:
        ex.events(seen.append)
        other = ex.submit(calls.hold, str(tmp_path), "other")
        found = wait_for_holders(tmp_path, "other")
        big = ex.options(name="big").submit(calls.swell, SWOLLEN, str(tmp_path), "big")
        queued = [ex.submit(calls.identity, n) for n in range(50)]
        error = big.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert (error.cause, error.signal) == ("memory", "SIGKILL")
        assert "'big' was ended: its worker held" in str(error)
        assert re.search(r"more than max_rss_hard=\d+ MB", str(error))
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        assert alive(found["other"])
        assert_full_width(ex, tmp_path)
    (died,) = of_kind(seen, "died")
    assert "max_rss_hard" in died.why


def test_memory_item_above_the_hard_limit_fails_alone(tmp_path: Path) -> None:
    """Of a map, only the item that ran: its neighbours have their values."""
    with pool(2, max_rss_hard=HARD) as ex:
        items = [(SWOLLEN if n == 7 else 1, str(tmp_path), str(n)) for n in range(20)]
        release(tmp_path, *(str(n) for n in range(20) if n != 7))
        outcomes: list[Any] = list(
            ex.starmap(calls.swell, items, chunksize=5, return_exceptions=True)
        )
        failed = [n for n, outcome in enumerate(outcomes) if outcome != str(n)]
        assert failed == [7]
        assert isinstance(outcomes[7], WorkerDied)
        assert outcomes[7].cause == "memory"


def test_memory_task_that_ended_a_worker_runs_again_with_no_other(tmp_path: Path) -> None:
    """Within its retries: nothing of the pool runs while its second attempt does."""
    log = tmp_path / "log"
    seen: list[mpsched.PoolEvent] = []
    with pool(3, max_rss_hard=HARD) as ex:
        ex.events(seen.append)
        big = ex.options(retries=1).submit(calls.swell_once, SWOLLEN, str(log), str(tmp_path))
        others = [ex.submit(calls.noted, str(log), "other", 0.02) for _ in range(60)]
        assert big.result(DEADLINE_S) == 2
        assert [other.result(DEADLINE_S) for other in others] == [0] * 60
        assert big.attempts == 2
        assert ex.stats().deaths == 1
        assert_full_width(ex, tmp_path)
    spans = [line.split() for line in log.read_text().splitlines()]
    (begun, ended) = next((int(a), int(b)) for name, a, b in spans if name == "alone")
    beside = [
        (a, b) for name, a, b in spans if name == "other" and int(a) < ended and int(b) > begun
    ]
    assert beside == []
    assert len(of_kind(seen, "alone")) == 1


def test_memory_kill_by_the_kernel_counts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ended it for memory: the next attempt is alone, and waits until the others have ended."""
    monkeypatch.setattr("mpsched._pool.oom.OomWatch.suspect", lambda _self, _status: "memory")
    with pool(2) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        big = ex.options(retries=3).submit(calls.hold_in_attempt, str(tmp_path))
        found = wait_for_holders(tmp_path, "other", "attempt1")
        assert kill(found["attempt1"])
        wait_until(lambda: ex._pool.supervisor.alone.waiting, "its wait")  # type: ignore[union-attr]
        waiting = ex.submit(calls.hold, str(tmp_path), "waiting")
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        wait_for_holders(tmp_path, "attempt2")
        assert not (tmp_path / "waiting.started").exists()
        release(tmp_path, "attempt2", "waiting")
        assert big.result(DEADLINE_S) == 2
        assert waiting.result(DEADLINE_S) == "waiting"


def test_memory_poison_is_named_after_its_retries(tmp_path: Path) -> None:
    """Alone each time, it still holds too much: it fails, and the pool goes on."""
    seen: list[mpsched.PoolEvent] = []
    with pool(2, max_rss_hard=HARD) as ex:
        ex.events(seen.append)
        view = ex.options(retries=2, name="glutton")
        big = view.submit(calls.swell, SWOLLEN, str(tmp_path), "big")
        error = big.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert (error.cause, error.attempt) == ("memory", 3)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        (poison,) = of_kind(seen, "poison")
        assert poison.name == "glutton"


def test_memory_one_that_never_ends_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `alone_s` the task runs beside what still does."""
    monkeypatch.setattr("mpsched._pool.oom.OomWatch.suspect", lambda _self, _status: "memory")
    with pool(2, settings=Settings(alone_s=0.2)) as ex:
        endless = ex.submit(calls.hold, str(tmp_path), "endless")
        big = ex.options(retries=1).submit(calls.hold_in_attempt, str(tmp_path))
        found = wait_for_holders(tmp_path, "endless", "attempt1")
        assert kill(found["attempt1"])
        wait_for_holders(tmp_path, "attempt2")
        release(tmp_path, "attempt2")
        assert big.result(DEADLINE_S) == 2
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        release(tmp_path, "endless")
        assert endless.result(DEADLINE_S) == "endless"


@pytest.mark.parametrize("how", ["cancel", "close", "shutdown"])
def test_memory_task_that_waits_to_run_alone_can_be_cancelled(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in no queue then, and is found all the same; the others go on."""
    monkeypatch.setattr("mpsched._pool.oom.OomWatch.suspect", lambda _self, _status: "memory")
    with pool(2) as ex:
        other = ex.submit(calls.hold, str(tmp_path), "other")
        big = ex.options(retries=1).submit(calls.hold_in_attempt, str(tmp_path))
        found = wait_for_holders(tmp_path, "other", "attempt1")
        waiting = ex.submit(calls.identity, 1)
        assert kill(found["attempt1"])
        wait_until(lambda: ex._pool.supervisor.alone.waiting, "its wait")  # type: ignore[union-attr]
        if how == "cancel":
            assert ex.cancel_running(big, "kill") is CancelResult.PREVENTED
            assert waiting.result(DEADLINE_S) == 1
        elif how == "close":
            report = ex.close(timeout=0.0, cancel_pending=True)
            assert report.cancelled == 2
            with pytest.raises(CancelledError):
                big.result(0)
        else:
            ex.shutdown(wait=False)
            release(tmp_path, "attempt2")
        release(tmp_path, "other")
        assert other.result(DEADLINE_S) == "other"
        if how == "shutdown":
            assert big.result(DEADLINE_S) == 2
            assert waiting.result(DEADLINE_S) == 1


def test_memory_thief_above_the_hard_limit_costs_its_child(tmp_path: Path) -> None:
    """Home calls the child again, within the retries of the root."""
    with pool(2, max_rss_hard=HARD) as ex:
        root = ex.options(retries=1).submit(calls.swelling_child, SWOLLEN, str(tmp_path))
        assert root.result(DEADLINE_S) == ("again", 1)
        assert ex.stats().deaths == 1
        assert_full_width(ex, tmp_path)


def test_memory_limit_below_an_empty_worker_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Replacing it would not help: a warning, and the tasks run, in a process each at the least."""
    with caplog.at_level(logging.WARNING, "mpsched"), pool(1, max_rss=1 << 20) as ex:
        wait_until(lambda: "raise the limit" in caplog.text, "the warning")
        assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(5)] == [*range(5)]
        time.sleep(0.3)
        assert ex.stats().deaths == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize("bad", [0, -1, True, 2.5, "1 GB", 500])
@pytest.mark.parametrize("name", ["max_rss", "max_rss_hard"])
def test_memory_limits_refuse_values_that_make_no_sense(name: str, bad: Any) -> None:
    """At construction, with the unit: 500 are bytes, and were meant as megabytes."""
    with pytest.raises(ValueError, match=f"{name} must be None or a number of bytes"):
        mpsched.WorkStealingExecutor(1, **{name: bad})
    with pytest.raises(ValueError, match="must not exceed max_rss_hard"):
        mpsched.WorkStealingExecutor(1, max_rss=3 * MB, max_rss_hard=2 * MB)


def test_memory_workers_go_before_the_program(start_method: str, tmp_path: Path) -> None:
    """The kernel ends a worker first, also a later one; what a task starts may have its own way."""
    if not os.access(OOM_SCORE, os.W_OK):
        pytest.skip("the kernel keeps no scores here")
    own = int(OOM_SCORE.read_text())
    with pool(2, start_method) as ex:
        assert_full_width(ex, tmp_path)
        workers = pids(ex)
        scores = [Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in workers]
        os.kill(workers[0], signal.SIGKILL)
        assert_full_width(ex, tmp_path)
        (new,) = {*pids(ex)} - {*workers}
        scores.append(Path(f"/proc/{new}/oom_score_adj").read_text())
        assert [int(score) for score in scores] == [min(own + 500, 1000)] * 3
        lowered = f"echo {own} > {OOM_SCORE} && cat {OOM_SCORE}"
        assert int(ex.run(subprocess.check_output, ["sh", "-c", lowered])) == own
    assert int(OOM_SCORE.read_text()) == own
