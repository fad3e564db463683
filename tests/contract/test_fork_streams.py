"""`options(rng=...)`: random numbers of a task and of its children, wherever they run."""

from __future__ import annotations

import pytest

from mpsched import WorkStealingExecutor
from tests.support import streams as calls

HANG_S = 60.0


def test_streams_are_the_same_on_any_number_of_workers() -> None:
    """What a child draws depends on the seed and on its place in the program, not on steals."""
    found = []
    for workers in (0, 1, 2, 4):
        with WorkStealingExecutor(workers) as ex:
            stolen = False
            while not stolen:  # the others may have been busy, or not there yet
                view = ex.options(rng=7)
                found.append(view.submit(calls.everything, ex).result(HANG_S))
                stolen = workers < 2 or ex.stats().child_steals > 0
    assert all(one == found[0] for one in found[1:])


def test_streams_of_tasks_and_children_differ() -> None:
    """No two of them draw the same numbers."""
    with WorkStealingExecutor(2) as ex:
        seeded = ex.options(rng=7)
        first, second = seeded.map(calls.tree, [4, 4])
        other = ex.options(rng=8).submit(calls.tree, 4).result(HANG_S)
    drawn = first + second + other
    assert len(set(drawn)) == len(drawn) == 3 * (31 * 2 + 15)


@pytest.mark.parametrize("mode", ["copy", "steal"])
def test_streams_are_the_same_in_debug_modes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied call, or one that another worker has to run, draws the same."""
    with WorkStealingExecutor(2) as ex:
        wanted = ex.options(rng=7).submit(calls.suspended, 3).result(HANG_S)
    monkeypatch.setenv("MPSCHED_DEBUG", mode)
    with WorkStealingExecutor(2) as ex:
        assert ex.options(rng=7).submit(calls.suspended, 3).result(HANG_S) == wanted


def test_streams_without_a_seed_are_chance() -> None:
    """Children of a task without a seed share its generator or have one of their own."""
    with WorkStealingExecutor(2) as ex:
        first = ex.submit(calls.tree, 3).result(HANG_S)
        second = ex.submit(calls.tree, 3).result(HANG_S)
    assert not set(first) & set(second)
