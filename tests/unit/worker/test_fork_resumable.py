"""Generator tasks that suspend at their joins."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import hot, long
from mpsched._worker.hot import Handle, spawn
from mpsched._worker.resumable import resumable
from mpsched.errors import ArgumentChanged
from tests.support.forking import Elsewhere, root

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    with root() as running:
        yield running


@resumable
def chain(n: int) -> Generator[Handle[int], Any, int]:
    if not n:
        return 0
    below = yield spawn(chain, n - 1)
    return int(below) + 1


@resumable
def fib(n: int) -> Generator[Handle[int], Any, int]:
    if n < 2:
        return n
    a = spawn(fib, n - 1)
    b = spawn(fib, n=n - 2)
    second = yield b
    first = yield a
    return int(first) + int(second)


def plain_fib(n: int) -> int:
    return n if n < 2 else plain_fib(n - 1) + plain_fib(n - 2)


def test_resumable_chain_is_deeper_than_the_stack(run: Callable[..., Any]) -> None:
    """A chain far beyond the recursion limit gives its value."""
    levels = 20 * sys.getrecursionlimit()
    assert run(chain, levels) == levels


def test_resumable_tree_has_its_value(run: Callable[..., Any]) -> None:
    """Joins in both orders, arguments by position and by keyword."""
    assert run(fib, 12) == 144


def test_resumable_joins_children_that_are_not(run: Callable[..., Any]) -> None:
    """A yielded handle of a plain function, or of a finished child, is joined."""

    @resumable
    def parent() -> Generator[Handle[int], Any, list[Any]]:
        plain, done = spawn(plain_fib, 7), spawn(fib, 7)
        assert done.join() == 13
        return [(yield plain), (yield done), (yield done)]

    assert run(parent) == [13, 13, 13]


def test_resumable_error_goes_up_through_the_yields(run: Callable[..., Any]) -> None:
    """A failure arrives at the `yield` of the parent, which may handle it."""

    @resumable
    def fail(n: int) -> Generator[Handle[int], Any, int]:
        if not n:
            raise KeyError("bottom")
        try:
            return int((yield spawn(fail, n - 1)))
        except KeyError:
            if n == 3:
                return n
            raise

    @resumable
    def parent() -> Generator[Handle[int], Any, int]:
        handle = spawn(fail, 2)
        with pytest.raises(KeyError, match="bottom") as first:
            yield handle
        with pytest.raises(KeyError) as second:
            yield handle
        assert first.value is second.value
        return int((yield spawn(fail, 5)))

    assert run(parent) == 3


def test_resumable_open_children_are_finished_before_the_parent_goes_on(
    run: Callable[..., Any],
) -> None:
    """What a nested task leaves open has run when its value arrives; a failure there is its own."""
    ran: list[int] = []

    @resumable
    def careless(x: int) -> Generator[Handle[int], Any, int]:
        spawn(ran.append, x)
        return int((yield spawn(plain_fib, x)))

    @resumable
    def failing() -> Generator[Handle[int], Any, int]:
        spawn(int, "no number")
        yield spawn(plain_fib, 1)
        return 0

    @resumable
    def parent() -> Generator[Handle[int], Any, None]:
        other = spawn(careless, 4)
        assert (yield spawn(careless, 3)) == 2
        assert ran == [3]
        assert (yield other) == 3
        assert ran == [3, 4]
        with pytest.raises(ValueError, match="no number"):
            yield spawn(failing)

    run(parent)


def test_resumable_that_yields_something_else_is_told(run: Callable[..., Any]) -> None:
    """A value that is no handle is a TypeError at the yield."""

    @resumable
    def parent() -> Generator[Any, Any, None]:
        with pytest.raises(TypeError, match="yields handles"):
            yield 3
        with pytest.raises(TypeError, match="argument"):
            yield spawn(chain)

    run(parent)


def test_resumable_is_for_generator_functions() -> None:
    """A function without a yield is refused at its definition."""
    with pytest.raises(TypeError, match="plain_fib"):
        resumable(plain_fib)  # type: ignore[arg-type]


def test_resumable_children_may_be_taken() -> None:
    """Children that somebody takes meanwhile are waited for."""
    elsewhere = Elsewhere()

    @resumable
    def parent() -> Generator[Handle[int], Any, list[int]]:
        handles = [spawn(plain_fib, n) for n in range(6)]
        elsewhere.take(lambda fn, x, _rest: fn(x))
        elsewhere.take(lambda fn, x, _rest: fn(x))
        values = []
        for handle in handles:
            values.append((yield handle))  # noqa: PERF401 - a comprehension cannot yield
        return values

    with root(elsewhere) as run_root:
        assert run_root(parent) == [0, 1, 1, 2, 3, 5]
    assert elsewhere.taken == 2


@resumable
def append(values: list[int], n: int) -> Generator[Handle[int], Any, int]:
    values.append(n)
    if n:
        yield spawn(append, values if n == 2 else values[:], n - 1)
    return len(values)


def test_resumable_children_get_copies_without_nesting(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the debug mode `copy` depth costs no stack either, and a changed argument is an error."""
    monkeypatch.setattr(long, "copying", True)

    def careful(fn: Callable[..., Any], *args: Any) -> Any:
        hot.careful = True  # as spawns are in that mode
        return fn(*args)

    levels = 3 * sys.getrecursionlimit()
    assert run(careful, chain, levels) == levels
    assert run(careful, fib, 8) == 21
    with pytest.raises(ArgumentChanged, match="append changed its argument `values`"):
        run(careful, append, [], 2)
