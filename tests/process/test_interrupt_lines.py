"""KeyboardInterrupt at each line of the pool's own code: nothing is lost, nothing stays locked."""

from __future__ import annotations

import collections
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from tests.support import crash_calls as calls
from tests.support.interrupting import Interruption
from tests.support.pools import DEADLINE_S, pool, wait_for_holders, wait_until
from tests.support.scripts import run_script

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path


_MOST_LINES = 4000
"""A scenario that runs so many lines without an end waits in a loop; they are alike."""


class Scene:
    """One pool, what was submitted to it, and what its tasks have noted."""

    def __init__(self, ex: mpsched.WorkStealingExecutor, folder: Path) -> None:
        self.ex = ex
        self.folder = folder
        self.log = str(folder / "log")
        self.futures: list[mpsched.Future[Any]] = []
        self.numbers = iter(range(10**9))
        self.kept: list[Any] = []
        (folder / "log").touch()

    def submit(self, count: int = 1, **options: Any) -> None:
        view = self.ex.options(**options) if options else self.ex
        for _ in range(count):
            self.futures.append(view.submit(calls.logged, self.log, next(self.numbers)))

    def runs(self) -> collections.Counter[str]:
        with open(self.log) as lines:
            return collections.Counter(lines.read().split())

    def check(self) -> None:
        """Assert that the pool is as if nothing had happened."""
        for future in self.futures:
            error = future.exception(DEADLINE_S)
            assert error is None, error
        results = [future.result() for future in self.futures]
        runs = self.runs()
        assert [str(number) for number in results if runs[str(number)] != 1] == []
        # Whatever else has run (of a submit that was interrupted) has run once.
        assert {number: count for number, count in runs.items() if count > 1} == {}
        self.futures.clear()
        self.kept.clear()
        # A pool that works gives all of this back.
        assert [self.ex.submit(calls.identity, n).result(DEADLINE_S) for n in range(3)] == [0, 1, 2]
        assert list(self.ex.map(calls.identity, range(20))) == list(range(20))
        inner: Any = self.ex._pool
        dispatcher = inner.dispatcher
        wait_until(lambda: not dispatcher.inflight and not dispatcher.moving(), "nothing in flight")
        wait_until(lambda: not inner.ready, "an empty queue")
        wait_until(lambda: not inner.runs, "no map")

        def swept() -> bool:
            inner.ring()  # so that the supervisor looks after what was left
            return not inner.entries.in_use()

        wait_until(swept, "free entries")
        wait_until(lambda: not inner.leader.section.taken(), "a free leader's section")
        wait_until(lambda: not dispatcher.section.taken(), "a free dispatcher's section")
        assert self.ex.submit(calls.taken_locks, inner.width).result(DEADLINE_S) == []
        os.truncate(self.log, 0)


Scenario = tuple["Callable[[Scene], None] | None", "Callable[[Scene], Any]"]
"""What is done before, and what is interrupted."""


def _submit(scene: Scene) -> None:
    scene.submit(3)


def _burst(scene: Scene) -> None:
    scene.submit(150)


def _options(scene: Scene) -> None:
    scene.submit(2, priority=3, timeout=600.0)
    scene.submit(2, name="name", retries=1)


def _many(scene: Scene) -> None:
    scene.submit(40)


def _results(scene: Scene) -> None:
    for future in scene.futures:
        future.result(DEADLINE_S)


def _round_trip(scene: Scene) -> None:
    scene.ex.run(calls.identity, 1)
    scene.submit()
    scene.futures[-1].result(DEADLINE_S)


def _callbacks(scene: Scene) -> None:
    scene.submit(3)
    for future in scene.futures:
        future.add_done_callback(scene.kept.append)
    scene.futures[-1].result(DEADLINE_S)


def _items(scene: Scene, count: int) -> list[tuple[str, int]]:
    return [(scene.log, next(scene.numbers)) for _ in range(count)]


def _map(scene: Scene) -> None:
    assert len(list(scene.ex.map(calls.logged_item, _items(scene, 60)))) == 60


def _map_as_they_come(scene: Scene) -> None:
    items = _items(scene, 60)
    assert len(list(scene.ex.map(calls.logged_item, items, ordered=False))) == 60


def _map_in_chunks(scene: Scene) -> None:
    assert len(list(scene.ex.map(calls.logged_item, _items(scene, 60), chunksize=7))) == 60


