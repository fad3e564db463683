"""All ways to place n queens: a search whose branches are very uneven, with `scope`.

Prints the number of placings for boards of 6 to 9. A scope waits for its children whatever happens;
after it each handle gives its result.
"""

from __future__ import annotations

import mpsched


def is_safe(rows: tuple[int, ...], column: int) -> bool:
    """Whether a queen in the next row, in this column, is attacked by none above."""
    row = len(rows)
    return all(
        other != column and abs(other - column) != row - above for above, other in enumerate(rows)
    )


def plain(n: int, rows: tuple[int, ...]) -> int:
    """Count the placings that begin with `rows`."""
    if len(rows) == n:
        return 1
    return sum(plain(n, (*rows, column)) for column in range(n) if is_safe(rows, column))


def count(n: int, rows: tuple[int, ...] = ()) -> int:
    """The same, with children for the first three rows."""
    if len(rows) == 3:
        return plain(n, rows)
    with mpsched.scope() as s:
        boards = [(*rows, column) for column in range(n) if is_safe(rows, column)]
        children = [s.spawn(count, n, board) for board in boards]
    return sum(child.result() for child in children)


def main() -> None:
    """Count for some boards; `parallel.map` spreads nothing here that `count` would not."""
    with mpsched.WorkStealingExecutor() as ex:
        for n in range(6, 10):
            print(f"{n} queens: {ex.run(count, n)} placings")


if __name__ == "__main__":
    main()
