"""Loops of `mpsched.parallel` on real workers: who runs what, and how they stop."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mpsched
from mpsched import WorkStealingExecutor
from tests.contract.conftest import settle
from tests.support import fork_calls as calls
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from collections.abc import Iterator

HANG_S = 60.0


@pytest.fixture(scope="module")
def shared_four() -> Iterator[WorkStealingExecutor]:
    """A pool of four workers, which have all started; no `with` block, which would be open here."""
    ex = WorkStealingExecutor(4)
    settle(ex)
    yield ex
    ex.shutdown()


@pytest.fixture
def four(shared_four: WorkStealingExecutor) -> Iterator[WorkStealingExecutor]:
    """The pool; the test must leave it working, with nothing open."""
    yield shared_four
    settle(shared_four)


@pytest.mark.parametrize("grain", [None, 1, 3])
def test_loop_runs_each_item_once_whoever_takes_it(
    four: WorkStealingExecutor, grain: int | None
) -> None:
    """Parts are stolen, and parts of parts."""
    before = four.stats().children_run
    until = time.monotonic() + HANG_S
    while four.stats().children_run == before:  # the others may be busy with something else
        assert time.monotonic() < until, "nobody steals"
        table = mpsched.shared_array(60, "u1")
        four.submit(calls.for_each_mark, table, 0.002, grain).result(HANG_S)
        assert table.tolist() == [1] * 60


def test_loop_spreads_long_items_over_all_workers(four: WorkStealingExecutor) -> None:
    """Halves are given away although no item is over yet: the first four wait for each other."""
    assert four.submit(calls.who_runs, 8, 4).result(HANG_S) == {0, 1, 2, 3}


def test_loop_in_the_program_runs_in_the_open_pool() -> None:
    """Inside the block on its workers, outside it here."""
    assert calls.who_runs(4, 1) == {-1}
    with WorkStealingExecutor(2):
        assert calls.who_runs(8, 2) == {0, 1}
    assert calls.who_runs(4, 1) == {-1}


def test_loop_that_fails_has_stopped_when_it_raises(four: WorkStealingExecutor) -> None:
    """The lowest failing index is raised, and no item runs any more."""
    table = mpsched.shared_array(200, "u1")
    with pytest.raises(ValueError, match="item 3") as caught:
        four.submit(calls.for_each_until, table, 3, 0.002).result(HANG_S)
    assert "index 3 of parallel.for_each" in str(caught.value.__notes__)
    ran = int(table.sum())
    assert four.submit(calls.nap, 0.05).result(HANG_S) == 0.05
    assert int(table.sum()) == ran < 200


def test_loop_stops_when_its_task_is_cancelled(four: WorkStealingExecutor) -> None:
    """Between two blocks, in whatever worker a part of it is."""
    table = mpsched.shared_array(100_000, "u1")  # two minutes' worth
    future = four.submit(calls.for_each_mark, table, 0.005, None)
    calls.wait_until_marked(table, 4)
    assert not future.cancel()
    with pytest.raises(mpsched.errors.TaskCancelled):
        future.result(HANG_S)
    assert 4 <= int(table.astype("i8").sum()) < 100_000


def test_sort_that_fails_leaves_nothing_open(four: WorkStealingExecutor) -> None:
    """Who catches the error of a step goes on."""
    array = mpsched.shared_copy(np.random.default_rng(1).random(2_200_000))
    array.flags.writeable = False
    assert four.submit(calls.sort_and_catch, array).result(HANG_S) == "caught"


def test_in_place_sort_of_a_list_is_never_silently_wrong(four: WorkStealingExecutor) -> None:
    """Where a part was stolen, and so lost, the worker has warned; this suite makes that an error."""
    values = random.Random(5).sample(range(10**6), 20_000)
    told, turns, until = 0, 0, time.monotonic() + HANG_S
    while turns < 10 or not (told or four.stats().changed):
        assert time.monotonic() < until, "nobody steals"
        turns += 1
        changed = four.stats().changed
        try:
            found = four.submit(calls.sort_in_place, values).result(HANG_S)
        except RuntimeWarning as warning:
            told += "sort_in_place changed its argument `values`" in str(warning)
        else:
            assert found == sorted(values) or four.stats().changed > changed


def test_loop_of_the_program_that_is_interrupted_ends_in_silence() -> None:
    """Ctrl-C while a loop runs in the open pool: KeyboardInterrupt, and nobody's failure is logged."""
    result = run_script(
        """
        import os, signal, threading
        import mpsched
        from tests.support import fork_calls

        table = mpsched.shared_array(3000, "u1")

        def interrupt():
            fork_calls.wait_until_marked(table, 3)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            with mpsched.WorkStealingExecutor(2):
                fork_calls.for_each_mark(table, 0.01, None)
        except KeyboardInterrupt:
            print(int(table.sum()) < 3000)
        """
    )
    assert (result.rc, result.err, result.out) == (0, "", "True\n")