def _map_open_input(scene: Scene) -> None:
    items = iter(_items(scene, 60))
    assert len(list(scene.ex.map(calls.logged_item, items, buffersize=8))) == 60


def _map_each(scene: Scene) -> None:
    view = scene.ex.options(retries=1)
    assert len(list(view.map(calls.logged_item, _items(scene, 20)))) == 20


def _map_left_alone(scene: Scene) -> None:
    scene.kept.append(scene.ex.map(calls.logged_item, _items(scene, 20)))


def _map_dropped(scene: Scene) -> None:
    results = scene.ex.map(calls.logged_item, _items(scene, 40))
    next(results)
    results.close()  # type: ignore[attr-defined]  # what `del` does, where an exception is not lost


def _retry(scene: Scene) -> None:
    view = scene.ex.options(retries=3, retry_on=ConnectionError)
    number = next(scene.numbers)
    log = f"{scene.log}-{number}"
    assert view.submit(calls.fail_until, 3, log).result(DEADLINE_S) == 3
    with open(log) as lines:
        assert [line.split()[0] for line in lines] == ["1", "2", "3"]


def _cancel(scene: Scene) -> None:
    for future in scene.kept[0]:
        future.cancel()


def _behind_a_blocker(scene: Scene) -> None:
    names = [f"blocker{next(scene.numbers)}" for _ in range(scene.ex._pool.width)]
    blockers = [scene.ex.submit(calls.hold, str(scene.folder), name) for name in names]
    wait_for_holders(scene.folder, *names)
    waiting = [scene.ex.submit(calls.logged, scene.log, next(scene.numbers)) for _ in range(12)]
    scene.kept += [waiting, names, blockers]


def _large(scene: Scene) -> None:
    data = bytes(200_000)
    assert scene.ex.submit(calls.size_of, data).result(DEADLINE_S) == len(data)
    assert scene.ex.submit(calls.large, 200_000).result(DEADLINE_S) == data


def _share(scene: Scene) -> None:
    with scene.ex.share(bytes(200_000)) as handle:
        assert scene.ex.submit(calls.size_of, handle).result(DEADLINE_S) == 200_000


def _by_value(scene: Scene) -> None:
    offset = next(scene.numbers)
    assert scene.ex.submit(lambda: offset).result(DEADLINE_S) == offset


def _stats(scene: Scene) -> None:
    scene.submit()
    scene.ex.stats()
    assert scene.ex.state == "accepting"


SCENARIOS: dict[str, Scenario] = {
    "submit": (None, _submit),
    "burst": (None, _burst),
    "options": (None, _options),
    "results": (_many, _results),
    "round-trip": (None, _round_trip),
    "callbacks": (None, _callbacks),
    "map": (None, _map),
    "map-as-they-come": (None, _map_as_they_come),
    "map-in-chunks": (None, _map_in_chunks),
    "map-open-input": (None, _map_open_input),
    "map-each": (None, _map_each),
    "map-left-alone": (None, _map_left_alone),
    "map-dropped": (None, _map_dropped),
    "retry": (None, _retry),
    "large": (None, _large),
    "share": (None, _share),
    "by-value": (None, _by_value),
    "stats": (None, _stats),
}


def lines_of(scene: Scene, scenario: Scenario) -> int:
    """Return how many lines a scenario runs; it differs a little each time."""
    before, action = scenario
    if before is not None:
        before(scene)
    counting = Interruption(-1)
    counting.run(lambda: action(scene))
    scene.check()
    return min(counting.lines, _MOST_LINES)


def interrupt(scene: Scene, scenario: Scenario, at: int) -> str | None:
    """Interrupt a scenario at one line, and check everything."""
    before, action = scenario
    if before is not None:
        before(scene)
    interruption = Interruption(at)
    interruption.run(lambda: action(scene))
    try:
        scene.check()
    except BaseException as problem:
        problem.add_note(f"interrupted at line {at}: {interruption.where}")
        raise
    return interruption.where


