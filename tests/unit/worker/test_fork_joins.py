"""Joining children that nobody has taken: orders, values, failures, what is left open."""

from __future__ import annotations

import gc
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import away, hot
from mpsched._worker.hot import spawn
from tests.support.forking import Elsewhere, fail_if_odd, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    with root() as running:
        yield running


def fib(n: int) -> int:
    if n < 2:
        return n
    a = spawn(fib, n - 1)
    return fib(n - 2) + a.join()


def test_fork_fib_has_its_value(run: Callable[..., Any]) -> None:
    """Spawn and join compute what plain calls do."""
    assert run(fib, 15) == 610


@pytest.mark.parametrize("order", ["lifo", "fifo", "random"])
def test_fork_joins_in_any_order_give_the_values(run: Callable[..., Any], order: str) -> None:
    """The order of the joins changes no value, and joining again gives the same."""

    def parent() -> None:
        handles = [spawn(fib, n % 7) for n in range(300)]
        pairs = list(enumerate(handles))
        if order == "lifo":
            pairs.reverse()
        elif order == "random":
            random.Random(3).shuffle(pairs)
        for n, handle in pairs:
            assert handle.join() == fib(n % 7)
        for n, handle in pairs:
            assert handle.done()
            assert handle.result() == handle.join() == fib(n % 7)

    run(parent)


def test_fork_values_are_the_very_objects(run: Callable[..., Any]) -> None:
    """A child that runs here gets its arguments, and gives its value, without a copy."""
    thing: list[int] = []

    def parent() -> None:
        assert spawn(lambda x: x, thing).join() is thing

    run(parent)


def test_fork_several_arguments_arrive(run: Callable[..., Any]) -> None:
    """Positional arguments beyond the first reach the function."""

    def parent() -> None:
        assert spawn(lambda *args: args, 1, 2, 3).join() == (1, 2, 3)

    run(parent)


def test_fork_open_children_are_finished_before_their_task_ends(run: Callable[..., Any]) -> None:
    """A child that leaves children open is joined only when they have run, newest first."""
    ran: list[int] = []

    def careless(x: int) -> int:
        for i in range(3):
            spawn(ran.append, i)
        return x

    def parent() -> None:
        first = spawn(careless, 1)
        second = spawn(careless, 2)
        assert first.join() == 1
        assert ran == [2, 1, 0]
        assert second.join() == 2
        assert ran == [2, 1, 0] * 2
        spawn(careless, 3)

    run(parent)
    assert ran == [2, 1, 0] * 3


def test_fork_first_failure_in_spawn_order_is_raised_with_its_siblings(
    run: Callable[..., Any],
) -> None:
    """Of children that nobody joined the first failure is the task's, the others hang on it."""

    def careless() -> int:
        for i in range(6):
            spawn(fail_if_odd, i)
        return 0

    with pytest.raises(ValueError) as caught:
        run(careless)
    assert caught.value.args == (1,)
    assert [str(one) for one in caught.value.siblings] == ["3", "5"]  # type: ignore[attr-defined]
    assert len(caught.value.__notes__) == 2


def test_fork_failures_of_open_children_hang_on_the_tasks_own(run: Callable[..., Any]) -> None:
    """A task that raises keeps its own error; its open children run, and their failures hang on it."""
    ran: list[int] = []

    def child(i: int) -> None:
        ran.append(i)
        raise KeyError(i)

    def parent() -> None:
        spawn(child, 1)
        raise OSError("own")

    with pytest.raises(OSError, match="own") as caught:
        run(parent)
    assert ran == [1]
    assert [repr(one) for one in caught.value.siblings] == ["KeyError(1)"]  # type: ignore[attr-defined]


def test_fork_failure_that_was_caught_is_not_raised_again(run: Callable[..., Any]) -> None:
    """Who joins and handles a failure has handled it; asking again raises the same object."""

    def parent() -> str:
        newest_last = [spawn(fail_if_odd, 1), spawn(fail_if_odd, 3)]
        for handle in (*newest_last, *reversed(newest_last)):
            with pytest.raises(ValueError) as first:
                handle.join()
            with pytest.raises(ValueError) as second:
                handle.join()
            assert first.value is second.value
            assert handle.done()
        return "well"

    assert run(parent) == "well"


