"""A signal handler that raises in the middle of a join takes nothing along that others stand on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import away, hot, together
from mpsched._worker.hot import spawn
from mpsched._worker.together import join_all
from tests.support.forking import Elsewhere, root
from tests.support.lines import apart, before_lines

if TYPE_CHECKING:
    from collections.abc import Callable


class TimeIsUpError(Exception):
    """What the handler raises."""


def time_is_up() -> None:
    """Be the handler."""
    raise TimeIsUpError


def plainly(fn: Any, x: Any, rest: tuple[Any, ...]) -> int:
    """Run a stolen child as another worker would, on a stack of its own."""
    leaves: int = {tree: 2, wide_tree: 3}[fn] ** rest[-1]
    return leaves


def tree(elsewhere: Elsewhere, rng: random.Random, depth: int) -> int:
    """Return the leaves of a tree of which others take some children."""
    if not depth:
        return 1
    left = spawn(tree, elsewhere, rng, depth - 1)
    if rng.random() < 0.6:
        elsewhere.take(plainly)
    return tree(elsewhere, rng, depth - 1) + left.join()


def wide_tree(elsewhere: Elsewhere, rng: random.Random, depth: int) -> int:
    """The same with `join_all`, and three children each."""
    if not depth:
        if rng.random() < 0.4:
            elsewhere.take(plainly)
        return 1
    return sum(join_all(*[(wide_tree, elsewhere, rng, depth - 1)] * 3))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("code", "tree", "depth", "leaves"),
    [(hot._join, tree, 4, 16), (together.join_all, wide_tree, 2, 9)],
)
def test_fork_exception_before_each_bytecode_of_a_join(
    code: Callable[..., Any], tree: Callable[..., int], depth: int, leaves: int, seed: int
) -> None:
    """The tree that was stopped is over; the next one in the same task is whole, and so is the stack."""
    elsewhere = Elsewhere()

    def parent(at: int) -> int:
        with before_lines(code, {at: time_is_up}, "opcode") as seen, suppress(TimeIsUpError):
            assert apart(lambda: tree(elsewhere, random.Random(seed), depth)) == leaves
        assert tree(elsewhere, random.Random(seed + 100), depth) == leaves
        return seen.count

    with root(elsewhere) as run:
        run(
            parent, -1
        )  # CPython 3.12 shows the bytecodes of calls after the first that asks for them
        count = run(parent, -1)
        for at in range(count):
            run(parent, at)
    assert count > 40
    assert elsewhere.taken > 0


def test_fork_lost_floor_is_put_back() -> None:
    """What a join had in its hand when the exception came is there again for whoever looks next."""
    elsewhere = Elsewhere()

    def parent() -> int:
        hot.stack.clear()  # as after the exception
        kept = away.newest()
        assert isinstance(kept, hot.Floor)
        hot.stack.clear()
        handles = [spawn(abs, -n) for n in range(4)]
        assert elsewhere.take(lambda fn, x, _rest: fn(x))
        assert elsewhere.taken == 1
        return sum(handle.join() for handle in handles)

    with root(elsewhere) as run:
        assert run(parent) == 6
