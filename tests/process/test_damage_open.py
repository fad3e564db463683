"""Words of open work say something else, which looks right: found late, perhaps, and nothing hangs."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched._pool.core import Pool
from mpsched._tasks import state as st
from mpsched.errors import MpschedError, PoolFailed, WorkerDied
from tests.support import crash_calls, fork_deaths
from tests.support.damage import damaged
from tests.support.pools import DEADLINE_S, pool, release, wait_for_holders

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

WHAT = ("roots", "children")
BRANCHES = 6
NODES = 1 + BRANCHES + BRANCHES * BRANCHES
ROUNDS = 8
"""Of work, until three words were changed."""


def slow_tree(depth: int) -> int:
    """Count the nodes of a tree whose leaves take a while, so that others take some."""
    if not depth:
        time.sleep(0.001)
        return 1
    children = [mpsched.spawn(slow_tree, depth - 1) for _ in range(BRANCHES)]
    return 1 + sum(child.join() for child in children)


def handles_in_use(inner: Pool, what: str) -> list[int]:
    """Return the entries of what is open just now."""
    if what == "roots":
        open_ = list(inner.dispatcher.inflight.values())
        return [task.handle for task in open_ if task.handle >= 0]
    state, layout = inner.table.state, inner.layout
    return [handle for handle in range(layout.entries, layout.total) if state[handle]]


def strike(inner: Pool, what: str, dice: random.Random) -> bool:
    """Change a word of something open; False if nothing was."""
    # The pool has its memory as long as this section is not the supervisor's for good.
    if not inner.leader.section.try_enter():
        return False
    try:
        handles = handles_in_use(inner, what)
        if not handles:
            return False
        handle, table = dice.choice(handles), inner.table
        if dice.random() < 0.6:
            # A state that there is, of a worker that there is.
            table.state[handle] = dice.randrange(10) | dice.randrange(inner.width) << 8
        else:
            field = dice.choice([table.state, table.ident, table.cancel, table.started])
            field[handle] = damaged(field[handle], dice)
        return True
    finally:
        inner.leader.section.leave()


def damage_open_work(what: str, seed: int) -> list[str]:
    """Change words of what is open, a few times; return what the futures have failed with."""
    dice = random.Random(seed)
    futures: list[tuple[Future[Any], Any]] = []
    strikes = 0
    with pool(2) as ex:
        inner = ex._pool
        assert isinstance(inner, Pool)
        try:
            for _ in range(ROUNDS):
                batch: list[tuple[Future[Any], Any]] = [(ex.submit(slow_tree, 2), NODES)]
                batch += [(ex.submit(crash_calls.nap, 0.003), 0.003) for _ in range(2)]
                futures += batch
                while not (struck := strike(inner, what, dice)) and not batch[0][0].done():
                    time.sleep(0.001)
                strikes += struck
                # One after the other, so that the second worker has nothing of its own and steals.
                wait([future for future, _ in batch], DEADLINE_S)
                if strikes == 3:
                    break
        except MpschedError:
            assert ex.state == "failed", seed
        open_ = wait([future for future, _ in futures], DEADLINE_S).not_done
        assert not open_, f"{what}, seed {seed}: {len(open_)} futures hang, {ex.state}"
        sure = what == "roots"
        return [text for future, value in futures if (text := problem_of(future, value, sure))]


def problem_of(future: Future[Any], expected: Any, sure: bool) -> str:
    """Return what a future has failed with, or "".

    It has no other one's result. But a child that is said to have ended, and has not, may give its root
    anything; that one is not `sure`.
    """
    try:
        problem = future.exception(0)
    except CancelledError:
        return "CancelledError"
    if problem is None:
        assert future.result(0) == expected or not sure
        return ""
    assert isinstance(problem, MpschedError) or not sure, repr(problem)
    assert str(problem), repr(problem)
    return f"{type(problem).__name__}: {problem.__cause__ or problem}"


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("seed", [1, 2])
def test_damage_of_open_work_ends_in_errors_or_is_harmless(
    what: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each future has its own result, or an error that says something; the pool ends."""
    with caplog.at_level(logging.CRITICAL):
        print(damage_open_work(what, seed))


def test_damage_of_who_runs_a_root_is_found_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said to run in a worker that is never idle, and runs other roots all the time."""
    monkeypatch.setattr("mpsched._pool.audit._EVERY_S", 0.1)
    with pool(2) as ex:
        inner = ex._pool
        assert isinstance(inner, Pool)
        held = ex.submit(crash_calls.hold, str(tmp_path), "held")
        wait_for_holders(tmp_path, "held")
        (task,) = inner.dispatcher.inflight.values()
        state, worker = st.parts(inner.table.state[task.handle])
        assert state == st.RUNNING
        inner.table.state[task.handle] = st.word(st.RUNNING, 1 - worker)
        until = time.monotonic() + 3 * DEADLINE_S
        with contextlib.suppress(PoolFailed):
            while not held.done():
                assert time.monotonic() < until, "nobody has found it"
                wait([ex.submit(crash_calls.nap, 0.002) for _ in range(20)])
        assert "finished others since" in problem_of(held, None, sure=True)
        assert ex.state == "failed"


def test_damage_of_a_childs_state_ends_the_worker_that_waits_for_it(tmp_path: Path) -> None:
    """No state in which a published child can be: who joins it would wait for ever."""
    with pool(2) as ex:
        root = ex.submit(fork_deaths.one_child, str(tmp_path), "child")
        wait_for_holders(tmp_path, "home", "child")
        inner = ex._pool
        assert isinstance(inner, Pool)
        (entry,) = handles_in_use(inner, "children")
        inner.table.state[entry] = st.FREE
        error = root.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.exitcode == 1
        release(tmp_path, "child")
        assert ex.run(crash_calls.identity, 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("seed", range(100, 140))
def test_damage_of_open_work_never_hangs(
    what: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The same with many seeds."""
    with caplog.at_level(logging.CRITICAL):
        print(damage_open_work(what, seed))