# What strikes while a dropped iterator is finalized cannot be raised: Python only reports it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_interrupt_at_some_lines_loses_nothing(
    name: str, rng: random.Random, tmp_path: Path
) -> None:
    """A sample of lines; the same as below."""
    with pool(2) as ex:
        scene = Scene(ex, tmp_path)
        most = lines_of(scene, SCENARIOS[name])
        # One for sure: a count may have many lines of a wait in it that are not run again.
        points = sorted({rng.randint(1, 8), *rng.sample(range(1, most + 1), min(24, most))})
        places = [interrupt(scene, SCENARIOS[name], at) for at in points]
        assert any(places)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_interrupt_at_each_line_loses_nothing(name: str, tmp_path: Path) -> None:
    """Every future becomes final, every task runs at most once, no section or lock stays taken."""
    with pool(2) as ex:
        scene = Scene(ex, tmp_path)
        most = lines_of(scene, SCENARIOS[name])
        seen = {interrupt(scene, SCENARIOS[name], at) for at in range(1, most + 1)}
        assert len(seen) > min(most, 5)


# --- the beginning and the end of a pool ------------------------------------------------------------


def _ended(kept: list[mpsched.WorkStealingExecutor]) -> None:
    kept[0].shutdown()


def _ended_and_cancelled(kept: list[mpsched.WorkStealingExecutor]) -> None:
    kept[0].shutdown(cancel_futures=True)


def _closed(kept: list[mpsched.WorkStealingExecutor]) -> None:
    kept[0].close(timeout=0.01, cancel_pending=True, kill_after=0.01)


def _left(kept: list[mpsched.WorkStealingExecutor]) -> None:
    with kept[0] as ex:
        ex.submit(calls.identity, 1)


ENDS = {
    "shutdown": _ended,
    "shutdown-cancel": _ended_and_cancelled,
    "close": _closed,
    "with": _left,
}


def end(action: Callable[[list[mpsched.WorkStealingExecutor]], None], at: int) -> Interruption:
    """Interrupt the end of a pool at one line; it ends, and every future is final."""
    ex = mpsched.WorkStealingExecutor(2)
    kept = [ex]
    interruption = Interruption(at)
    try:
        futures = [ex.submit(calls.nap, 0.001) for _ in range(30)]
        interruption.run(lambda: action(kept))
        ex.shutdown()
        assert ex.state == "terminated"
        assert [future for future in futures if not future.done()] == []
    except BaseException as problem:
        problem.add_note(f"interrupted at line {at}: {interruption.where}")
        ex.close(timeout=0, cancel_pending=True, kill_after=0)
        raise
    return interruption


@pytest.mark.parametrize("name", ENDS)
def test_interrupt_of_an_end_leaves_no_future_open(name: str, rng: random.Random) -> None:
    """Asked once more, the pool ends; a sample of lines."""
    most = end(ENDS[name], -1).lines
    for at in rng.sample(range(1, most + 1), min(12, most)):
        end(ENDS[name], at)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_interrupt_of_an_end_at_each_line_leaves_no_future_open(name: str) -> None:
    """The same at every line."""
    for at in range(1, end(ENDS[name], -1).lines + 1):
        end(ENDS[name], at)


START = """
import gc, json, os, sys, threading, time, warnings
import mpsched
from tests.support import crash_calls as calls, leaks
from tests.support.interrupting import Interruption

warnings.simplefilter("ignore", ResourceWarning)  # of a socket whose owner was never told of it
first, step = json.loads(sys.argv[1])

def make(at):
    interruption = Interruption(at)
    ex = interruption.run(lambda: mpsched.WorkStealingExecutor(2))
    if not isinstance(ex, KeyboardInterrupt):
        assert ex.submit(calls.identity, 1).result(60) == 1
        ex.shutdown()
    return interruption

def left():
    # Every descendant: they have this program's process group.
    ours = [pid for pid in leaks.live_pids() if leaks._group_of(pid) == os.getpgrp()]
    return len(ours) - 1, threading.active_count() - 1

make(-1)  # imports what is imported at first need
lines = make(-1).lines
for at in range(first, lines + 1, step):
    where = make(at).where
    until = time.monotonic() + 30
    while left() != (0, 0):
        gc.collect()
        assert time.monotonic() < until, (at, where, left())
        time.sleep(0.01)
"""


def test_interrupt_of_a_start_leaves_no_process(rng: random.Random) -> None:
    """No process and no thread is left of a pool that was not finished; it can be tried again."""
    result = run_script(START, args=[json.dumps([rng.randint(1, 30), 30])])
    assert result.rc == 0, result.err


@pytest.mark.slow
def test_interrupt_of_a_start_at_each_line_leaves_no_process() -> None:
    """The same at every line."""
    result = run_script(START, args=[json.dumps([1, 1])], timeout=600)
    assert result.rc == 0, result.err
