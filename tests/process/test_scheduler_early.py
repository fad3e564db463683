"""What lies with a worker before its time: whatever is wanted of it meanwhile, it is as if it lay at home.

The dispatcher wakes long before each time here, so that there is time to do something. On a machine that is
so slow that there is none, it is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CancelResult, Scheduler, WorkStealingExecutor
from mpsched._schedule import dispatcher
from mpsched.testing import ManualClock
from tests.support import tasks
from tests.support.gates import Gate, wait_until
from tests.support.pools import kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mpsched import TaskHandle

HANG_S = 60.0
LEAD_S = 0.6


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers wait for up to a second."""
    monkeypatch.setattr(dispatcher, "_LEAD_LEAST_S", LEAD_S)
    monkeypatch.setattr(dispatcher, "_LEAD_MOST_S", LEAD_S)


class Scene:
    """A scheduler, and one job that lies with a worker.

    Attributes:
        handle, at: of that job; it notes at the gate that it has come.
        late: there was no time.
    """

    def __init__(self, s: Scheduler, gate: Gate) -> None:
        self.s = s
        self.gate = gate
        self.at = s.now() + LEAD_S + 0.1
        self.handle = self.schedule("early", self.at)
        wait_until(lambda: self.lies() or s.now() >= self.at, "a worker to wait for it")
        self.late = not self.lies()

    def schedule(self, name: str, at: float, **options: Any) -> TaskHandle[Any]:
        return self.s.schedule(name, at, fn=self.gate.arrive, args=(name,), **options)

    def worker(self) -> int:
        """Return which worker it lies with; -1: none."""
        pool: Any = self.s._desk.pool
        run = self.handle.run
        handle = -1 if run is None else run._task.handle  # type: ignore[union-attr]
        words = pool.segment.words
        lying = [
            inbox.worker for inbox in pool.dispatcher.inboxes if words[inbox.early] == handle + 1
        ]
        return lying[0] if lying and handle >= 0 else -1

    def lies(self) -> bool:
        return self.worker() >= 0

    def in_time(self) -> bool:
        """Whether what was done came before its time."""
        self.late = self.late or self.s.now() >= self.at
        return not self.late

    def check(self, *names: str) -> None:
        """Assert that these have come, in this order, if there was time; none before its own."""
        for name in names:
            wait_until(lambda: self.s.history(name), name)  # noqa: B023
        if not self.late:
            assert self.gate.arrivals() == [*names]
        for run in self.s.history():
            assert run.started is None or run.lateness is None or run.lateness >= 0, run


def try_often(folder: Path, workers: int, act: Callable[[Scene], None], **options: Any) -> None:
    """Have `act` do something while a job lies with a worker; again if there was no time."""
    for turn in range(20):
        with Scheduler(workers, **options) as s:
            s.schedule("up", after=0, fn=tasks.nothing).result(HANG_S)
            scene = Scene(s, Gate(folder / str(turn)))
            if not scene.late:
                act(scene)
            if not scene.late:
                return
    raise AssertionError("there was never time")


def test_early_job_starts_at_its_time(tmp_path: Path) -> None:
    """It is with the pool before, and nothing has started."""

    def act(scene: Scene) -> None:
        status = scene.s.status("early")
        assert status is not None
        assert (status.state, status.claimed) == ("pending", True) or not scene.in_time()
        scene.handle.result(HANG_S)
        scene.check("early")

    try_often(tmp_path, 2, act)


def test_early_job_that_is_cancelled_never_starts(tmp_path: Path) -> None:
    """PREVENTED, for it cannot have started."""

    def act(scene: Scene) -> None:
        answer = scene.s.cancel("early")
        if scene.in_time():
            assert answer is CancelResult.PREVENTED
            assert scene.handle.cancelled()
        scene.schedule("next", scene.at)
        scene.check("next")

    try_often(tmp_path, 1, act)


