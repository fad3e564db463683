"""Killing the worker of one root, and nothing that runs after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mpsched._pool.limits import Limits
from mpsched._pool.options import Options
from mpsched._pool.trees import Trees
from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged
from mpsched._tasks import state as st, table as tab
from mpsched._worker import deliver
from mpsched._worker.run import Runner
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable


class StandsError(Exception):
    """The worker waits to be killed, and starts nothing any more."""


class Limited:
    """A worker with one claimed root that has a time limit.

    Attributes:
        kills: workers that the parent has decided to kill.
    """

    def __init__(self, *args: Any) -> None:
        self.pool = QuietPool()
        self.kills: list[int] = []
        self.pool.supervisor.kill = lambda worker, *_: self.kills.append(worker)
        cast("Any", self.pool).revoker = SimpleNamespace(ask=lambda _task: True)
        self.trees = Trees(self.pool.as_pool)
        self.limits = Limits(self.pool.as_pool, self.trees)
        self.task = self.pool.task(abs, *args)
        assert self.task.future is not None
        self.future = self.task.future
        self.task.options = Options(timeout=1e-9)
        self.task.meta |= tab.FLAG_TIMED
        self.pool.submit(self.task)
        self.pool.dispatcher.pump()
        self.index = self.pool.table.state[self.task.handle] >> 8
        self.worker = self.pool.workers[self.index]
        assert self.worker.find_work()
        self.runner = Runner(self.worker, 0)

    def run(self) -> bool:
        """Run the root; False if the worker stands afterwards."""
        try:
            self.runner.run(self.worker.local.popleft())
        except StandsError:
            return False
        return True

    def look(self) -> None:
        """The supervisor's look at the limit, which is over."""
        self.limits._look(self.task, 1, 1e18)

    def condemned(self) -> bool:
        return bool(self.pool.segment.words[self.pool.layout.block(self.index) + lay.B_KILL])

    def close(self) -> None:
        self.limits.__dict__.clear()
        self.trees.__dict__.clear()
        self.pool.close()


@pytest.fixture(autouse=True)
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker that waits to be killed say so."""

    def stand(_seconds: float) -> None:
        raise StandsError

    monkeypatch.setattr("mpsched._worker.run.time.sleep", stand)


FUNCTIONS = [Runner._run_other, Runner._wait_for_its_end, deliver.value]


@pytest.mark.parametrize("args", [(-5,), ("not a number",), ()], ids=["value", "error", "call"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_limits_worker_that_is_killed_for_a_root_starts_nothing_after_it(
    function: Callable[..., object], args: tuple[Any, ...]
) -> None:
    """Whenever the parent decides to kill, the worker is in that root, or stands behind it."""
    probe = Limited(*args)
    lines = lines_of(function, probe.run)
    probe.close()
    decided = set()
    for line in range(lines):
        limited = Limited(*args)
        with before_line(function, line, limited.look):
            went_on = limited.run()
        assert not (limited.kills and went_on), f"before line {line}"
        decided.add(bool(limited.kills))
        if not limited.kills:
            # It was over: its result counts, and the worker may go on.
            limited.pool.leader.drain()
            limited.look()
            assert limited.future.done()
            assert not limited.condemned()
        limited.close()
    assert function is not Runner._run_other or decided == {True, False}


def test_limits_worker_with_unread_results_is_not_killed_yet() -> None:
    """The record of the end may be among them; whoever leads is woken to read it."""
    limited = Limited(-5)
    assert limited.run()
    limited.look()
    assert not limited.kills
    assert limited.condemned()
    assert limited.pool.leader_bell.wait(0)
    limited.pool.leader.drain()
    limited.look()
    assert not limited.condemned()
    assert limited.future.result(0) == 5
    limited.close()


def test_limits_entry_that_another_task_has_now_is_not_killed_for() -> None:
    """A look that is late finds another run in the entry: nobody is killed."""
    limited = Limited(-5)
    handle = limited.task.handle
    assert limited.run()
    limited.pool.leader.drain()
    limited.pool.entries.write(handle, limited.pool.task(), st.word(st.QUEUED, limited.index))
    for state in (st.CLAIMED, st.RUNNING):
        limited.pool.table.state[handle] = st.word(state, limited.index)
    limited.limits._kill(limited.task, handle, 0.0)
    assert not limited.kills
    limited.look()
    assert not limited.condemned()
    limited.close()


def test_limits_of_a_task_that_starts_in_the_future_are_damaged() -> None:
    """Its limit would never come."""
    limited = Limited(-5)
    table, handle = limited.pool.table, limited.task.handle
    table.state[handle] = st.word(st.RUNNING, limited.index)
    table.started[handle] = 1 << 62
    with pytest.raises(Damaged, match="will have started"):
        limited.look()
    limited.close()
