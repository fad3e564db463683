"""A tree that counts itself: a run table with a byte for each node says that each ran exactly once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mpsched
from tests.support import fork_calls as calls, pools

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES_OF_T3 = 4_112_897
WIDTH_OF_T3 = 2_000
# Scopes nest through C on 3.12, which does not nest as deep as T3 is.
ORDERS = ("lifo", "fifo", "together", *([] if sys.version_info[:2] == (3, 12) else ["scope"]))


def count(workers: int, width: int, order: str, keys: Any) -> int:
    """Count a tree on some workers; returns how many children were stolen."""
    table = mpsched.shared_array(len(keys), "u1")
    with pools.pool(workers) as ex:
        found = ex.submit(calls.uts_all, width, order, keys, table, workers > 1).result(900)
        stolen = ex.stats().children_run
    assert found == len(keys)
    assert (np.asarray(table) == 1).all()
    return stolen


@pytest.mark.parametrize("order", ORDERS)
def test_fork_uts_small_tree_on_sixteen_workers(order: str) -> None:
    """More workers than cores, so that somebody is always asking; real steals."""
    keys = mpsched.shared_copy(np.array(calls.uts_keys(calls.root(42, 25)), dtype="u8"))
    assert count(16, 25, order, keys) > 0


@pytest.fixture(scope="module")
def t3() -> Iterator[Any]:
    """The keys of all nodes of T3 below its root, sorted; the root itself is no child."""
    keys = mpsched.shared_copy(np.array(calls.uts_keys(calls.root(42, WIDTH_OF_T3)), dtype="u8"))
    assert len(keys) == NODES_OF_T3 - 1
    yield keys
    del keys


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_fork_uts_t3_is_counted_exactly(t3: Any, workers: int, order: str) -> None:
    """4,112,897 nodes, 1,572 deep, with every kind of join."""
    stolen = count(workers, WIDTH_OF_T3, order, t3)
    assert (stolen > 0) == (workers > 1)
