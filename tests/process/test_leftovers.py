"""What a task leaves behind: put back, or the worker makes room for a new one; no other task is hurt."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mpsched._worker.baseline import UNFIT
from mpsched.errors import WorkerDied
from tests.support import crash_calls, leftover_calls as calls
from tests.support.pools import DEADLINE_S, alive, kill, pids, pool, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import mpsched


def others_work(ex: mpsched.WorkStealingExecutor) -> None:
    """Assert that tasks of each kind go on."""
    futures = [ex.submit(crash_calls.identity, number) for number in range(20)]
    assert [future.result(DEADLINE_S) for future in futures] == list(range(20))
    assert list(ex.map(crash_calls.identity, range(50), timeout=DEADLINE_S)) == list(range(50))
    assert len(ex.submit(crash_calls.large, 1 << 20).result(DEADLINE_S)) == 1 << 20


@pytest.mark.parametrize(
    "change",
    [
        calls.change_directory,
        calls.change_variables,
        calls.remove_variables,
        calls.replace_variables,
        calls.lower_limit,
        calls.take_interrupt,
        calls.ignore_children,
        calls.ignore_end,
        calls.leave_alarm,
        calls.leave_bare_alarm,
        calls.stop_collecting,
        calls.never_collect,
        calls.hog_the_interpreter,
        calls.trace,
        calls.profile,
        calls.redirect,
        calls.redirect_badly,
    ],
)
def test_leftovers_are_put_back(
    change: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next task finds its worker, the same process, as the first one found it."""
    monkeypatch.setenv(calls.KEPT, "as it was")
    with pool(1) as ex:
        before, process = ex.submit(calls.look).result(DEADLINE_S), pids(ex)
        ex.submit(calls.for_a_while, change).result(DEADLINE_S)
        assert ex.submit(calls.look).result(DEADLINE_S) == before
        ex.submit(crash_calls.nap, 0.1).result(DEADLINE_S)
        others_work(ex)
        assert (pids(ex), ex.stats().deaths) == (process, 0)
    assert before["variable"] == "as it was"


@pytest.mark.parametrize("change", [calls.hold_signals, calls.leave_cpu_timer, calls.leave_wakeup])
def test_leftovers_are_put_back_after_a_while(change: Callable[[], None]) -> None:
    """What is looked at less often."""
    with pool(1) as ex:
        before = ex.submit(calls.look).result(DEADLINE_S)
        ex.submit(calls.for_a_while, change).result(DEADLINE_S)
        ex.submit(crash_calls.nap, 0.02).result(DEADLINE_S)
        assert ex.submit(calls.look).result(DEADLINE_S) == before
        assert ex.submit(calls.get_wakeup).result(DEADLINE_S) == -1


def test_leftovers_of_map_items_are_put_back() -> None:
    """Between two items, too, if they take a millisecond."""
    with pool(1) as ex:
        home = ex.submit(calls.directory).result(DEADLINE_S)
        item = partial(calls.change_directory_at, victim=3)
        assert set(ex.map(item, range(8), chunksize=8, timeout=DEADLINE_S)) == {home}
        assert ex.submit(calls.directory).result(DEADLINE_S) == home


def test_leftovers_new_variables_stay() -> None:
    """Modules set them when they are imported, and rely on them later."""
    with pool(1) as ex:
        ex.submit(calls.for_a_while, calls.add_variable).result(DEADLINE_S)
        assert ex.submit(calls.get_variable).result(DEADLINE_S) == "new"


def test_leftovers_of_an_initializer_stay() -> None:
    """What it changes is what tasks are brought back to."""
    with pool(1, initializer=calls.change_directory) as ex:
        assert ex.submit(calls.directory).result(DEADLINE_S) == "/"
        ex.submit(crash_calls.nap, 0.002).result(DEADLINE_S)
        assert ex.submit(calls.directory).result(DEADLINE_S) == "/"


@pytest.mark.parametrize(
    "spoil",
    [
        calls.alarms_for_ever,
        calls.interrupt_later,
        calls.close_descriptors,
        calls.close_output,
        calls.close_standard_descriptors,
    ],
)
def test_leftovers_that_make_a_worker_unfit_cost_no_task(spoil: Callable[[], int]) -> None:
    """It makes room for a new one, which is no death, or goes on; the task itself has its result."""
    with pool(1) as ex:
        first = ex.submit(calls.for_a_while, spoil).result(DEADLINE_S)
        if spoil is not calls.alarms_for_ever:  # which may be put back in time
            wait_until(lambda: pids(ex) not in ([first], [0]), "a new worker")
        others_work(ex)
        assert ex.stats().deaths == 0


def test_leftover_descriptors_are_not_taken_for_the_workers_own(tmp_path: Path) -> None:
    """Nothing is written to files that have the numbers of what a task has closed."""
    path = tmp_path / "file"
    with pool(2) as ex:
        spoiled = ex.submit(calls.replace_descriptors, str(path)).result(DEADLINE_S)
        wait_until(lambda: spoiled not in pids(ex), "a new worker")
        others_work(ex)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "leave",
    [
        partial(calls.leave_a_thread, 0.5),
        calls.exit_in_a_thread,
        calls.break_hooks,
        calls.wait_for_every_child,
        calls.few_descriptors,
        calls.be_nice,
        calls.be_strict,
    ],
)
def test_leftovers_that_stay_hurt_nobody(leave: Callable[[], int]) -> None:
    """The worker goes on with them."""
    with pool(1) as ex:
        process = ex.submit(calls.for_a_while, leave).result(DEADLINE_S)
        others_work(ex)
        assert (pids(ex), ex.stats().deaths) == ([process], 0)


