"""Arrays: private to each task, shared by all, or sent once. Needs the extra `numpy`.

Prints three things: an argument that a task changes stays as it was here; a shared array holds what
all tasks wrote into it; a large table is pickled once, however many tasks read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import mpsched

if TYPE_CHECKING:
    from numpy.typing import NDArray


def clipped_mean(values: NDArray[np.float64]) -> float:
    """Change the argument in place: it is this task's own, at any size."""
    np.clip(values, 0.25, 0.75, out=values)
    return float(values.mean())


def fill_row(picture: NDArray[np.int64], row: int) -> None:
    """Write into memory that all workers and the parent see."""
    picture[row] = row * np.arange(picture.shape[1])


def look_up(table: dict[int, str], key: int) -> str:
    """Read something large that was sent once."""
    return table[key]


def main() -> None:
    """Show the three ways."""
    with mpsched.WorkStealingExecutor(2) as ex:
        values = np.random.default_rng(1).random(1_000_000)
        mean = ex.submit(clipped_mean, values).result()
        print(f"private: mean {mean:.3f} in the task; largest here is still {values.max():.3f}")

        picture = mpsched.shared_array((8, 8), dtype=np.int64, fill=0)
        ex.run(fill_row, picture, 0)
        for _ in ex.map(fill_row, [picture] * 7, range(1, 8)):
            pass
        print("shared: a multiplication table, its last row", picture[7].tolist())

        with ex.share({key: str(key) for key in range(100_000)}) as table:
            print("sent once:", *ex.map(look_up, [table] * 4, (1, 10, 100, 1000)))


if __name__ == "__main__":
    main()
