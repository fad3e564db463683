"""Programs that run under a fault plan and strike their own threads, for test_crash_points_parent.py.

Each prints which (point, action) has struck, one a line, and raises if something is not as it should be.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import tempfile
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpsched
from mpsched.errors import MpschedError, PoolFailed, WorkerDied
from mpsched.testing import FaultInjected, crashpoints
from mpsched.testing.crashpoints import Armed
from mpsched.testing.faultplan import ROLES
from tests.process.test_interrupt_lines import SCENARIOS, Scenario, Scene
from tests.support import crash_calls as calls, crash_scene, fork_deaths
from tests.support.crash_cells import pairs
from tests.support.pools import (
    DEADLINE_S,
    kill,
    pool,
    release,
    template_of,
    wait_for_holders,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAUSE_S = 0.02

_TURNS = 20
"""How often a cell is tried: who pumps, who leads and where a cancelled task lies is a matter of luck."""

BEFORE = {
    "dispatch.recovering": Armed("dispatch.placed", "interrupt", "caller", None, None, 2, 1, 0.0),
}
"""What has to have happened before a point is reached at all."""


def _behind_slow_ones(scene: Scene) -> None:
    scene.kept.append([scene.ex.submit(calls.nap, 0.03) for _ in range(2)])
    scene.kept.append([])


def _cancel_some(scene: Scene) -> None:
    """Wherever they are: in the queue, in an inbox, claimed."""
    for _ in range(30):
        scene.kept[1].append(scene.ex.submit(calls.logged, scene.log, next(scene.numbers)))
    for future in scene.kept[1][::2]:
        future.cancel()


def _only_tiny_ones(scene: Scene) -> None:
    """So that workers claim many at once; fourteen more will be one worker's share."""
    scene.kept += [[scene.ex.submit(abs, -1) for _ in range(300)], []]
    for future in scene.kept[0]:
        future.result(DEADLINE_S)


def _cancel_claimed(scene: Scene) -> None:
    """Behind two slow ones, one for each worker, lies what was claimed together with them."""
    slow = []
    for name in ("one", "two"):
        path = scene.folder / f"slow{next(scene.numbers)}"
        slow.append((path, scene.ex.submit(crash_scene.noted, str(path), name, 0.03)))
        for _ in range(6):
            scene.kept[1].append(scene.ex.submit(calls.logged, scene.log, next(scene.numbers)))
    wait_until(lambda: all(one.done() or path.exists() for path, one in slow), "the slow ones")
    for future in scene.kept[1]:
        future.cancel()


CALLERS: dict[str, Scenario] = {
    **{name: SCENARIOS[name] for name in ("submit", "burst", "options", "results", "callbacks")},
    **{name: SCENARIOS[name] for name in ("map", "map-each", "retry", "large", "round-trip")},
    "cancel": (_behind_slow_ones, _cancel_some),
    "cancel-claimed": (_only_tiny_ones, _cancel_claimed),
}


def reached_by(role: str) -> set[str]:
    """Return the points that were reached as `role` since the last call."""
    found = {point for point, who in crashpoints._seen if who == role}
    crashpoints._seen.clear()
    return found


class Strikes:
    """What this process has done to itself."""

    def __init__(self) -> None:
        self.path = Path(os.environ[crashpoints.VARIABLE], "struck")
        self._known = len(self._all())

    def _all(self) -> list[str]:
        return self.path.read_text("utf-8").splitlines() if self.path.exists() else []

    def fresh(self) -> list[str]:
        """Return the actions of the strikes since the last call."""
        lines = self._all()
        before, self._known = self._known, len(lines)
        return [line.split()[1] for line in lines[before:]]


def callers(seed: str, most: str) -> None:
    """{pause, raise, interrupt} at each point that this thread reaches, in each scenario.

    Args:
        seed: Of the choice, if there is one.
        most: How many cells at most; 0 for all.
    """
    import random

    with tempfile.TemporaryDirectory() as folder, pool(2) as ex:
        scene = Scene(ex, Path(folder))
        cells = []
        for name, scenario in CALLERS.items():
            points = set()
            for _ in range(3):
                reached_by("caller")
                _act(scene, scenario)
                points |= reached_by("caller")
                scene.check()
            for action in ("pause", "raise", "interrupt"):
                cells += [(name, point, action) for point in sorted(points)]
        if int(most):
            cells = random.Random(int(seed)).sample(cells, min(int(most), len(cells)))
        strikes = Strikes()
        struck = set()
        for turn in range(1 if int(most) else _TURNS):
            for number, (name, point, action) in enumerate(cells):
                # The first, or a later one: where the caller has come before without harm.
                hit = 1 + (number + turn) % 2
                if turn and (point, action) in struck:
                    continue
                armed = Armed(point, action, "caller", None, None, hit, 1, PAUSE_S)
                _act(scene, CALLERS[name], armed)
                if strikes.fresh():
                    struck.add((point, action))
                try:
                    scene.check()
                except BaseException as problem:
                    problem.add_note(f"{action} at {point} in {name}, hit {hit}")
                    raise
    for point, action in sorted(struck):
        print(f"{point} {action}")


