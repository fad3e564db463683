"""`close`: its bound holds whatever the tasks do, and its report says what became of each."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched.errors import WorkerDied
from tests.support import crash_calls as calls, fork_deaths
from tests.support.pools import (
    DEADLINE_S,
    alive,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOUND_S = 0.2
"""What the tests give as `timeout` and as `kill_after`."""
MOST_S = 30.0
"""Only a bound that does not hold takes so long."""


@pytest.fixture
def two() -> Iterator[mpsched.WorkStealingExecutor]:
    """A pool of two workers, which the test closes."""
    ex = mpsched.WorkStealingExecutor(2)
    yield ex
    ex.close(timeout=0, cancel_pending=True, kill_after=0)


def test_close_names_each_task_once(two: mpsched.WorkStealingExecutor, tmp_path: Path) -> None:
    """What finished by itself, heeded its signal, never started, was ended."""
    rude = two.options(name="rude").submit(calls.stubborn, str(tmp_path), "rude")
    polite = two.options(name="polite").submit(calls.until_asked, str(tmp_path), "polite")
    wait_for_holders(tmp_path, "rude", "polite")
    waiting = [two.options(name=f"w{n}").submit(calls.identity, n) for n in range(30)]
    # (The polite one has to get a core before it is ended, too.)
    report = two.close(timeout=BOUND_S, kill_after=20 * BOUND_S)
    assert report.seconds < MOST_S
    assert polite.result(0) == "asked"
    error = rude.exception(0)
    assert isinstance(error, WorkerDied)
    assert error.cause == "close"
    assert report.killed == (f"task {rude._task.id} 'rude'",)
    assert report.running == ()
    finished = [polite, *(future for future in waiting if not future.cancelled())]
    assert sorted(report.finished_tasks) == sorted(one._task.describe() for one in finished)
    cancelled = [future for future in waiting if future.cancelled()]
    assert sorted(report.cancelled_tasks) == sorted(one._task.describe() for one in cancelled)
    assert (report.finished, report.cancelled) == (len(finished), len(cancelled))
    assert not report.complete


def test_close_without_killing_says_what_runs_and_can_be_repeated(
    two: mpsched.WorkStealingExecutor, tmp_path: Path
) -> None:
    """It returns though a task runs on; another close ends it."""
    rude = two.options(name="rude").submit(calls.stubborn, str(tmp_path), "rude")
    pid = wait_for_holders(tmp_path, "rude")["rude"]
    report = two.close(timeout=BOUND_S)
    assert report.seconds < MOST_S
    assert report.running == (f"task {rude._task.id} 'rude'",)
    assert two.state == "draining"
    assert not rude.done()
    assert alive(pid)
    report = two.close(timeout=0, kill_after=0)
    assert report.killed == (f"task {rude._task.id} 'rude'",)
    assert two.state == "terminated"
    assert not alive(pid)


@pytest.mark.parametrize("number", [signal.SIGSTOP, None], ids=["stopped", "running"])
def test_close_holds_its_bound_with_claimed_tasks_behind_a_hog(
    two: mpsched.WorkStealingExecutor, tmp_path: Path, number: int | None
) -> None:
    """Nobody answers for what it has claimed; each of them would be waited for in turn."""
    hogs = [two.submit(calls.hold, str(tmp_path), str(n)) for n in range(2)]
    # Quick ones are claimed many at a time.
    quick = [two.submit(calls.identity, n) for n in range(2000)]
    wait_for_holders(tmp_path, "0", "1")
    if number is not None:
        for pid in pids(two):
            kill(pid, number)
    report = two.close(timeout=BOUND_S, kill_after=BOUND_S)
    assert report.seconds < MOST_S
    assert two.state == "terminated"
    assert all(future.done() for future in [*hogs, *quick])
    assert len(report.killed) == 2
    assert report.finished + report.cancelled == 2000


def test_close_holds_its_bound_while_somebody_pickles(tmp_path: Path) -> None:
    """An item of a map that takes its time, in the dispatcher's section; it comes back to an ended pool."""
    ex = mpsched.WorkStealingExecutor(2)

    def pickle_slowly() -> None:
        with pytest.raises(mpsched.errors.SchedulerClosed):
            ex.map(calls.identity, [calls.SlowItem(str(tmp_path))])

    mapping = threading.Thread(target=pickle_slowly, daemon=True)
    mapping.start()
    calls.wait_for_file(tmp_path / "pickling.started")
    report = ex.close(timeout=BOUND_S, kill_after=BOUND_S)
    assert report.seconds < MOST_S
    assert report.cancelled_tasks == ("a map of 1 items",)
    assert ex.state == "terminated"
    assert mapping.is_alive()
    release(tmp_path, "pickling")
    mapping.join(DEADLINE_S)
    assert not mapping.is_alive()


