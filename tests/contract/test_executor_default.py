"""`mpsched.run` and `mpsched.map`: on the open pool, else on a default one."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import os

import pytest

import mpsched
from tests.support import tasks
from tests.support.scripts import run_script

HANG_S = 60.0


def test_module_functions_use_the_open_pool(start_method: str) -> None:
    """Inside of a `with` block they run on its workers."""
    with mpsched.WorkStealingExecutor(1, mp_context=start_method) as ex:
        assert mpsched.run(tasks.pid) == ex.run(tasks.pid)
        assert set(mpsched.map(tasks.pid, range(20))) == {ex.run(tasks.pid)}
        assert mpsched.run(tasks.add, 1, right=2, scale=3) == 9


def test_module_functions_use_the_innermost_open_pool(start_method: str) -> None:
    """And the outer one again when the inner is left."""
    with mpsched.WorkStealingExecutor(1, mp_context=start_method) as outer:
        with mpsched.WorkStealingExecutor(1, mp_context=start_method) as inner:
            assert mpsched.run(tasks.pid) == inner.run(tasks.pid)
        assert mpsched.run(tasks.pid) == outer.run(tasks.pid)


def test_module_map_is_a_list_with_all_options(start_method: str) -> None:
    """The keywords are those of the method; errors are raised or returned."""
    with mpsched.WorkStealingExecutor(2, mp_context=start_method):
        assert mpsched.map(tasks.add, [1, 2], [3, 4]) == [4, 6]
        assert sorted(mpsched.map(tasks.square, range(50), ordered=False, chunksize=7)) == [
            n * n for n in range(50)
        ]
        with pytest.raises(ValueError, match="1 is odd"):
            mpsched.map(tasks.fail_odd, range(10))
        found = mpsched.map(tasks.fail_odd, range(4), return_exceptions=True)
        assert [type(one) for one in found] == [int, ValueError, int, ValueError]
        with pytest.raises(TypeError, match="colour"):
            mpsched.map(tasks.square, range(3), colour="red")


def test_open_pool_is_that_of_the_context(start_method: str) -> None:
    """Threads and coroutines see the pool that was open where they were started."""
    with mpsched.WorkStealingExecutor(1, mp_context=start_method) as ex:

        async def main() -> int:
            return await asyncio.to_thread(mpsched.run, tasks.pid)

        assert asyncio.run(main()) == ex.run(tasks.pid)


def test_default_pool_is_made_once_and_closed_at_exit() -> None:
    """Without any open pool; all threads share it."""
    result = run_script(
        """
import concurrent.futures, os, threading
import mpsched
def pid(*_):
    return os.getpid()
with concurrent.futures.ThreadPoolExecutor(4) as threads:
    pids = set(threads.map(lambda _: mpsched.run(pid), range(200)))
assert os.getpid() not in pids
width = len(os.sched_getaffinity(0))
assert len(pids) <= width, (pids, width)
workers = {worker.pid for worker in mpsched.executor._default.stats().workers}
assert pids | set(mpsched.map(pid, range(100))) <= workers, (pids, workers)
assert sum(t.name == "mpsched-supervisor" for t in threading.enumerate()) == 1
print("ok")
"""
    )
    assert (result.rc, result.out, result.err) == (0, "ok\n", "")


def test_default_pool_is_made_anew_in_a_forked_child() -> None:
    """The parent's one is of no use there."""
    result = run_script(
        """
import os
import mpsched
def square(n):
    return n * n
print(mpsched.run(square, 2), flush=True)
child = os.fork()
if not child:
    print(mpsched.run(square, 3), flush=True)
    mpsched.executor._default.shutdown()
    os._exit(0)
os.waitpid(child, 0)
print(mpsched.run(square, 4), flush=True)
""",
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert (result.rc, result.out, result.err) == (0, "4\n9\n16\n", "")


def test_pool_that_was_shut_down_is_open_no_more(start_method: str) -> None:
    """Inside of its own block too, the functions then use another one."""
    result = run_script(
        f"""
import mpsched
def square(n):
    return n * n
with mpsched.WorkStealingExecutor(1, mp_context={start_method!r}) as ex:
    ex.shutdown()
    print(mpsched.run(square, 3))
"""
    )
    assert (result.rc, result.out, result.err) == (0, "9\n", "")


def test_no_pool_is_open_in_a_plain_thread(start_method: str) -> None:
    """A thread has a context of its own; that of this process was never given a default pool."""
    with (
        mpsched.WorkStealingExecutor(1, mp_context=start_method) as ex,
        cf.ThreadPoolExecutor(1) as threads,
    ):
        import contextvars

        copied = contextvars.copy_context()
        assert threads.submit(copied.run, mpsched.run, tasks.pid).result(HANG_S) == ex.run(
            tasks.pid
        )
    assert os.getpid() != 0
