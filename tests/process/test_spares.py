"""Spare workers that are processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from mpsched._base.settings import Settings
from mpsched._shm import layout as lay
from tests.support import blocking_calls as calls, crash_calls
from tests.support.pools import (
    DEADLINE_S,
    alive,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path


def gone(pid: int) -> bool:
    return not alive(pid)


def test_spares_run_what_waits_while_all_workers_block(start_method: str, tmp_path: Path) -> None:
    """The pool has its width in workers that compute; a spare is a worker with an index of its own."""
    with pool(1, start_method) as ex:
        assert len(pids(ex)) == 1
        root = ex.submit(calls.blocked, str(tmp_path), "root")
        wait_for_holders(tmp_path, "root")
        assert ex.submit(calls.index).result(DEADLINE_S) == 1
        assert not root.done()
        wait_until(lambda: len(pids(ex)) == 2, "the process of the spare")
        wait_until(lambda: ex.stats().workers[1].executed, "its count")
        stats = ex.stats()
        assert [worker.index for worker in stats.workers] == [0, 1]
        assert stats.workers[1].executed == 1
        assert stats.uncompensated == 0
        release(tmp_path, "root")
        assert root.result(DEADLINE_S) == 0


def test_spares_stand_in_for_tasks_with_the_option(tmp_path: Path) -> None:
    """`options(blocking=True)`: the whole call is one block; for `map`, each item."""
    with pool(1) as ex:
        patient = ex.options(blocking=True)
        root = patient.submit(calls.held, str(tmp_path), "root")
        wait_for_holders(tmp_path, "root")
        assert ex.submit(calls.index).result(DEADLINE_S) == 1
        release(tmp_path, "root", "item0", "item1")
        assert root.result(DEADLINE_S) == (0, 1)
        items = list(patient.starmap(calls.held, [(str(tmp_path), f"item{n}") for n in range(2)]))
        assert [blocked for _, blocked in items] == [1, 1]
        plain = ex.submit(calls.held, str(tmp_path), "root").result(DEADLINE_S)
        assert plain[1] == 0
        with pytest.raises(ValueError, match="on purpose") as failed:
            patient.submit(calls.fail).result(DEADLINE_S)
        assert "fail()" in "".join(failed.value.__notes__)
        assert ex.submit(calls.held, str(tmp_path), "root").result(DEADLINE_S)[1] == 0


def test_spares_leave_when_they_are_not_needed_any_more(tmp_path: Path) -> None:
    """That is no death; the next task that blocks gets one again."""
    with pool(1) as ex:
        for name in ("first", "second"):
            root = ex.submit(calls.blocked, str(tmp_path), name)
            wait_for_holders(tmp_path, name)
            assert ex.submit(calls.index).result(DEADLINE_S) == 1
            # While it is needed: afterwards it may be gone before anybody looks.
            spare = wait_until(lambda: [*filter(None, pids(ex)[1:])], "the process of the spare")[0]
            release(tmp_path, name)
            assert root.result(DEADLINE_S) == 0
            wait_until(functools.partial(gone, spare), "the end of the spare")
            # A process that is gone is nobody's: its number may be another program's by now.
            wait_until(lambda: pids(ex)[1] == 0, "its number to be forgotten")
        assert ex.stats().deaths == 0
        assert ex.stats().workers[1].executed == 2


def test_spares_that_work_when_they_are_not_needed_finish_it_first(tmp_path: Path) -> None:
    """A root that runs in a spare is run there to its end, and then the spare leaves."""
    with pool(1) as ex:
        root = ex.submit(calls.blocked, str(tmp_path), "root")
        wait_for_holders(tmp_path, "root")
        long = ex.submit(crash_calls.hold, str(tmp_path), "long")
        found = wait_for_holders(tmp_path, "long")
        release(tmp_path, "root")
        assert root.result(DEADLINE_S) == 0
        stop = ex._pool.layout.block(1) + lay.B_STOP  # type: ignore[union-attr]
        wait_until(lambda: ex._pool.segment.words[stop], "STOP")  # type: ignore[union-attr]
        assert alive(found["long"])
        release(tmp_path, "long")
        assert long.result(DEADLINE_S) == "long"
        wait_until(lambda: not alive(found["long"]), "the end of the spare")
        assert ex.stats().deaths == 0


def test_spares_are_bounded_and_what_goes_beyond_is_counted(tmp_path: Path) -> None:
    """Two block, one spare: the second one's core stays idle."""
    with pool(2, settings=Settings(max_spares=1)) as ex:
        roots = [ex.submit(calls.blocked, str(tmp_path), name) for name in ("a", "b")]
        wait_for_holders(tmp_path, "a", "b")
        wait_until(lambda: ex.stats().uncompensated, "the count")
        assert ex.submit(calls.index).result(DEADLINE_S) == 2
        wait_until(lambda: len(pids(ex)) == 3, "the process of the spare")
        assert ex.stats().uncompensated == 1
        release(tmp_path, "a", "b")
        assert {root.result(DEADLINE_S) for root in roots} == {0, 1}


def test_spares_that_die_are_replaced_while_they_are_needed(tmp_path: Path) -> None:
    """What it ran fails like any worker's task, and the next one is there."""
    with pool(1) as ex:
        root = ex.submit(calls.blocked, str(tmp_path), "root")
        wait_for_holders(tmp_path, "root")
        victim = ex.submit(crash_calls.hold, str(tmp_path), "victim")
        found = wait_for_holders(tmp_path, "victim")
        assert kill(found["victim"])
        assert "SIGKILL" in str(victim.exception(DEADLINE_S))
        assert ex.submit(calls.index).result(DEADLINE_S) == 1
        assert ex.stats().deaths == 1
        release(tmp_path, "root")
        assert root.result(DEADLINE_S) == 0


@pytest.mark.parametrize("spares", [0, 1])
def test_spares_do_not_outlive_their_pool(tmp_path: Path, spares: int) -> None:
    """Shut down while a task blocks: it is still done, and nothing is left."""
    with pool(1, settings=Settings(max_spares=spares)) as ex:
        root = ex.submit(calls.blocked, str(tmp_path), "root")
        wait_for_holders(tmp_path, "root")
        if spares:
            wait_until(lambda: len(pids(ex)) == 2, "the spare")
        ex.shutdown(wait=False)
        release(tmp_path, "root")
        assert root.result(DEADLINE_S) == 0
