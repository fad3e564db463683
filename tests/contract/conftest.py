"""Pools that the tests of a module share, one for each start method.

They are made before and ended after the look at what a test leaves behind, so a test sees its own
leaks and not the pool's processes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from mpsched import Scheduler, WorkStealingExecutor
from mpsched._pool.core import Pool
from tests.support.gates import Gate, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS = 2


@pytest.fixture(scope="module")
def start_method(request: pytest.FixtureRequest) -> str:
    """A way to start workers; wider than in the rest of the suite, so that pools can be shared."""
    method: str = request.param
    if method != "spawn" and not hasattr(os, "fork"):
        pytest.skip(f"no {method} on this system")
    return method


@pytest.fixture(scope="module")
def shared_pool(start_method: str) -> Iterator[WorkStealingExecutor]:
    """A pool of two workers for all tests of a module; they have all started."""
    ex = WorkStealingExecutor(WORKERS, mp_context=start_method)
    settle(ex)
    yield ex
    ex.shutdown()


@pytest.fixture
def pool(shared_pool: WorkStealingExecutor) -> Iterator[WorkStealingExecutor]:
    """The shared pool; the test must leave it working, with nothing open and all its workers."""
    yield shared_pool
    settle(shared_pool)


@pytest.fixture(scope="module")
def shared_default_pool(request: pytest.FixtureRequest) -> Iterator[WorkStealingExecutor]:
    """A pool that starts in the default way, or as `--start-method` says."""
    ex = WorkStealingExecutor(WORKERS, mp_context=request.config.getoption("--start-method"))
    settle(ex)
    yield ex
    ex.shutdown()


@pytest.fixture
def default_pool(shared_default_pool: WorkStealingExecutor) -> Iterator[WorkStealingExecutor]:
    """As `pool`, for what does not depend on how workers are started."""
    yield shared_default_pool
    settle(shared_default_pool)


@pytest.fixture
def sched(default_pool: WorkStealingExecutor) -> Iterator[Scheduler]:
    """A scheduler on the shared pool, which starts faster than one with workers of its own."""
    with Scheduler(executor=default_pool) as made:
        yield made


@pytest.fixture(scope="module")
def shared_scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """A scheduler with two workers of its own, for all tests of a module; they have started."""
    with Scheduler(WORKERS, mp_context=request.config.getoption("--start-method")) as made:
        assert made._desk.pool is not None
        settle(made._desk.pool)
        yield made


@pytest.fixture
def own(shared_scheduler: Scheduler) -> Iterator[Scheduler]:
    """The shared scheduler; the test must leave nothing scheduled."""
    yield shared_scheduler

    def idle() -> bool:
        metrics = shared_scheduler.metrics()
        return not (metrics.pending or metrics.dispatched or metrics.running)

    wait_until(idle, "a scheduler with nothing to do")
    pool = shared_scheduler._desk.pool
    assert pool is not None
    settle(pool)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate, opened at the end at the latest, so that a failed test hangs nobody."""
    made = Gate(tmp_path / "gate")
    yield made
    made.open()


def settle(ex: WorkStealingExecutor | Pool) -> None:
    """Wait until every worker of a pool lives and nothing is open."""

    def settled() -> bool:
        stats = ex.stats()
        return not stats.inflight and not stats.ready and all(alive(w.pid) for w in stats.workers)

    wait_until(settled, "a pool with all its workers and nothing to do")
    assert isinstance(ex, Pool) or ex.state == "accepting"


def alive(pid: int) -> bool:
    """Whether a process exists; our own dead children count until they are reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pid > 0
