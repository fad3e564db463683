"""Faults that users of other pools have met again and again: none of them is one here."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from mpsched.errors import RecursionTooDeep
from tests.support import crash_calls, fault_calls as calls
from tests.support.pools import DEADLINE_S, kill, pids, pool
from tests.support.scripts import run_script


def test_fault_idle_workers_killed_again_and_again_are_not_noticed() -> None:
    """Some or all of them; the next task has its value."""
    with pool(2) as ex:
        for number in range(20):
            assert ex.submit(calls.identity, number).result(DEADLINE_S) == number
            time.sleep(0.01)  # until they are idle; if one is not, its task is done all the same
            for pid in [pid for pid in pids(ex) if pid][: 1 + number % 2]:
                kill(pid)
            assert ex.submit(calls.identity, -number).result(DEADLINE_S) == -number


def test_fault_many_submits_from_several_threads_fill_nothing_up(tmp_path: Any) -> None:
    """However many wait while all workers are busy, from whichever threads."""
    folder = str(tmp_path)
    with pool(2) as ex:
        held = [ex.submit(crash_calls.hold, folder, name) for name in "ab"]
        futures: list[Any] = []

        def submit() -> None:
            futures.extend(ex.submit(calls.nothing) for _ in range(10_000))

        threads = [threading.Thread(target=submit) for _ in range(2)]
        for thread in threads:
            thread.start()
        mine = [ex.submit(calls.nothing) for _ in range(30_000)]
        for thread in threads:
            thread.join()
        for name in "ab":
            (tmp_path / f"{name}.go").touch()
        assert {future.result(DEADLINE_S) for future in mine + futures} == {None}
        assert [future.result(DEADLINE_S) for future in held] == ["a", "b"]
        assert len(futures) == 20_000


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_fault_waiting_for_tasks_in_tasks_never_deadlocks(workers: int) -> None:
    """On any number of workers, of which none is added."""
    with pool(workers) as ex:
        before = pids(ex)
        assert ex.submit(calls.fib, ex, 14).result(DEADLINE_S) == 377
        assert ex.submit(calls.chain, ex, 2_000).result(DEADLINE_S) == 2_000
        assert ex.submit(calls.even, ex, 300).result(DEADLINE_S)
        assert not ex.submit(calls.odd, ex, 300).result(DEADLINE_S)
        assert pids(ex) == before


def test_fault_endless_waiting_for_tasks_in_tasks_is_an_error() -> None:
    """The stack ends somewhere; the error says so, and the worker goes on."""
    with pool(1) as ex:
        error = ex.submit(calls.chain, ex, 1_000_000).exception(DEADLINE_S)
        assert isinstance(error, RecursionTooDeep)
        assert "frames left out>" in str(error.__cause__)
        assert ex.submit(calls.chain, ex, 10).result(DEADLINE_S) == 10
        assert ex.stats().deaths == 0


@pytest.mark.parametrize("name", calls.ENDINGS)
def test_fault_whatever_a_task_raises_is_its_error(name: str) -> None:
    """Also what is no Exception, and what means something to loops and generators."""
    with pool(1) as ex:
        process = ex.submit(crash_calls.pid).result(DEADLINE_S)
        error = ex.submit(calls.end_by, name).exception(DEADLINE_S)
        assert type(error) is calls.ENDINGS[name]
        assert ex.submit(crash_calls.pid).result(DEADLINE_S) == process


def test_fault_large_array_is_not_copied_for_its_readers() -> None:
    """Neither for each task nor for each worker; and nothing of it stays open."""
    array = np.ones(16 << 20)
    with pool(2) as ex:
        futures = [ex.submit(calls.sum_and_growth, array) for _ in range(6)]
        found = [future.result(DEADLINE_S) for future in futures]
        assert {total for total, _ in found} == {float(16 << 20)}
        # 128 MB, of which nobody has a copy.
        assert max(growth for _, growth in found) < 32 << 10


@pytest.mark.parametrize("seed", [11])
def test_fault_threads_that_submit_cancel_and_wait_at_random_all_end(seed: int) -> None:
    """Each future is final, with its own value; nobody waits for ever."""
    problems: list[BaseException] = []

    def act(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        open_ones: list[Any] = []
        try:
            for _ in range(600):
                what = dice.random()
                if what < 0.6 or not open_ones:
                    open_ones.append(ex.submit(calls.identity, number))
                    continue
                future = open_ones.pop(dice.randrange(len(open_ones)))
                if what < 0.8:
                    future.cancel()
                else:
                    assert future.result(DEADLINE_S) == number
            for future in open_ones:
                assert future.result(DEADLINE_S) == number
        except BaseException as problem:
            problems.append(problem)

    with pool(2) as ex:
        threads = [threading.Thread(target=act, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
    assert not problems


def test_fault_globals_of_a_program_are_seen_alike(start_method: str) -> None:
    """As they are at each submit, by every start method."""
    result = run_script(
        f"""
        import mpsched

        RATE = 1

        def rate():
            return RATE

        RATE = 2
        with mpsched.WorkStealingExecutor(1, mp_context="{start_method}") as ex:
            first = ex.submit(rate).result()
            RATE = 3
            print(first, ex.submit(rate).result())
        """
    )
    assert (result.rc, result.out, result.err) == (0, "2 3\n", "")
