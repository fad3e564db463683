"""One cell of the product of kills: who is struck where, how, in a pool of how many workers."""

from __future__ import annotations

import os
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mpsched.testing
from mpsched.testing import Fault, FaultPlan, crashpoints, faultplan
from tests.support.crash_scene import Scene
from tests.support.pools import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpsched.testing import Strike

ACTIONS: Final = ("kill", "stop")
WIDTHS: Final = (1, 2, 4)

ROUNDS: Final = 6
"""Of work, until the fault has struck: who steals from whom is nobody's plan."""

_ROW = re.compile(r"^\| `([a-z.-]+)` \| ([a-z, ]+) \| .+ \|$", re.MULTILINE)

_DURING: Final[dict[str, Fault]] = {
    "ring.repair.begun": Fault("ring.take.dirty", "kill", role="owner", hit=5),
    "ring.repair.undone": Fault("ring.take.dirty", "kill", role="owner", hit=5),
    "outcome.lost": Fault("steal.running", "kill", role="thief"),
}
"""What has to have happened before a point is reached at all."""

BEFORE_PARENT: Final[dict[str, Fault]] = {
    # Workers die with a claim begun and nothing running: somebody has to repair it.
    "ring.repair": Fault("ring.take.dirty", "kill", role="owner", hit=7, times=1000),
    # Thieves die with a child that they have not started.
    "trees.returned": Fault("steal.taken", "kill", role="thief", times=12),
}
"""The same for points of the parent, by how their names begin."""

_WORK: Final[dict[str, dict[str, Any]]] = {
    "template.reaped": {"poison": True},
    "limit.ended": {"late": True},
    "inbox.early.dirty": {"timed": True},
    "inbox.early.claimed": {"timed": True},
    "inbox.early.taken": {"timed": True},
    "early.awaited": {"timed": True},
    "piece.flushed": {"sealed": True},
    "block.said": {"block": True},
    "block.over": {"block": True},
}
"""What a round of work needs besides."""

_OPTIONS: Final[dict[str, dict[str, Any]]] = {"worker.retiring": {"max_tasks_per_child": 20}}


def table() -> dict[str, tuple[str, ...]]:
    """Return point -> roles, as the room's README has them."""
    home = mpsched.testing.__file__
    assert home is not None
    text = (Path(home).parent / "README.md").read_text("utf-8")
    return {name: tuple(roles.split(", ")) for name, roles in _ROW.findall(text)}


def pairs(wanted: Iterable[str]) -> list[tuple[str, str]]:
    """Return (point, role) of the table, of these roles."""
    return [
        (point, role) for point, roles in table().items() for role in roles if role in {*wanted}
    ]


@dataclass(frozen=True)
class Cell:
    """Where, who, what, among how many workers; `hit` says on which time."""

    point: str
    role: str | None
    action: str
    workers: int
    method: str = "forkserver"
    hit: int = 1

    def run(self, folder: Path) -> bool:
        """Work until the fault has struck, then check everything; False if it never did.

        Workers of the start method `fork` have their points from this process, which has to run under
        a plan itself.
        """
        folder.mkdir()
        try:
            if self.method == "fork":
                return self._run_armed(folder)
            plan = FaultPlan(*self._faults())
            with plan:
                return self._work(folder, lambda: plan.struck)
        except BaseException as problem:
            problem.add_note(f"{self}")
            raise

    def _faults(self) -> list[Fault]:
        before = [_DURING[self.point]] if self.point in _DURING else []
        here = Fault(self.point, self.action, role=self.role, hit=self.hit, seconds=0.1)
        return [*before, here]

    def _run_armed(self, folder: Path) -> bool:
        assert self.role not in {None, "caller", "supervisor"}, "this process would be struck"
        known = len(_struck_here())
        crashpoints.arm(crashpoints.Armed(**asdict(fault)) for fault in self._faults())
        try:
            return self._work(folder, lambda: _struck_here()[known:])
        finally:
            crashpoints.arm(())

    def _work(self, folder: Path, struck: Callable[[], list[Strike]]) -> bool:
        try:
            with pool(self.workers, self.method, **_OPTIONS.get(self.point, {})) as ex:
                scene = Scene(ex, folder)
                for _ in range(ROUNDS):
                    scene.work(**_WORK.get(self.point, {}))
                    if self._is_in(struck()):
                        break
                scene.check(struck())
        except BaseException as problem:
            problem.add_note(f"struck: {struck()}")
            raise
        return self._is_in(struck())

    def _is_in(self, strikes: list[Strike]) -> bool:
        return any(
            (strike.point, strike.action) == (self.point, self.action)
            and self.role in {None, strike.role}
            for strike in strikes
        )


def _struck_here() -> list[Strike]:
    return faultplan._strikes(Path(os.environ[crashpoints.VARIABLE]))


def random_cell(rng: random.Random, where: list[tuple[str, str]], method: str = "") -> Cell:
    """Return one of the cells of these (point, role)."""
    point, role = rng.choice(where)
    action, workers = rng.choice(ACTIONS), rng.choice(WIDTHS)
    return Cell(point, role, action, workers, method or method_of(point), rng.randint(1, 3))


def strike_some(
    rng: random.Random, where: list[tuple[str, str]], count: int, folder: Path, method: str = ""
) -> None:
    """Run `count` cells, or more until one of them strikes.

    Raises:
        AssertionError: Something was lost; or nothing was struck in many.
    """
    struck = False
    for number in range(count + 30):
        if number >= count and struck:
            return
        struck |= random_cell(rng, where, method).run(folder / str(number))
    assert struck, "nothing was struck"


def method_of(point: str) -> str:
    """Return the start method whose workers come to a point, the usual one where they all do."""
    return "spawn" if point == "newborn.exec-tied" else "forkserver"


def strike_each(point: str, role: str, folder: Path, method: str = "") -> None:
    """Run the cells of a point and a role: {kill, stop} among 1, 2 and 4 workers.

    Raises:
        AssertionError: Something was lost; or one of the actions has never struck.
    """
    rng = random.Random(f"{point} {role}")
    method = method or method_of(point)
    for action in ACTIONS:
        struck = []
        for workers in WIDTHS:
            cell = Cell(point, role, action, workers, method, rng.randint(1, 2))
            struck.append(cell.run(folder / f"{action}{workers}"))
        # With one worker there are no thieves; and who leaps over whom is a matter of luck.
        again = 0
        while not any(struck[1:]):
            again += 1
            assert again <= 20, f"never reached: {point} as {role}"
            cell = Cell(point, role, action, 2 * (1 + again % 2), method)
            struck.append(cell.run(folder / f"{action}-again{again}"))