def test_leftover_exit_functions_run_when_the_worker_leaves(
    start_method: str, tmp_path: Path
) -> None:
    """Also when one of them fails; and when it makes room after `max_tasks_per_child`."""
    left, early = tmp_path / "left", tmp_path / "early"
    with pool(1, start_method) as ex:
        ex.submit(calls.at_exit, str(left)).result(DEADLINE_S)
        assert not left.exists()
    assert left.read_text() == "left"
    with pool(1, start_method, max_tasks_per_child=1) as ex:
        ex.submit(calls.at_exit, str(early)).result(DEADLINE_S)
        wait_until(early.exists, "the exit function")
        others_work(ex)


@pytest.mark.parametrize("preload", [(), ("multiprocessing.util",)])
def test_leftover_daemonic_processes_end_with_their_worker(preload: tuple[str, ...]) -> None:
    """As in any program that uses `multiprocessing`."""
    with pool(1, preload=preload) as ex:
        child = ex.submit(calls.leave_a_child, 600.0, daemon=True).result(DEADLINE_S)
        assert alive(child)
    wait_until(lambda: not alive(child), "its end")


def test_leftover_output_is_not_lost_by_a_kill(capfd: pytest.CaptureFixture[str]) -> None:
    """A line of a task that has ended, and a word of one that ran for a while, are written."""
    with pool(1) as ex:
        futures = [ex.submit(calls.say, f"line {number}") for number in range(3)]
        victim = ex.submit(crash_calls.die, f"signal {signal.SIGKILL:d}")
        assert victim.exception(DEADLINE_S) is not None
        assert [future.result(DEADLINE_S) for future in futures] == [None] * 3
        ex.submit(calls.for_a_while, partial(calls.say, "a word", end="")).result(DEADLINE_S)
        victim = ex.submit(crash_calls.die, f"signal {signal.SIGKILL:d}")
        assert victim.exception(DEADLINE_S) is not None
    out = capfd.readouterr().out
    assert out == "line 0\nline 1\nline 2\na word"


def test_leftovers_do_not_reach_programs_of_tasks() -> None:
    """What a task starts has the signal actions that it would have if the program started it."""
    with pool(1) as ex:
        found = ex.submit(calls.children_actions).result(DEADLINE_S)
    assert found == calls.children_actions()


def test_leftover_exit_code_is_no_death_code() -> None:
    """It is none that Python or a shell gives a meaning to."""
    assert UNFIT not in {0, 1, 2, 120, 126, 127}
    assert 0 < UNFIT < 126


def test_leftover_worker_that_is_killed_while_it_leaves_is_replaced(tmp_path: Path) -> None:
    """A worker that waits in an exit function of a task's can be killed like any other."""
    folder = str(tmp_path)
    with pool(1, max_tasks_per_child=1) as ex:
        ex.submit(calls.hold_at_exit, folder, "leaving").result(DEADLINE_S)
        started = tmp_path / "leaving.started"
        wait_until(started.exists, "its exit function")
        assert kill(int(started.read_text()))
        others_work(ex)


def test_helper_answers_when_there_is_memory_again() -> None:
    """HELPER-3: what was asked of it once is tried until it is done."""
    with pool(1) as ex:
        assert ex.submit(calls.ring_helper, MemoryError, 3).result(DEADLINE_S) == 4
        others_work(ex)
        assert ex.stats().deaths == 0


def test_helper_that_fails_otherwise_ends_its_worker(capfd: pytest.CaptureFixture[str]) -> None:
    """It says why; the root that ran dies with it, and nothing hangs."""
    with pool(1) as ex:
        error = ex.submit(calls.ring_helper, ZeroDivisionError, 1).exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.exitcode == 1
        others_work(ex)
    assert "ZeroDivisionError: a test's" in capfd.readouterr().err


def test_task_that_takes_all_memory_hurts_no_other() -> None:
    """Tasks behind it run elsewhere, or when it has ended; nobody dies."""
    with pool(2) as ex:
        warm = [ex.submit(crash_calls.identity, number) for number in range(300)]
        assert sum(future.result(DEADLINE_S) for future in warm) == 44850
        greedy = ex.submit(calls.take_all_memory, 0.3)
        behind = [ex.submit(crash_calls.identity, number) for number in range(100)]
        assert [future.result(DEADLINE_S) for future in behind] == list(range(100))
        assert greedy.result(DEADLINE_S) == "freed"
        assert ex.stats().deaths == 0


def test_task_that_asks_for_too_much_memory_fails_alone() -> None:
    """Its error is its own; a smaller one in the same worker has its memory."""
    with pool(1) as ex:
        process = pids(ex)
        assert isinstance(ex.submit(calls.ask_for_too_much).exception(DEADLINE_S), MemoryError)
        assert len(ex.submit(crash_calls.large, 100 << 20).result(DEADLINE_S)) == 100 << 20
        assert pids(ex) == process


def test_leftover_threads_slow_spawns_only_while_they_live(tmp_path: Path) -> None:
    """Spawns and joins ask which thread they are in until a root begins that finds none."""
    with pool(1) as ex:
        for _ in range(3):
            assert ex.submit(calls.spawns_in_a_thread).result(DEADLINE_S) == (True, 12)
            assert ex.submit(calls.asks_for_threads).result(DEADLINE_S) == (False, 7)
        go = tmp_path / "go"
        ex.submit(calls.leave_a_thread_until, str(go)).result(DEADLINE_S)
        assert ex.submit(calls.asks_for_threads).result(DEADLINE_S) == (True, 7)
        go.touch()
        wait_until(
            lambda: ex.submit(calls.asks_for_threads).result(DEADLINE_S) == (False, 7), "its end"
        )
