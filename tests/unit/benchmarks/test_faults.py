"""The suite of faults: what it reaches for, and how it counts."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from benchmarks import peers, suite_faults
from benchmarks.harness import Run
from benchmarks.suites import SUITES


def test_suite_faults_reaches_for_every_figure() -> None:
    """Recovery of idle and of busy workers, kills survived, limits."""
    targets = [target for one in SUITES["faults"].measures for target in one.targets]
    assert len(targets) == 4


def test_percentile_is_what_so_many_do_not_exceed() -> None:
    """The nearest rank, of any number of values."""
    assert suite_faults.percentile([*range(1, 201)], 99) == 198
    assert suite_faults.percentile([3.0], 99) == 3.0
    assert suite_faults.percentile([2.0, 1.0], 50) == 1.0


def test_pool_that_a_kill_ends_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so in its line of the table, and is no failed sample."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    system = peers.AtOnce(1)
    monkeypatch.setattr(system, "submit", broken)
    with pytest.raises(peers.Unfit, match="a killed worker ends it: RuntimeError"):
        suite_faults.next_pid(system)


def test_suite_faults_measures_a_pool() -> None:
    """A few kills of an idle and a busy worker: each brings a next result."""
    run = Run("mpsched", workers=1, quick=True)
    run.tasks = lambda wanted, rate=0.0: 3  # type: ignore[method-assign]
    try:
        assert all(taken > 0 for taken in suite_faults.recoveries(run, busy=False))
        assert all(taken > 0 for taken in suite_faults.recoveries(run, busy=True))
        assert suite_faults.survived(run) == 100
    finally:
        run.close()


def test_lost_task_whose_future_never_ends_makes_a_pool_unfit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That its waiting came to an end is not that it has failed."""
    monkeypatch.setattr(suite_faults, "LOST_S", 0.01)
    lost: Future[None] = Future()
    with pytest.raises(peers.Unfit, match="never ends"):
        suite_faults.has_failed(lost)
    lost.set_exception(TimeoutError("its worker was killed"))
    suite_faults.has_failed(lost)


def test_recoveries_of_a_slow_pool_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has an end before it counts as hanging; one kill is measured at least."""
    monkeypatch.setattr(suite_faults, "KILLS_S", 0.0)
    run = Run("mpsched", workers=1)
    try:
        assert len(suite_faults.recoveries(run, busy=False)) == 1
    finally:
        run.close()
