"""What a task finds in its worker: initializer, context, and the parent's surroundings."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import WorkStealingExecutor
from mpsched.errors import PoolFailed
from tests.contract.conftest import alive, settle
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.gates import Gate

HANG_S = 60.0


# --- initializer ----------------------------------------------------------------------------------


def test_initializer_runs_once_in_each_worker_before_its_tasks(
    start_method: str, gate: Gate
) -> None:
    """Globals that it sets are seen by every task."""
    with WorkStealingExecutor(
        2, mp_context=start_method, initializer=note_and_set, initargs=(gate, "ready")
    ) as ex:
        assert list(ex.map(tasks.get_global, range(300))) == ["ready"] * 300
    assert 1 <= len(gate.arrivals()) <= 2


def note_and_set(gate: Gate, value: str) -> None:
    """Set a global of an importable module. In a worker."""
    gate.arrive("init")
    tasks.set_global(value)


def test_initializer_by_value_shares_globals_with_tasks_by_value(start_method: str) -> None:
    """The pattern of the field: a lambda sets a global of `__main__`, tasks read it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(  # functions of a `__main__` that workers cannot import
        """
MODEL = None
def init(value):
    global MODEL
    MODEL = value
def use(number):
    return MODEL, number
""",
        space,
    )
    with WorkStealingExecutor(
        2, mp_context=start_method, initializer=space["init"], initargs=("loaded",)
    ) as ex:
        assert list(ex.map(space["use"], range(50))) == [("loaded", n) for n in range(50)]
        assert ex.submit(space["use"], 7).result(HANG_S) == ("loaded", 7)


def test_initializer_runs_again_in_a_replacement(start_method: str, gate: Gate) -> None:
    """A worker that takes a dead one's place is initialised too."""
    with WorkStealingExecutor(
        1, mp_context=start_method, initializer=note_and_set, initargs=(gate, "again")
    ) as ex:
        assert ex.submit(tasks.get_global).result(HANG_S) == "again"
        assert ex.submit(tasks.kill_process).exception(HANG_S) is not None
        assert ex.submit(tasks.get_global).result(HANG_S) == "again"
    assert gate.arrivals() == ["init", "init"]


