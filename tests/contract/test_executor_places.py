"""A pool in the wrong process: a fork, a worker that imports, a task of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import NestedSubmit
from tests.support import tasks
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.gates import Gate

HANG_S = 60.0


def in_a_fork(job: Callable[[], str]) -> str:
    """Return what `job()` returns in a forked child of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            try:
                text = job()
            except BaseException as problem:
                text = f"{type(problem).__name__}: {problem}"
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pool_in_a_forked_child_raises(pool: WorkStealingExecutor, gate: Gate) -> None:
    """Whatever the child does with it: no hang, no harm to the parent's pool."""
    lazy = pool.map(tasks.square, iter(range(1000)), buffersize=4)
    assert next(lazy) == 0
    waiting = pool.submit(gate.hold, "parent's")
    gate.wait_for(1)
    results = pool.map(gate.hold, ["a", "b"])

    def attempts() -> str:
        jobs: list[Callable[[], object]] = [
            lambda: pool.submit(tasks.square, 3),
            lambda: pool.map(tasks.square, [3]),
            lambda: pool.run(tasks.square, 3),
            lambda: waiting.result(20),
            lambda: waiting.exception(20),
            lambda: next(results),
            lambda: next(lazy),
            lambda: pool.cancel_running(waiting),
            lambda: pool.cancel_running(results, "kill"),
        ]
        found = ["cancelled"] if waiting.cancel() else []
        for job in jobs:
            try:
                job()
            except Exception as problem:
                found.append(type(problem).__name__)
            else:
                found.append("no error")
        return " ".join(found)

    assert in_a_fork(attempts) == " ".join(["ForkedPool"] * 9)
    gate.open()
    assert list(lazy) == [n * n for n in range(1, 1000)]
    assert waiting.result(HANG_S) == "parent's"
    assert list(results) == ["a", "b"]
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pool_in_a_forked_child_can_be_left(pool: WorkStealingExecutor) -> None:
    """Shutdown, close and finalizers do nothing there, and end nothing in the parent."""

    def leave() -> str:
        pool.shutdown()
        pool.shutdown(wait=False, cancel_futures=True)
        pool.close(timeout=0, kill_after=0)
        return f"left {pool.await_termination(1)}"

    assert in_a_fork(leave) == "left True"
    assert pool.state == "accepting"
    assert pool.submit(tasks.square, 3).result(HANG_S) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_pool_of_its_own_works_in_a_forked_child() -> None:
    """A program may fork first and make pools on both sides."""
    result = run_script(
        """
import mpsched, os
def square(n):
    return n * n
with mpsched.WorkStealingExecutor(2) as outer:
    assert outer.submit(square, 2).result() == 4
    child = os.fork()
    if not child:
        with mpsched.WorkStealingExecutor(2) as own:
            print(own.submit(square, 3).result(), mpsched.run(square, 5), flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(outer.submit(square, 4).result(), flush=True)
""",
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert (result.rc, result.out, result.err) == (0, "9 25\n0\n16\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_multiprocessing_fork_of_a_program_with_a_pool() -> None:
    """A child of multiprocessing ends normally although its parent had a pool."""
    result = run_script(
        """
import mpsched, multiprocessing
def square(n):
    return n * n
def child():
    try:
        ex.submit(square, 3)
    except mpsched.errors.ForkedPool:
        print("refused", flush=True)
ex = mpsched.WorkStealingExecutor(2)
print(ex.submit(square, 2).result(), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(process.exitcode, ex.submit(square, 3).result(), flush=True)
""",
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert (result.rc, result.out, result.err) == (0, "4\nrefused\n0 9\n", "")


def test_pool_at_the_top_of_a_module_that_workers_import_is_refused_once(
    start_method: str,
) -> None:
    """A clear error of the task, and never a chain of processes."""
    result = run_script(
        f"""
import sys, pathlib, tempfile, mpsched
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "makes_pool.py").write_text('''
import mpsched
def square(n):
    return n * n
ex = mpsched.WorkStealingExecutor(2, mp_context={start_method!r})
''')
    sys.path.insert(0, folder)
    # Imported here it is fine. A worker that was forked from this process would have it already.
    with mpsched.WorkStealingExecutor(2, mp_context={start_method!r}) as ex:
        ex.submit(abs, 1).result()
        import makes_pool
        for _ in range(2):
            error = ex.submit(makes_pool.square, 3).exception(60)
            print(type(error).__name__, "imports a module" in str(error) + str(error.__cause__))
        print(ex.submit(abs, -3).result(60), ex.stats().deaths)
    makes_pool.ex.shutdown()
"""
    )
    assert (result.rc, result.err) == (0, "")
    assert result.out == "DecodeError True\nDecodeError True\n3 0\n"


def test_submit_to_the_own_pool_in_a_task_is_a_spawn(pool: WorkStealingExecutor) -> None:
    """By whatever way it is handed over, and however the executor came there."""
    for fn in (nested_submit, nested_map, nested_run, nested_options):
        assert pool.submit(fn, pool).result(HANG_S) in (9, [9])
    assert pool.submit(lambda: pool.submit(tasks.square, 3).result()).result(HANG_S) == 9
    error = pool.submit(nested_priority, pool).exception(HANG_S)
    assert isinstance(error, TypeError)
    assert "priority" in str(error)


def test_submit_to_another_pool_in_a_task_is_refused(pool: WorkStealingExecutor) -> None:
    """Its workers are not this task's; the error says what to do."""
    with WorkStealingExecutor(1) as other:
        error = pool.submit(nested_submit, other).exception(HANG_S)
    assert isinstance(error, NestedSubmit)
    assert "own" in str(error)


def nested_submit(ex: WorkStealingExecutor) -> int:
    """Submit to the pool that this runs in. In a worker."""
    return ex.submit(tasks.square, 3).result()


def nested_map(ex: WorkStealingExecutor) -> list[int]:
    """Map on the pool that this runs in. In a worker."""
    return list(ex.map(tasks.square, [3]))


def nested_run(ex: WorkStealingExecutor) -> int:
    """Run on the pool that this runs in. In a worker."""
    return ex.run(tasks.square, 3)


def nested_options(ex: WorkStealingExecutor) -> int:
    """Use options of the pool that this runs in. In a worker."""
    return ex.options(name="nine").submit(tasks.square, 3).result()


def nested_priority(ex: WorkStealingExecutor) -> int:
    """Use an option that only a task of the program's can have. In a worker."""
    return ex.options(priority=1).submit(tasks.square, 3).result()


def test_a_pool_of_its_own_works_in_a_task(start_method: str) -> None:
    """An outer task makes an inner pool, uses it and ends it; also by the module's functions."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        futures = [ex.submit(inner_pool, start_method, n) for n in range(4)]
        assert [future.result(HANG_S) for future in futures] == [
            [n, n + 1, n + 2] for n in range(4)
        ]
        assert ex.stats().deaths == 0


def inner_pool(method: str, base: int) -> list[int]:
    """Use a pool of one's own. In a worker."""
    with WorkStealingExecutor(1, mp_context=method) as ex:
        return list(ex.map(tasks.add, range(3), [base] * 3))


def test_an_inner_pool_that_is_left_open_ends_with_its_worker(start_method: str) -> None:
    """No process outlives the outer pool; the leak fixture looks for it."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert ex.submit(open_pool, start_method).result(HANG_S) == 9


def open_pool(method: str) -> int:
    """Leave a pool open. In a worker."""
    global _kept
    _kept = WorkStealingExecutor(1, mp_context=method)
    return _kept.submit(tasks.square, 3).result()


_kept: WorkStealingExecutor | None = None


def test_subprocesses_of_tasks_work(pool: WorkStealingExecutor) -> None:
    """A task may run programs, with normal signals and streams."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    future = pool.submit(run_program, [sys.executable, "-c", code])
    assert future.result(HANG_S) == "True\n"


def run_program(command: list[str]) -> str:
    """Run a program. In a worker."""
    import subprocess

    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
