"""Programs that run under a fault plan and fork workers, for test_crash_points.py.

With the start method `fork` a worker's modules are those of the program: it has crash points if the program
was loaded with them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.crash_cells import pairs, strike_each, strike_some

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORKED_PAIRS: Final = [
    (point, role)
    for point, role in pairs(("template", "newborn", "owner", "thief", "waiter", "helper"))
    if point != "newborn.exec-tied"
]
"""Who can be struck where, if workers are forked."""


def some(seed: str, count: str, folder: Path) -> None:
    """Run so many cells, chosen by a seed."""
    strike_some(random.Random(int(seed)), FORKED_PAIRS, int(count), folder, "fork")


def each(point: str, role: str, folder: Path) -> None:
    """Run all cells of a point and a role."""
    strike_each(point, role, folder, "fork")


def main(arguments: Sequence[str]) -> None:
    """Run one of the programs here, by name; say so when nothing was lost."""
    programs: dict[str, Callable[..., None]] = {"some": some, "each": each}
    name, *rest = arguments
    with tempfile.TemporaryDirectory() as folder:
        programs[name](*rest, Path(folder))
    print("done")


if __name__ == "__main__":
    main(sys.argv[1:])
