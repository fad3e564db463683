"""One cell of the product of kills: who is struck where, how, in a pool of how many workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mpsched.testing
from mpsched.testing import Fault, FaultPlan
from tests.support.crash_scene import Scene
from tests.support.pools import pool

if TYPE_CHECKING:
    from collections.abc import Iterable

ROUNDS: Final = 6
"""Of work, until the fault has struck: who steals from whom is nobody's plan."""

_ROW = re.compile(r"^\| `([a-z.-]+)` \| ([a-z, ]+) \| .+ \|$", re.MULTILINE)

_DURING: Final[dict[str, Fault]] = {
    "ring.repair.begun": Fault("ring.take.dirty", "kill", role="owner", hit=5),
    "ring.repair.undone": Fault("ring.take.dirty", "kill", role="owner", hit=5),
    "outcome.lost": Fault("steal.running", "kill", role="thief"),
}
"""What has to have happened before a point is reached at all."""

_WORK: Final[dict[str, dict[str, Any]]] = {
    "template.reaped": {"poison": True},
    "limit.ended": {"late": True},
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
        """Work until the fault has struck, then check everything; False if it never did."""
        folder.mkdir()
        fault = Fault(self.point, self.action, role=self.role, hit=self.hit, seconds=0.1)
        before = [_DURING[self.point]] if self.point in _DURING else []
        plan = FaultPlan(*before, fault)
        try:
            with plan, pool(self.workers, self.method, **_OPTIONS.get(self.point, {})) as ex:
                scene = Scene(ex, folder)
                for _ in range(ROUNDS):
                    scene.work(**_WORK.get(self.point, {}))
                    if self._struck(plan):
                        break
                scene.check(plan.struck)
        except BaseException as problem:
            problem.add_note(f"{self}; struck: {plan.struck}")
            raise
        return self._struck(plan)

    def _struck(self, plan: FaultPlan) -> bool:
        return any(
            (strike.point, strike.action) == (self.point, self.action)
            and self.role in {None, strike.role}
            for strike in plan.struck
        )
