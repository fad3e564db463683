"""Fault plans themselves: they strike whom they name, as often as they say, and end when they are left."""

from __future__ import annotations

import os

import pytest

from mpsched.errors import WorkerDied
from mpsched.testing import Fault, FaultPlan
from mpsched.testing.crashpoints import VARIABLE
from tests.support import crash_calls as calls
from tests.support.pools import DEADLINE_S, pool, wait_until
from tests.support.scripts import run_script


def test_fault_plan_strikes_once_whoever_comes_again() -> None:
    """A replacement that reaches the same point lives; with `times=3` three die."""
    for times in (1, 3):
        with FaultPlan(Fault("result.made", "kill", times=times)) as plan, pool(1) as ex:
            results = [ex.submit(calls.identity, n) for n in range(8)]
            dead = [n for n, future in enumerate(results) if future.exception(DEADLINE_S)]
            assert len(dead) == times
            assert [results[n].result() for n in range(8) if n not in dead] == [
                n for n in range(8) if n not in dead
            ]
        assert [strike[:5] for strike in plan.struck] == [
            ("result.made", "kill", "owner", 0, incarnation) for incarnation in range(times)
        ]


def test_fault_plan_counts_the_hits_of_a_process() -> None:
    """`hit=4`: the fourth root of the worker dies, and no other."""
    with FaultPlan(Fault("run.running", "kill", hit=4)) as plan, pool(1) as ex:
        futures = [ex.submit(calls.identity, n) for n in range(8)]
        errors = [future.exception(DEADLINE_S) for future in futures]
    assert [n for n, error in enumerate(errors) if isinstance(error, WorkerDied)] == [3]
    assert len(plan.struck) == 1


def test_fault_plan_strikes_whom_it_names() -> None:
    """By index and by incarnation of the worker: that one alone."""
    with FaultPlan(Fault("run.running", "kill", worker=1)) as plan, pool(2) as ex:
        futures = []
        while not plan.struck:
            futures += [ex.submit(calls.nap, 0.001) for _ in range(8)]
            futures[-1].exception(DEADLINE_S)
        errors = [future.exception(DEADLINE_S) for future in futures]
        assert sum(isinstance(error, WorkerDied) for error in errors) == 1
    assert [strike.worker for strike in plan.struck] == [1]
    with FaultPlan(Fault("run.running", "kill", incarnation=1)) as plan, pool(1) as ex:
        assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(5)] == [*range(5)]
        assert isinstance(ex.submit(calls.die, "_exit 3").exception(DEADLINE_S), WorkerDied)
        assert plan.struck == []
        assert isinstance(ex.submit(calls.identity, 1).exception(DEADLINE_S), WorkerDied)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
    assert [strike.incarnation for strike in plan.struck] == [1]


def test_fault_plan_wakes_what_it_has_stopped() -> None:
    """After its time; and when the plan is left, at once."""
    with FaultPlan(Fault("result.made", "stop", seconds=0.05)) as plan, pool(1) as ex:
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        assert len(plan.struck) == 1
    with pool(1) as idle:
        assert idle.submit(calls.identity, 1).result(DEADLINE_S) == 1
    plan = FaultPlan(Fault("result.made", "stop", seconds=3600.0))
    plan.__enter__()
    try:
        with pool(1) as ex:
            future = ex.submit(calls.identity, 2)
            wait_until(lambda: plan.struck, "the strike")
            assert not future.done()
            plan.__exit__(None, None, None)
            assert future.result(DEADLINE_S) == 2
    finally:
        plan.__exit__(None, None, None)


def test_fault_plan_that_is_over_strikes_nobody() -> None:
    """A pool that was made under it goes on without, replacements included."""
    plan = FaultPlan(Fault("result.made", "kill", hit=2, times=100))
    plan.__enter__()
    try:
        with pool(1) as ex:
            assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
            plan.__exit__(None, None, None)
            assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(9)] == [
                *range(9)
            ]
            assert isinstance(ex.submit(calls.die, "_exit 3").exception(DEADLINE_S), WorkerDied)
            assert [ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(9)] == [
                *range(9)
            ]
    finally:
        plan.__exit__(None, None, None)
    assert plan.struck == []


def test_fault_plan_notes_what_is_reached() -> None:
    """Without a fault it only looks; the variable is as before afterwards."""
    before = os.environ.get(VARIABLE)
    with FaultPlan() as plan, pool(1) as ex:
        assert os.environ[VARIABLE] == plan.environment()[VARIABLE]
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1
        assert ("result.write.words", "owner") in plan.reached
        with pytest.raises(RuntimeError, match="open already"), plan:
            pass
    assert os.environ.get(VARIABLE) == before
    assert plan.struck == []
    assert ("template.asked", "template") in plan.reached
    assert not {role for _, role in plan.reached} & {"caller", "supervisor"}


def fork_and_exit() -> int:
    """Fork a process that leaves its task as if it were the worker; return its exit code."""
    pid = os.fork()
    if not pid:
        raise SystemExit(5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fault_plan_leaves_forks_of_a_task_alone() -> None:
    """A process that a task has forked is nobody: it neither counts nor dies."""
    with FaultPlan(Fault("result.made", "kill", hit=2)) as plan, pool(1) as ex:
        assert ex.submit(fork_and_exit).result(DEADLINE_S) == 5
    assert plan.struck == []


def test_fault_plan_refuses_what_could_never_strike() -> None:
    """Unknown names are told with the nearest ones."""
    with pytest.raises(ValueError, match=r"'ring\.take\.dirt'; did you mean 'ring\.take\.dirty'"):
        Fault("ring.take.dirt", "kill")
    with pytest.raises(ValueError, match="no crash point"):
        Fault("nothing.*", "kill")
    with pytest.raises(ValueError, match="action='explode': it is one of kill, stop"):
        Fault("ring.*", "explode")
    with pytest.raises(ValueError, match="role='king': it is None or one of caller"):
        Fault("ring.*", "kill", role="king")
    with pytest.raises(ValueError, match="hit=0"):
        Fault("ring.*", "kill", hit=0)


def test_fault_plan_of_a_program_strikes_its_own_threads() -> None:
    """Started with the plan's variable, the program itself has the points; so has start method fork."""
    program = """
        import mpsched
        from mpsched.testing import FaultInjected

        with mpsched.WorkStealingExecutor(2, "fork") as ex:
            for error in (FaultInjected, KeyboardInterrupt):
                try:
                    ex.submit(abs, -1)
                except error as problem:
                    print(f"{type(problem).__name__}: {problem}")
            print(ex.submit(abs, -1).result(), end=" ")
            print(type(ex.submit(abs, -2).exception()).__name__)
    """
    faults = (
        Fault("submit.made", "raise"),
        Fault("submit.pickled", "interrupt", hit=2),
        Fault("result.made", "kill", role="owner", times=1, hit=2),
    )
    with FaultPlan(*faults) as plan:
        result = run_script(program, env=plan.environment())
    assert result.rc == 0, result.err
    assert result.out.splitlines()[:2] == [
        "FaultInjected: at crash point submit.made",
        "KeyboardInterrupt: at crash point submit.pickled",
    ]
    assert {strike.role for strike in plan.struck} >= {"caller"}
    assert {("leader.taken", "caller"), ("bury.entered", "supervisor")} & plan.reached
