"""The tree of folds."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from mpsched.cli.reduce import FAN_IN, Fold, Tree


def folded(
    values: list[bytes | None], rng: random.Random, *, early: bool
) -> tuple[bytes | None, list[tuple[bytes, ...]]]:
    """Fold with joining as the operation; inputs and folds end in a random order.

    Args:
        values: One per input; None: it failed.
        rng: Decides what ends next.
        early: Whether the number of inputs is known before any has ended.
    """
    tree = Tree()
    made: list[tuple[bytes, ...]] = []
    open_folds: list[Fold] = []
    waiting = list(enumerate(values))
    told = False
    while True:
        if not told and (early or not waiting):
            told = True
            open_folds += tree.end(len(values))
        if not waiting and not open_folds:
            break
        if waiting and (not open_folds or rng.random() < 0.5):
            i, value = waiting.pop(rng.randrange(len(waiting)))
            open_folds += tree.add(0, i, value)
            continue
        fold = open_folds.pop(rng.randrange(len(open_folds)))
        value = b"(" + b"".join(fold.parts) + b")" if len(fold.parts) > 1 else fold.parts[0]
        if fold.last:
            assert not open_folds
            assert not waiting
            return value, sorted(made)
        made.append(fold.parts)
        open_folds += tree.add(fold.level, fold.index, value)
    assert tree.is_empty
    return None, []


@given(
    st.integers(1, 3 * FAN_IN**2),
    st.integers(),
    st.sets(st.integers(0, 3 * FAN_IN**2)),
)
def test_reduce_tree_depends_on_the_inputs_alone(count: int, seed: int, failed: set[int]) -> None:
    """The same folds for every timing, in input order, each input once."""
    values = [None if i in failed else b"%d," % i for i in range(count)]
    rng = random.Random(seed)
    first, shape = folded(values, rng, early=False)
    for early in (False, True):
        assert folded(values, rng, early=early) == (first, shape)
    flat = b"" if first is None else first.replace(b"(", b"").replace(b")", b"")
    assert flat == b"".join(value for value in values if value is not None)


def test_reduce_groups_are_of_eight() -> None:
    """Groups by position, then groups of groups."""
    values: list[bytes | None] = [b"%d," % i for i in range(17)]
    result, _ = folded(values, random.Random(1), early=True)
    assert result == b"((0,1,2,3,4,5,6,7,)(8,9,10,11,12,13,14,15,)16,)"


def test_reduce_one_input_needs_no_fold() -> None:
    """The answer is encoded in a fold of one value."""
    tree = Tree()
    assert tree.add(0, 0, b"v") == []
    (fold,) = tree.end(1)
    assert (fold.parts, fold.last) == ((b"v",), True)


def test_reduce_memory_does_not_grow_with_the_inputs() -> None:
    """Values are held by height of the tree, not by number of inputs."""
    tree = Tree()
    for i in range(5000):
        folds = tree.add(0, i, b"v")
        while folds:
            fold = folds.pop()
            folds += tree.add(fold.level, fold.index, b"v")
    assert sum(len(children) for children in tree._children.values()) < 8 * 6
