"""Scopes, with children that nobody has taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker.hot import Handle, spawn
from mpsched._worker.scopes import Scope, abandon
from mpsched.errors import TaskCancelled
from tests.support.forking import double, fail_if_odd, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    with root() as running:
        yield running


def test_scope_ends_when_its_children_have(run: Callable[..., Any]) -> None:
    """After the block every handle has its value."""

    def parent() -> list[int]:
        with Scope() as scope:
            handles = [scope.spawn(double, i) for i in range(5)]
        assert all(h.done() for h in handles)
        return [h.result() for h in handles]

    assert run(parent) == [0, 2, 4, 6, 8]


def test_scope_failure_cancels_what_has_not_started(run: Callable[..., Any]) -> None:
    """The first failure ends the scope; siblings that have not started never do."""
    ran: list[int] = []

    def child(i: int) -> None:
        ran.append(i)
        if i == 3:
            raise ValueError(i)

    def parent() -> None:
        handles: list[Handle[None]] = []
        with pytest.raises(ValueError, match="3"), Scope() as scope:
            handles += [scope.spawn(child, i) for i in range(5)]
        assert ran == [0, 1, 2, 3]
        with pytest.raises(TaskCancelled):
            handles[4].join()

    run(parent)


def test_scope_block_that_raises_cancels_its_children(run: Callable[..., Any]) -> None:
    """The block's own error wins; no child starts after it."""
    ran: list[int] = []

    def parent() -> None:
        with Scope() as scope:
            for i in range(3):
                scope.spawn(ran.append, i)
            raise KeyError("block")

    with pytest.raises(KeyError):
        run(parent)
    assert ran == []


def test_scope_of_failures_that_ran_already_keeps_the_order(run: Callable[..., Any]) -> None:
    """Of failures at the end the first in spawn order is raised, the others are its siblings."""

    def parent() -> None:
        with Scope() as scope:
            early = [scope.spawn(fail_if_odd, i) for i in (1, 3)]
            # Somebody runs them without looking at the outcome.
            from mpsched._worker import away

            for handle in early:
                with away.fork_lock:
                    record = away.Away(away.INLINE, handle._fn, handle._x)
                    handle._fn, handle._x = record, None
                record.run()

    with pytest.raises(ValueError) as caught:
        run(parent)
    assert caught.value.args == (1,)
    assert [one.args for one in caught.value.siblings] == [(3,)]  # type: ignore[attr-defined]


def test_scope_failure_that_was_handled_is_not_raised_again(run: Callable[..., Any]) -> None:
    """Who joins in the block and catches the failure has handled it."""

    def parent() -> str:
        with Scope() as scope:
            handle = scope.spawn(fail_if_odd, 1)
            with pytest.raises(ValueError):
                handle.join()
        return "well"

    assert run(parent) == "well"


def test_scope_group_raises_all_failures(run: Callable[..., Any]) -> None:
    """With `group=True` an ExceptionGroup has the failures."""

    def parent() -> None:
        with Scope(group=True) as scope:
            scope.spawn(fail_if_odd, 1)

    with pytest.raises(ExceptionGroup) as caught:
        run(parent)
    assert [repr(one) for one in caught.value.exceptions] == ["ValueError(1)"]


def test_scope_spawns_only_inside_its_block(run: Callable[..., Any]) -> None:
    """A scope that has not begun, or has ended, refuses to spawn, and to be used twice."""

    def parent() -> None:
        scope = Scope()
        with pytest.raises(RuntimeError, match="block"):
            scope.spawn(double, 1)
        with scope:
            scope.spawn(double, 1)
        with pytest.raises(RuntimeError, match="block"):
            scope.spawn(double, 1)
        with pytest.raises(RuntimeError, match="another"), scope:
            pass

    run(parent)


def test_scopes_nest(run: Callable[..., Any]) -> None:
    """An inner scope waits for its own children only."""
    ran: list[str] = []

    def parent() -> None:
        with Scope() as outer:
            outer.spawn(ran.append, "outer")
            with Scope() as inner:
                inner.spawn(ran.append, "inner")
            assert ran == ["inner"]
        assert ran == ["inner", "outer"]

    run(parent)


def test_abandon_returns_failures_in_the_order_given(run: Callable[..., Any]) -> None:
    """Handles may come in any order; what was cancelled by this is no failure."""

    def parent() -> None:
        handles = [spawn(fail_if_odd, i) for i in range(4)]
        assert abandon(handles[::-1]) == []
        for handle in handles:
            with pytest.raises(TaskCancelled):
                handle.join()

    run(parent)