def _act(scene: Scene, scenario: Scenario, *armed: Armed) -> None:
    before, action = scenario
    if before is not None:
        before(scene)
    crashpoints.arm(armed)
    with contextlib.suppress(FaultInjected, KeyboardInterrupt):
        action(scene)
    crashpoints.arm(())


def supervisors(points: str, turns: str) -> None:
    """{pause, raise} at points of the supervisor.

    Args:
        points: Names, with commas between.
        turns: How often a cell is tried: whether it is the supervisor that comes there is a matter of
            luck at some.
    """
    strikes = Strikes()
    for point in points.split(","):
        for action in ("pause", "raise"):
            for hit in [1, 2, *[1] * _TURNS][: int(turns)]:
                armed = [Armed(point, action, "supervisor", None, None, hit, 1, PAUSE_S)]
                if point in BEFORE:
                    armed.insert(0, BEFORE[point])
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        struck = _supervised(Path(folder), armed, strikes)
                    except BaseException as problem:
                        problem.add_note(f"{action} at {point}, hit {hit}")
                        raise
                    finally:
                        crashpoints.arm(())
                if struck:
                    print(f"{point} {action}")
                    break


def _supervised(folder: Path, armed: list[Armed], strikes: Strikes) -> bool:
    """Strike the supervisor while it has everything to do; False if it did not come there."""
    log = str(folder / "log")
    Path(log).touch()
    # Such children are killed after half a second.
    orphans = 0.7 if armed[-1].point == "trees.named" else 0.05
    crashpoints.arm(armed)
    between = armed[-1].point in {"trees.told", "trees.died"}
    ex = mpsched.WorkStealingExecutor(3 if between else 2)
    futures: dict[str, Any] = {}
    told: list[Any] = []
    try:
        with contextlib.suppress(MpschedError, KeyboardInterrupt):
            if between:
                _kill_between(ex, folder / "between")
            _give(ex, log, "one", futures, told, orphans)
            kill(template_of(ex))
            _give(ex, log, "two", futures, told, orphans)
        for future in futures.values():
            if not future.cancelled():
                future.exception(DEADLINE_S)
        struck = armed[-1].action in strikes.fresh()
    finally:
        ex.close(timeout=DEADLINE_S, kill_after=0)
    failed, late = ex.state == "failed", armed[-1].action in strikes.fresh()
    # (What raises when the pool ends anyhow is logged.)
    assert failed == (struck and armed[-1].action == "raise") or late
    runs = collections.Counter(Path(log).read_text("utf-8").split())
    # (Children may be called again for a thief that died.)
    assert {run: n for run, n in runs.items() if n > 1 and "." not in run} == {}
    died = 0
    for name, future in futures.items():
        assert future.done(), name
        error = CancelledError() if future.cancelled() else future.exception(0)
        if isinstance(error, PoolFailed):
            assert failed, name
            continue
        died += isinstance(error, WorkerDied)
        if error is None:
            values = (name, name.encode().ljust(300_000), crash_scene.TREE)
            assert future.result(0) in values, name
            assert any(runs[f"{name}/{attempt}"] for attempt in range(1, 5)), name
    # Poisons and orphans, and what the template took with it: one for each worker and each spare.
    assert died <= 4 + len(ex._pool.supervisor._slots), died  # type: ignore[union-attr]
    wait_until(lambda: len(told) == len(futures), "each callback once")
    assert ex.state == ("failed" if failed else "terminated")
    return struck or late


