"""A leader that is asked to read all results does so, told of them or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mpsched._tasks import records as rec, state as st
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsched._shm.parking import Parker


@pytest.fixture
def quiet() -> Iterator[QuietPool]:
    pool = QuietPool(1)
    bells = pool.leader_bell
    yield pool
    pool.leader_bell = bells
    pool.close()


def test_waiting_leader_that_is_asked_reads_what_it_was_not_told_of(quiet: QuietPool) -> None:
    """A map runs, a limit rings all the time: it never naps, and its worker tells nobody."""
    (handle,) = quiet.push(0)
    worker = quiet.workers[0]
    assert worker._take(worker.inbox, 1, wait=True) == [handle]
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    (task,) = quiet.dispatcher.inflight.values()
    future = task.future
    assert future is not None
    worker.results.write(task.id, handle, rec.R_INT, 5, 7)
    quiet.runs = {object()}
    waits: list[float] = []

    def ring(seconds: float) -> bool:
        waits.append(seconds)
        assert len(waits) < 10, "it is rung, and does not read"
        quiet.leader.ask()
        return True

    quiet.leader_bell = cast("Parker", SimpleNamespace(wait=ring, wake=lambda: None))
    assert quiet.leader.lead(future.done, None)
    assert future.result(0) == 7
    assert waits