def test_fork_a_child_that_exits_fails_its_join_only(run: Callable[..., Any]) -> None:
    """SystemExit, KeyboardInterrupt and StopIteration of a child come out of its join."""

    def leave(kind: type[BaseException]) -> None:
        raise kind("on purpose")

    def parent() -> None:
        for kind in (SystemExit, KeyboardInterrupt, StopIteration, IndexError, GeneratorExit):
            handle = spawn(leave, kind)
            with pytest.raises(kind, match="on purpose"):
                handle.join()

    run(parent)


def test_fork_handle_cannot_be_pickled(run: Callable[..., Any]) -> None:
    """A handle refuses to be pickled, and says what to do instead."""

    def parent() -> None:
        handle = spawn(fib, 3)
        with pytest.raises(TypeError, match="pass its value"):
            pickle.dumps(handle)
        assert "fib, waiting" in repr(handle)
        assert "fib, waiting" in repr(spawn(fib, n=1))
        handle.join()
        assert "done" in repr(handle)

    run(parent)


def test_fork_a_child_that_joins_itself_is_told(run: Callable[..., Any]) -> None:
    """A join that could never end is an error, at once."""
    own: list[hot.Handle[Any]] = []

    def child(x: int) -> int:
        value: int = own[0].join()
        return value + x

    def parent() -> None:
        own.append(spawn(child, 1))
        spawn(fib, 1)  # so that the first is not the newest
        with pytest.raises(RuntimeError, match="joined while it runs"):
            own[0].join()

    run(parent)


def test_fork_a_stranger_that_joins_is_told(run: Callable[..., Any]) -> None:
    """Where a child joins its elder sibling, which its parent spawned, somebody gets an error."""

    def parent() -> None:
        elder = spawn(fib, 5)
        younger = spawn(lambda handle: handle.join(), elder)
        assert younger.join() == 5

    with pytest.raises(RuntimeError, match="had not spawned it"):
        run(parent)


def test_fork_finalizer_that_spawns_is_served(run: Callable[..., Any]) -> None:
    """An object that spawns and joins when it is collected, in the middle of anything, harms nothing."""
    seen: list[int] = []

    class Finalized:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(spawn(fib, 4).join())

    def child(i: int) -> int:
        Finalized()
        gc.collect(0)
        return i

    def parent() -> int:
        handles = [spawn(child, i) for i in range(50)]
        return sum(h.join() for h in handles)

    assert run(parent) == sum(range(50))
    assert seen == [3] * 50


@pytest.mark.parametrize("pinned", [False, True])
def test_fork_children_that_left_the_stack_and_were_not_taken_run_here(pinned: bool) -> None:
    """A child in the helper's hands, or one that cannot be pickled, is run by whoever joins it."""
    ran: list[int] = []

    def take_away() -> None:
        with away.fork_lock:
            record = away.leave()
            assert record is not None
            if pinned:
                record.kind = away.PINNED

    def parent() -> None:
        handles = [spawn(ran.append, i) for i in range(4)]
        take_away()
        take_away()
        assert handles[1].join() is None
        assert ran == [1]
        handles[3].join()

    with root(Elsewhere()) as run_root:
        run_root(parent)
    # Private ones newest first, then what is away, oldest first.
    assert ran == [1, 3, 2, 0]


def test_fork_cancelled_child_never_starts(run: Callable[..., Any]) -> None:
    """A child that is cancelled before its start is not called; its join raises what was given."""
    ran: list[int] = []

    def parent() -> None:
        first, second = spawn(ran.append, 1), spawn(ran.append, 2)
        assert away.cancel(first, OSError("cancelled"))
        second.join()
        assert not away.cancel(second, OSError("too late"))
        with pytest.raises(OSError, match="cancelled"):
            first.join()

    run(parent)
    assert ran == [2]
