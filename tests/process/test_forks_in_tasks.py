"""Tasks that fork: the child is no second worker, however it leaves the task."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from mpsched._worker.forked import CAME_BACK
from tests.support import crash_calls as calls
from tests.support.pools import DEADLINE_S, pool

if TYPE_CHECKING:
    from pathlib import Path

# It says so on stderr, which is the test's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("return", CAME_BACK),
        ("raise", CAME_BACK),
        ("large", CAME_BACK),
        ("exit", 3),
        ("say", 1),
    ],
)
def test_forks_child_that_leaves_its_task_ends(how: str, code: int, tmp_path: Path) -> None:
    """It publishes nothing and runs nothing else; the worker goes on as if nothing had been."""
    log = tmp_path / "log"
    with pool(1) as ex:
        futures = [ex.submit(calls.fork_and, how, str(log)) for _ in range(3)]
        behind = [ex.submit(calls.identity, number) for number in range(20)]
        assert [future.result(DEADLINE_S) for future in futures] == [code] * 3
        assert [future.result(DEADLINE_S) for future in behind] == list(range(20))
        assert ex.stats().deaths == 0
    assert log.read_text("utf-8") == "run\n" * 3


def test_forks_child_in_a_map_runs_no_other_item(tmp_path: Path) -> None:
    """A piece of a map goes on in the worker alone."""
    log = tmp_path / "log"
    with pool(1) as ex:
        item = partial(calls.fork_at, log=str(log))
        assert list(ex.map(item, range(30), chunksize=30)) == list(range(30))
    assert sorted(map(int, log.read_text("utf-8").split())) == list(range(30))


def test_forks_child_of_an_initializer_is_no_worker(tmp_path: Path) -> None:
    """A fork in the initializer that returns from it does not announce a second worker."""
    log = tmp_path / "log"
    with pool(1, initializer=calls.fork_and, initargs=("return", str(log))) as ex:
        assert ex.submit(calls.identity, 5).result(DEADLINE_S) == 5
        assert ex.stats().deaths == 0
    assert log.read_text("utf-8") == "run\n"
