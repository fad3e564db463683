"""The measured programs: plain, forking and cut by hand, they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpsched
from benchmarks import kernels as k, suite_forkjoin
from benchmarks.harness import Run


def parts(calls: list[tuple[Any, ...]]) -> Any:
    return sum(k.call(call) for call in calls)


def test_kernels_fib_and_queens_agree() -> None:
    """Three forms each."""
    assert k.fib_plain(12) == k.fib(12) == k.fib_cut(17) - 1453 == parts(k.fib_parts(12)) == 144
    assert k.queens_plain(6) == k.queens(6) == parts(k.queens_parts(6)) == 4


def test_kernels_fib_spawns_are_counted_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divisor of the cost per spawn."""
    spawned = 0
    real = mpsched.spawn

    def spawn(fn: Any, *args: Any) -> Any:
        nonlocal spawned
        spawned += 1
        return real(fn, *args)

    monkeypatch.setattr(mpsched, "spawn", spawn)
    k.fib(14)
    assert spawned == k.fib_plain(15) - 1
    assert {n: k.fib_plain(n + 1) - 1 for n in (22,)} == {22: k.FIB_SPAWNS[22]}
    assert k.FIB_SPAWNS[27] == 317_811 - 1


def test_kernels_trees_agree() -> None:
    """A few subtrees of T3, as children and plainly; the parts cover the root's children once."""
    some = k.T3.first()[:3]
    assert sum(map(k.uts_each, some)) == k.uts_some(some)
    assert sum(len(call[1]) for call in k.uts_parts()) == k.T3.b


def test_kernels_pictures_and_areas_agree() -> None:
    """The set's rows, and the integral, which is known."""
    assert k.mandel_plain(24) == k.mandel(24) == parts(k.mandel_parts(24, 5))
    plain = k.integrate_plain(*k.interval(0.0, 20.0))
    assert abs(plain / (20**4 / 4 + 20**2 / 2) - 1) < 1e-4
    assert abs(k.integrate(*k.interval(0.0, 20.0)) / plain - 1) < 1e-9
    assert abs(parts(k.integrate_parts(20.0)) / plain - 1) < 1e-4


def test_kernels_products_agree() -> None:
    """Blocks, halves and strips."""
    rng = np.random.default_rng(1)
    a, b = rng.random((256, 256)), rng.random((256, 256))
    for fn in (k.product_plain, k.product):
        out = np.zeros((256, 256))
        fn(a, b, out)
        assert np.allclose(out, a @ b)
    assert np.allclose(k.product_part(a[:128], b), a[:128] @ b)


def test_kernels_skynet_sums() -> None:
    """All leaves, each once."""
    assert k.skynet(0, 1000) == 1000 * 999 // 2


def test_suite_forkjoin_reaches_for_every_figure() -> None:
    """Each figure that is asked for; the cost of a spawn on one version only."""
    targets = [target for one in suite_forkjoin.SUITE.measures for target in one.targets]
    assert len(targets) == 12 + len(suite_forkjoin.PER_SPAWN)


def test_speed_up_refuses_wrong_results() -> None:
    """A system that computes something else is no faster; the sample fails."""
    with pytest.raises(AssertionError, match="instead of"):
        suite_forkjoin.speed_up(
            Run("completes at once"), lambda: 1, forking=lambda: 2, parts=[(int,)], join=sum
        )