def _give(
    ex: mpsched.WorkStealingExecutor,
    log: str,
    at: str,
    futures: dict[str, Any],
    told: list[Any],
    orphans: float,
) -> None:
    def submit(function: Any, name: str) -> Any:
        future = futures[name] = ex.submit(function, log, name)
        # With callbacks: nobody leads, the supervisor has it all.
        future.add_done_callback(told.append)
        return future

    # Both have to be there: one alone would be done with the tree before anybody steals.
    slots: Any = ex._pool.supervisor._slots[:2]  # type: ignore[union-attr]
    wait_until(lambda: all(slot.ready for slot in slots) or ex.state == "failed", "both workers")
    name = f"{at}tree"
    tree = futures[name] = ex.options(retries=3).submit(crash_scene.noted_tree, log, name, 2)
    tree.add_done_callback(told.append)
    tree.exception(DEADLINE_S)
    for n in range(20):
        submit(crash_scene.noted, f"{at}root{n}")
    submit(crash_scene.noted_death, f"{at}poison").exception(DEADLINE_S)
    submit(crash_scene.noted_large, f"{at}large")
    for n in range(2):
        submit(crash_scene.noted_block, f"{at}block{n}")
    limited = ex.options(timeout=0.05, grace=0.01)
    for n in range(2):
        # Once over its limit, once just in time.
        seconds = (10.0, 0.04)[n]
        name = f"{at}limited{n}"
        future = futures[name] = limited.submit(crash_scene.noted, log, name, seconds)
        future.add_done_callback(told.append)
    name = f"{at}orphans"
    future = futures[name] = ex.submit(crash_scene.noted_orphans, log, name, orphans)
    future.add_done_callback(told.append)
    future.exception(DEADLINE_S)
    submit(crash_scene.noted, f"{at}late").exception(DEADLINE_S)


def _missing(*roles: str) -> set[str]:
    """Return the points of these roles, or all, that nobody has reached."""
    path = Path(os.environ[crashpoints.VARIABLE], "reached")
    reached = {line.split()[0] for line in path.read_text("utf-8").splitlines()}
    return {point for point, _ in pairs(roles or ROLES)} - reached


def _kill_between(ex: mpsched.WorkStealingExecutor, folder: Path) -> None:
    """End a worker whose child has a child elsewhere, which goes on for a moment: DYING, then LOST."""
    folder.mkdir()
    future = ex.options(retries=1).submit(
        fork_deaths.above_middle, str(folder / "log"), str(folder)
    )
    kill(wait_for_holders(folder, "middle", "leaf")["middle"])
    wait_until(lambda: ex.stats().deaths or ex.state == "failed", "the burial")
    release(folder, "leaf")
    assert future.result(DEADLINE_S) == "repeated"


@contextlib.contextmanager
def _sparing_workers() -> Iterator[None]:
    """Let no fault strike the workers of pools that are made meanwhile; this process keeps its points."""
    folder = os.environ.pop(crashpoints.VARIABLE)
    try:
        yield
    finally:
        os.environ[crashpoints.VARIABLE] = folder


def everywhere() -> None:
    """Do what reaches all points. Where it is a matter of luck who comes first, again and again."""
    with tempfile.TemporaryDirectory() as folder, pool(2) as ex:
        scene = Scene(ex, Path(folder))
        for turn in range(20):
            if turn and not _missing("caller"):
                break
            for scenario in CALLERS.values():
                _act(scene, scenario)
                scene.check()
        for _ in range(100):
            if not {"revoke.found", "revoke.dequeued", "revoke.answered"} & _missing():
                break
            _act(scene, CALLERS["cancel-claimed"])
            scene.check()
        # What it leaves in the dispatcher's hands somebody has to find there.
        _act(scene, CALLERS["burst"], BEFORE["dispatch.recovering"])
        scene.check()
    for workers, method, options in (1, "spawn", {}), (2, "forkserver", {"max_tasks_per_child": 9}):
        with pool(workers, method, **options) as ex:
            assert list(ex.map(abs, range(50), chunksize=1)) == list(range(50))
            # Results that are pickled one by one.
            assert list(ex.map(complex, range(50), chunksize=25)) == list(range(50))
            futures = [ex.submit(abs, n) for n in range(50)]
            assert [future.result(DEADLINE_S) for future in futures] == list(range(50))
    with tempfile.TemporaryDirectory() as folder, _sparing_workers(), pool(3) as ex:
        _kill_between(ex, Path(folder, "between"))
    with tempfile.TemporaryDirectory() as folder, pool(4) as ex:
        work = crash_scene.Scene(ex, Path(folder))
        work.work()
        kill(template_of(ex))
        for _ in range(40):
            slow = "trees.named" in _missing()
            timed = any("early" in point for point in _missing())
            orphans = 0.7 if slow else 0.03
            work.work(poison=True, late=True, block=True, timed=timed, orphans=orphans)
            if not _missing():
                break


def main(arguments: Sequence[str]) -> None:
    """Run one of the programs here, by name."""
    programs: dict[str, Any] = {
        "callers": callers,
        "supervisors": supervisors,
        "everywhere": everywhere,
    }
    programs[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