def test_early_job_that_is_replaced_never_starts(tmp_path: Path) -> None:
    """The new version does, once."""

    def act(scene: Scene) -> None:
        scene.s.schedule("early", scene.at, fn=scene.gate.arrive, args=("new",))
        if scene.in_time():
            assert scene.handle.cancelled()
        wait_until(lambda: scene.s.status("early").outcome == "completed", "its end")  # type: ignore[union-attr]
        assert scene.gate.arrivals() == ["new"] or scene.late

    try_often(tmp_path, 1, act)


def test_early_job_that_is_moved_starts_then(tmp_path: Path) -> None:
    """The same version, later."""

    def act(scene: Scene) -> None:
        moved = scene.s.reschedule("early", scene.at + 0.2)
        if scene.in_time():
            assert moved
        scene.handle.result(HANG_S)
        (run,) = scene.s.history("early")
        assert run.started is not None
        assert run.started >= scene.at + 0.2 or scene.late

    try_often(tmp_path, 1, act)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("what", ["now", "earlier", "of higher priority"])
def test_early_job_gives_way_to_what_comes_before_it(
    tmp_path: Path, what: str, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one worker that starts first, also where windows are long."""
    if short:
        monkeypatch.setattr("mpsched._pool.dispatch.Dispatcher.window", lambda _self: 16)

    def act(scene: Scene) -> None:
        at = {"now": scene.s.now(), "earlier": scene.at - 0.2}.get(what, scene.at)
        scene.schedule("first", at, priority=int(what == "of higher priority"))
        wait_until(lambda: not scene.lies(), "it to give way")
        scene.late = scene.late or (what != "now" and scene.s.now() >= at)
        scene.in_time()
        scene.check("first", "early")

    try_often(tmp_path, 1, act)


def test_early_job_stays_where_another_worker_is_free(tmp_path: Path) -> None:
    """What is due goes there."""

    def act(scene: Scene) -> None:
        worker = scene.worker()
        scene.schedule("now", scene.s.now()).result(HANG_S)
        now = scene.worker()
        if scene.in_time():
            assert now == worker
        scene.check("now", "early")

    try_often(tmp_path, 2, act)


def test_early_job_whose_worker_is_killed_starts_elsewhere(tmp_path: Path) -> None:
    """As the first attempt, since it had not started; not before its time, and once."""

    def act(scene: Scene) -> None:
        pool: Any = scene.s._desk.pool
        worker = scene.worker()
        if worker >= 0:
            kill(pool.supervisor.pid_of(worker))
        scene.handle.result(HANG_S)
        (run,) = scene.s.history("early")
        assert run.attempt == 1
        scene.check("early")

    try_often(tmp_path, 2, act)


def test_early_job_is_run_by_a_close(tmp_path: Path) -> None:
    """It is claimed, and comes to its end at its time."""

    def act(scene: Scene) -> None:
        scene.s.close()
        assert scene.handle.result(0) is None
        scene.check("early")

    try_often(tmp_path, 1, act)


def test_early_job_ends_with_a_close_that_kills(tmp_path: Path) -> None:
    """It is taken back, or its worker ended; its handle is final."""

    def act(scene: Scene) -> None:
        scene.s.close(timeout=0, kill_after=0)
        assert scene.handle.done()
        if scene.in_time():
            assert scene.handle.cancelled()

    try_often(tmp_path, 1, act)


def test_early_jobs_are_those_of_a_pool_of_its_own_on_the_real_clock() -> None:
    """A given executor has an order of its own; a clock that is moved by hand has no moment before."""
    with WorkStealingExecutor(1) as ex, Scheduler(executor=ex) as s:
        s.schedule(1, after=0.05, fn=tasks.nothing).result(HANG_S)
        assert not s._desk.pool.dispatcher.early  # type: ignore[union-attr]
    clock = ManualClock()
    with Scheduler(1, clock=clock) as s:
        handle = s.schedule(1, after=10.0, fn=tasks.nothing)
        clock.advance(9.9)
        assert not s._desk.pool.dispatcher.early  # type: ignore[union-attr]
        clock.advance(0.2)
        handle.result(HANG_S)
        assert not s._desk.pool.dispatcher.early  # type: ignore[union-attr]