def test_initializer_that_fails_fails_the_pool(
    start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was submitted and what is submitted raises PoolFailed with the initializer's error."""
    ex = WorkStealingExecutor(
        2, mp_context=start_method, initializer=tasks.fail, initargs=("no model",)
    )
    futures = [ex.submit(tasks.square, 3) for _ in range(20)] if ex.state == "accepting" else []
    wait_until(lambda: ex.state == "failed", "the pool's failure")
    errors = [future.exception(HANG_S) for future in futures]
    assert all(isinstance(error, PoolFailed) for error in errors)
    assert len({id(error) for error in errors}) == len(errors)
    with pytest.raises(PoolFailed, match="no model") as caught:
        ex.submit(tasks.square, 3)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(PoolFailed):
        ex.map(tasks.square, [1])
    ex.shutdown()
    assert ex.state == "failed"
    assert ex.await_termination(HANG_S)


def test_initializer_that_fails_ends_a_map(start_method: str) -> None:
    """Whoever reads results comes back."""
    ex = WorkStealingExecutor(2, mp_context=start_method, initializer=tasks.fail)
    try:
        with pytest.raises(PoolFailed):
            list(ex.map(tasks.square, range(100)))
    finally:
        ex.shutdown()


@pytest.mark.parametrize("bad", [3, "init", tasks.square(2)])
def test_initializer_must_be_callable(bad: Any) -> None:
    """A TypeError at construction."""
    with pytest.raises(TypeError, match="initializer"):
        WorkStealingExecutor(1, initializer=bad)


# --- context --------------------------------------------------------------------------------------


def test_current_task_is_none_outside_of_tasks() -> None:
    """In the parent there is neither task nor worker."""
    assert mpsched.current_task() is None
    assert mpsched.current_worker() is None


def test_current_task_and_worker_say_who_and_where(pool: WorkStealingExecutor) -> None:
    """Task ids are unique, worker indices are 0 to n-1, pids are those of `stats`."""
    found = [f.result() for f in [pool.submit(tasks.task_and_worker) for _ in range(200)]]
    assert len({task_id for task_id, *_ in found}) == 200
    assert {attempt for _, attempt, *_ in found} == {1}
    assert {index for _, _, index, _, _ in found} <= {0, 1}
    pids = {worker.index: worker.pid for worker in pool.stats().workers}
    assert all(pids[index] == pid for _, _, index, _, pid in found)


def test_worker_index_is_kept_by_a_replacement(start_method: str) -> None:
    """With another process and the next incarnation."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        before = ex.submit(tasks.task_and_worker).result(HANG_S)
        ex.submit(tasks.kill_process).exception(HANG_S)
        after = ex.submit(tasks.task_and_worker).result(HANG_S)
    assert (before[2], before[3]) == (0, 0)
    assert (after[2], after[3]) == (0, 1)
    assert before[4] != after[4]


def test_context_cannot_leave_its_worker(pool: WorkStealingExecutor) -> None:
    """Returning it fails with a message that says what to return."""
    error = pool.submit(mpsched.current_task).exception(HANG_S)
    assert "task_id" in f"{error} {error.__cause__}"  # type: ignore[union-attr]
    # A worker's context is plain data.
    worker: Any = pool.submit(mpsched.current_worker).result(HANG_S)
    assert worker.index in {0, 1}


# --- surroundings ---------------------------------------------------------------------------------


def test_workers_have_the_surroundings_of_the_construction(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Working directory, environment, sys.path, warning filters, log level, recursion limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPSCHED_TEST_SURROUNDINGS", "seen")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "extra")])
    limit = sys.getrecursionlimit()
    level = logging.getLogger().level
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a message of the test", UserWarning)
        sys.setrecursionlimit(limit + 123)
        logging.getLogger().setLevel(logging.CRITICAL)
        try:
            ex = WorkStealingExecutor(1, mp_context=start_method)
        finally:
            sys.setrecursionlimit(limit)
            logging.getLogger().setLevel(level)
    with ex:
        # What changes afterwards, the workers do not follow.
        monkeypatch.setenv("MPSCHED_TEST_SURROUNDINGS", "changed")
        monkeypatch.chdir(tmp_path.parent)
        found = ex.submit(surroundings).result(HANG_S)
    assert found["cwd"] == str(tmp_path)
    assert found["variable"] == "seen"
    assert str(tmp_path / "extra") in found["path"]
    assert found["warning"] == "UserWarning"
    assert found["level"] == logging.CRITICAL
    assert found["limit"] == limit + 123
    assert found["stdin"] == ""


def surroundings() -> dict[str, Any]:
    """Return what this process has. In a worker."""
    try:
        warnings.warn("a message of the test", UserWarning, stacklevel=1)
        warned = "none"
    except UserWarning:
        warned = "UserWarning"
    return {
        "cwd": os.getcwd(),
        "variable": os.environ.get("MPSCHED_TEST_SURROUNDINGS"),
        "path": list(sys.path),
        "warning": warned,
        "level": logging.getLogger().level,
        "limit": sys.getrecursionlimit(),
        "stdin": sys.stdin.read() if sys.stdin else "",
    }


def test_replacements_have_the_same_surroundings(start_method: str, tmp_path: Path) -> None:
    """Not those of the moment at which a worker died."""
    home = os.getcwd()
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert ex.submit(os.getcwd).result(HANG_S) == home
        os.chdir(tmp_path)
        try:
            ex.submit(tasks.kill_process).exception(HANG_S)
            assert ex.submit(os.getcwd).result(HANG_S) == home
        finally:
            os.chdir(home)


def test_what_a_task_changes_stays_in_its_run(start_method: str, tmp_path: Path) -> None:
    """The parent's directory is its own, and so is that of the next task."""
    home = os.getcwd()
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert ex.submit(enter, str(tmp_path)).result(HANG_S) == str(tmp_path)
        assert ex.submit(os.getcwd).result(HANG_S) == home
    assert os.getcwd() == home


def enter(folder: str) -> str:
    """Go there and stay for a while. In a worker."""
    os.chdir(folder)
    time.sleep(0.002)
    return os.getcwd()


def test_random_generators_differ_between_workers(start_method: str) -> None:
    """`random` and NumPy are seeded anew, although the parent has seeded them."""
    np = pytest.importorskip("numpy")
    random.seed(7)
    np.random.seed(7)
    with WorkStealingExecutor(3, mp_context=start_method) as ex:
        settle(ex)
        found: set[float] = set()
        for future in [ex.submit(draw_both) for _ in range(60)]:
            found.update(future.result(HANG_S))
    assert len(found) == 120


def draw_both() -> tuple[float, float]:
    """Draw from the global generators. In a worker."""
    import numpy as np

    return random.random(), float(np.random.random())


def test_blas_threads_are_one_per_worker_unless_set(
    start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own settings are kept."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert ex.submit(os.getenv, "OMP_NUM_THREADS").result(HANG_S) == "1"
        assert ex.submit(os.getenv, "OPENBLAS_NUM_THREADS").result(HANG_S) == "3"
    assert "OMP_NUM_THREADS" not in os.environ


def test_signals_in_a_worker_are_the_usual_ones(pool: WorkStealingExecutor) -> None:
    """SIGTERM ends it, SIGINT does nothing by itself and is not inherited as ignored."""
    assert pool.submit(handlers).result(HANG_S) == (True, True)


def test_signals_of_the_parent_are_left_alone_and_not_inherited(start_method: str) -> None:
    """Handlers, mask and wake-up descriptor are the program's own; a worker has none of them."""
    numbers = [number for number in signal.valid_signals() if number not in _UNCATCHABLE]
    ours = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
    kept = {number: signal.signal(number, _ours) for number in ours}
    try:
        before = [signal.getsignal(number) for number in numbers]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with WorkStealingExecutor(2, mp_context=start_method) as ex:
            found = ex.submit(inherited, ours).result(HANG_S)
            ex.close(timeout=0, cancel_pending=True, kill_after=0)
        assert [signal.getsignal(number) for number in numbers] == before
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        assert signal.set_wakeup_fd(-1) == -1
        assert found == [signal.SIG_DFL] * len(ours)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


_UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}


def _ours(_number: int, _frame: object) -> None:
    """Handle a signal; the test's program does."""


def inherited(numbers: tuple[signal.Signals, ...]) -> list[object]:
    """Return how signals are handled. In a worker."""
    return [signal.getsignal(number) for number in numbers]


def handlers() -> tuple[bool, bool]:
    """Return whether SIGTERM has its default, and SIGINT a Python function. In a worker."""
    interrupt = signal.getsignal(signal.SIGINT)
    return (
        signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        callable(interrupt) and not isinstance(interrupt, signal.Handlers),
    )


def test_preload_makes_modules_present_at_the_start(start_method: str) -> None:
    """A module that is named is there without the task importing it."""
    module = "wsgiref.validate"
    assert module not in sys.modules
    with WorkStealingExecutor(1, mp_context=start_method, preload=[module]) as ex:
        assert ex.submit(is_loaded, module).result(HANG_S)
    assert module not in sys.modules
    with pytest.raises(TypeError, match="preload"):
        WorkStealingExecutor(1, preload="json")  # type: ignore[arg-type]


def is_loaded(module: str) -> bool:
    """Whether a module is loaded here. In a worker."""
    return module in sys.modules


def test_preload_of_a_missing_module_is_told(start_method: str) -> None:
    """By name, and nothing hangs."""
    ex = None
    try:
        ex = WorkStealingExecutor(1, mp_context=start_method, preload=["no_such_module_here"])
        error: BaseException | None
        try:
            error = ex.submit(tasks.square, 3).exception(HANG_S)
        except PoolFailed as problem:
            error = problem
        assert "no_such_module_here" in str(error)
    except (ImportError, PoolFailed) as problem:
        assert "no_such_module_here" in str(problem)  # noqa: PT017 - either way will do
    finally:
        if ex is not None:
            ex.shutdown()


# --- replacement on purpose -----------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_max_tasks_per_child_replaces_workers(start_method: str, most: int) -> None:
    """No process runs more than so many tasks, none is lost, and it is no death."""
    with WorkStealingExecutor(2, mp_context=start_method, max_tasks_per_child=most) as ex:
        pids = [f.result(HANG_S) for f in [ex.submit(tasks.pid) for _ in range(8)]]
        assert max(pids.count(pid) for pid in set(pids)) <= most
        assert ex.stats().deaths == 0
        assert sorted(ex.map(tasks.identity, range(30), chunksize=10)) == list(range(30))


@pytest.mark.parametrize("bad", [0, -1, 1.5, "3", True])
def test_max_tasks_per_child_refuses_values_that_make_no_sense(bad: Any) -> None:
    """At construction."""
    with pytest.raises((TypeError, ValueError), match="max_tasks_per_child"):
        WorkStealingExecutor(1, max_tasks_per_child=bad)


# --- construction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 1.5, "2", True, 100_000])
def test_max_workers_refuses_values_that_make_no_sense(bad: Any) -> None:
    """At construction, with the value in the message."""
    with pytest.raises((TypeError, ValueError), match="max_workers"):
        WorkStealingExecutor(bad)


def test_construction_takes_the_arguments_of_the_standard_library(start_method: str) -> None:
    """Positions and names of ProcessPoolExecutor, and contexts of multiprocessing."""
    import multiprocessing

    context = multiprocessing.get_context(start_method)
    with WorkStealingExecutor(1, context, tasks.set_global, ("by position",)) as ex:
        assert ex.submit(tasks.get_global).result(HANG_S) == "by position"
    with pytest.raises(ValueError, match="mp_context"):
        WorkStealingExecutor(1, mp_context="threads")


def test_construction_makes_as_many_workers_as_asked(start_method: str) -> None:
    """Each with a process of its own."""
    with WorkStealingExecutor(5, mp_context=start_method) as ex:
        settle(ex)
        pids = [worker.pid for worker in ex.stats().workers]
        assert len(set(pids)) == 5
        assert [worker.index for worker in ex.stats().workers] == [0, 1, 2, 3, 4]
    assert not any(alive(pid) for pid in pids)
