"""Tasks that draw random numbers, and so do their children."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import mpsched
from mpsched import parallel

if TYPE_CHECKING:
    from collections.abc import Generator

    from mpsched import WorkStealingExecutor


def draw() -> int:
    task = mpsched.current_task()
    assert task is not None
    time.sleep(0.0005)  # so that somebody takes some
    return task.rng.randrange(10**9)


def tree(depth: int, *, extra: int = 0) -> list[int]:
    """Draw before, between and after the children, which are joined in any order."""
    found = [draw() + extra]
    if depth:
        first = mpsched.spawn(tree, depth - 1)
        second = mpsched.spawn(tree, depth - 1, extra=0)
        found.append(draw())
        later = second.join()
        found += first.join() + later
    found.append(draw())
    return found


@mpsched.resumable
def suspended(depth: int) -> Generator[Any, Any, list[int]]:
    found = [draw()]
    if depth:
        handles = [mpsched.spawn(suspended, depth - 1), mpsched.spawn(tree, 1)]
        for handle in handles:
            found += yield handle
            found.append(draw())
    return found


def drawn(item: int) -> tuple[int, int]:
    return item, draw()


def add(a: list[int], b: list[int]) -> list[int]:
    return a + b


def listed(_item: int) -> list[int]:
    return [draw(), *mpsched.spawn(tree, 0).join()]


def loops(count: int) -> list[Any]:
    """Loops that split, as they like, and draw in the task before and after."""
    found: list[Any] = [draw()]
    found += parallel.map(drawn, range(count))
    found += parallel.map_reduce(listed, add, range(count), grain=3)
    found += mpsched.spawn(tree, 0).join()
    found.append(draw())
    return found


def scoped(ex: WorkStealingExecutor) -> list[Any]:
    """The other ways to have children."""
    with mpsched.scope() as s:
        handles = [s.spawn(tree, 1) for _ in range(4)]
    found: list[Any] = [handle.result() for handle in handles]
    found += mpsched.join_all((tree, 1), (tree, 0), (draw,))
    found.append(ex.submit(tree, 1).result())
    found += ex.map(tree, [0, 1, 0])
    found.append(draw())
    return found


def everything(ex: WorkStealingExecutor) -> list[Any]:
    return [tree(3), suspended(3), loops(12), scoped(ex)]
