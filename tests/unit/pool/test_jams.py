"""Who keeps an inbox closed, is stopped and runs nothing, is ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mpsched._pool.jams import Jams
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator


class Jammed(QuietPool):
    """A pool whose worker 1, process 1001, is stopped and has the inbox of worker 0.

    Attributes:
        kills: who was sent which signal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kills: list[tuple[int, int]] = []
        self.locks.taken = {0}
        self.locks.owner = 1001
        self.supervisor.pid_of = lambda worker: 1000 + worker
        self.supervisor.kill = lambda worker, number, _why: self.kills.append((worker, number))


@pytest.fixture
def jammed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jammed]:
    monkeypatch.setattr("mpsched._pool.limits.stopped", lambda pid: pid == 1001)
    pool = Jammed()
    yield pool
    pool.close()


def test_jams_stopped_holder_is_ended_at_the_third_look(jammed: Jammed) -> None:
    """Not before: it may have been a moment's."""
    jams = Jams(jammed.as_pool)
    for _ in range(2):
        jams.shut(0)
    assert jammed.kills == []
    jams.shut(0)
    assert jammed.kills == [(1, signal.SIGKILL)]


def test_jams_looks_count_in_a_row(jammed: Jammed) -> None:
    """Once it could be had, it counts from the beginning."""
    jams = Jams(jammed.as_pool)
    for _ in range(5):
        jams.shut(0)
        jams.shut(0)
        jams.opened(0)
    assert jammed.kills == []


@pytest.mark.parametrize("what", ["a root", "a child"])
def test_jams_holder_that_runs_something_is_spared(jammed: Jammed, what: str) -> None:
    """Whoever has stopped it may let it go on."""
    if what == "a root":
        (handle,) = jammed.push(1)
        jammed.table.state[handle] = st.word(st.CLAIMED, 1)
        jammed.table.state[handle] = st.word(st.RUNNING, 1)
    else:
        jammed.segment.words[jammed.layout.block(1) + lay.B_RUN] = 7 << 16
    jams = Jams(jammed.as_pool)
    for _ in range(5):
        jams.shut(0)
    assert jammed.kills == []


def test_jams_holder_that_is_not_stopped_is_spared(
    jammed: Jammed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, and lets go."""
    monkeypatch.setattr("mpsched._pool.limits.stopped", lambda _pid: False)
    jams = Jams(jammed.as_pool)
    for _ in range(5):
        jams.shut(0)
    assert jammed.kills == []