def test_close_gives_everything_back_after_an_exception_in_a_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C between taking a section and the `try` after it, when the end has tidied up already."""
    with pool(1) as ex:
        inner: Any = ex._pool
        enter_for_good = inner.supervisor._enter_for_good
        entered: list[bool] = []

        def thrown_out() -> None:
            assert inner.dispatcher.section.try_enter()
            raise KeyboardInterrupt

        def enter() -> bool:
            with pytest.raises(KeyboardInterrupt):
                thrown_out()
            entered.append(enter_for_good())
            return entered[-1]

        monkeypatch.setattr(inner.supervisor, "_enter_for_good", enter)
    assert entered == [True]


def test_close_ends_a_map_item_by_item(two: mpsched.WorkStealingExecutor, tmp_path: Path) -> None:
    """What came counts; the items that ran were ended; the others never started."""
    release(tmp_path, "0", "1")
    items = [(str(tmp_path), str(n)) for n in range(40)]
    view = two.options(name="long")
    results = view.starmap(calls.hold, items, chunksize=5, return_exceptions=True)
    wait_for_holders(tmp_path, "2", "5")
    report = two.close(timeout=BOUND_S, kill_after=BOUND_S)
    assert report.killed == ("a map 'long' of 40 items",)
    outcomes: list[Any] = list(results)
    assert outcomes[:2] == ["0", "1"]
    ended = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, WorkerDied)]
    assert ended == [2, 5]
    rest = [outcome for n, outcome in enumerate(outcomes) if n > 1 and n not in ended]
    assert all(isinstance(outcome, CancelledError) for outcome in rest)
    assert len(outcomes) == 40


def test_close_lets_items_heed_their_signal(
    two: mpsched.WorkStealingExecutor, tmp_path: Path
) -> None:
    """The running items of a map return, nothing else of it starts: it was cut off."""
    items = [(str(tmp_path), str(n)) for n in range(40)]
    results = two.starmap(calls.until_asked_or_there, items, return_exceptions=True)
    wait_for_holders(tmp_path, "0")
    report = two.close(timeout=BOUND_S, kill_after=DEADLINE_S)
    assert report.cancelled_tasks == ("a map of 40 items",)
    assert report.killed == ()
    outcomes: list[Any] = list(results)
    assert outcomes[0] == "asked"
    assert {type(outcome) for outcome in outcomes} == {str, CancelledError}


def test_close_counts_a_map_that_finishes(two: mpsched.WorkStealingExecutor) -> None:
    """Once, whatever its pieces."""
    results = two.map(calls.nap, [0.01] * 20)
    report = two.close()
    assert report.complete
    assert report.finished_tasks == ("a map of 20 items",)
    assert list(results) == [0.01] * 20


def test_close_ends_a_tree(two: mpsched.WorkStealingExecutor, tmp_path: Path) -> None:
    """Home and thief of one root: one task was ended."""
    root = two.options(name="tree").submit(fork_deaths.holding_both, str(tmp_path))
    found = wait_for_holders(tmp_path, "child", "home")
    report = two.close(timeout=0, kill_after=BOUND_S)
    assert report.killed == (f"task {root._task.id} 'tree'",)
    assert not any(map(alive, found.values()))


def test_close_holds_its_bound_while_workers_start(tmp_path: Path) -> None:
    """An initializer that never ends."""
    ex = mpsched.WorkStealingExecutor(2, initializer=time.sleep, initargs=(600,))
    futures = [ex.submit(calls.identity, n) for n in range(10)]
    report = ex.close(timeout=BOUND_S, kill_after=BOUND_S)
    assert report.seconds < MOST_S
    assert ex.state == "terminated"
    assert report.cancelled == 10
    assert all(future.done() for future in futures)


def test_close_from_two_threads_ends_once(
    two: mpsched.WorkStealingExecutor, tmp_path: Path
) -> None:
    """Both return, and nothing is left."""
    two.submit(calls.stubborn, str(tmp_path), "rude")
    wait_for_holders(tmp_path, "rude")
    reports: list[mpsched.CloseReport] = []

    def close() -> None:
        reports.append(two.close(timeout=BOUND_S, kill_after=BOUND_S))

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(reports) == 2
    assert two.state == "terminated"
    wait_until(lambda: not any(map(alive, pids(two))), "the end of the workers")
