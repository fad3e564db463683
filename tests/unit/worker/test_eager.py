"""Children where no task runs: at the spawn, in the calling thread, with a worker's results."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from typing import Any

import pytest

from mpsched._worker.hot import spawn
from mpsched.errors import RecursionTooDeep


def fail(error: BaseException) -> None:
    raise error


def test_eager_runs_at_the_spawn_in_this_thread() -> None:
    """With every kind of arguments; the handle says so, and gives the value as often as asked."""
    seen: list[Any] = []
    here = threading.get_ident()

    def note(*args: Any, **kwargs: Any) -> int:
        assert threading.get_ident() == here
        seen.append((args, kwargs))
        return len(seen)

    handles = [spawn(note), spawn(note, 1), spawn(note, 1, 2), spawn(note, 1, key=2)]
    assert seen == [((), {}), ((1,), {}), ((1, 2), {}), ((1,), {"key": 2})]
    assert [handle.done() for handle in handles] == [True] * 4
    assert [handle.join() for handle in handles] == [1, 2, 3, 4]
    assert [handle.result() for handle in reversed(handles)] == [4, 3, 2, 1]


def test_eager_recursion_gives_what_the_plain_one_does() -> None:
    """Nested spawns, joined in any order."""

    def fib(n: int) -> int:
        if n < 2:
            return n
        first, second = spawn(fib, n - 1), spawn(fib, n - 2)
        return first.join() + second.join()

    assert fib(12) == 144


def test_eager_error_is_raised_at_the_join() -> None:
    """The very exception, each time, with a traceback that does not grow and has no frame of ours."""
    error = ValueError("wanted")
    handle = spawn(fail, error)
    lengths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="wanted") as caught:
            handle.join()
        assert caught.value is error
        lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len(set(lengths)) == 1
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == "fail"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), StopIteration(1)])
def test_eager_every_error_waits_for_the_join(error: BaseException) -> None:
    """As in a worker, where `sys.exit` is the child's own affair."""
    handle = spawn(fail, error)
    with pytest.raises(type(error)):
        handle.join()


def test_eager_keyboard_interrupt_is_the_users() -> None:
    """Ctrl-C is meant for the program, not for a join that may never come."""
    with pytest.raises(KeyboardInterrupt):
        spawn(fail, KeyboardInterrupt())


def test_eager_leftover_failures_are_the_spawners() -> None:
    """A child that nobody joined fails the one that spawned it: the first, the others as siblings."""
    errors = [ValueError("first"), KeyError("second")]

    def parent() -> str:
        for error in errors:
            spawn(fail, error)
        spawn(str, 1)
        return "not to be seen"

    handle = spawn(parent)
    with pytest.raises(ValueError, match="first") as caught:
        handle.join()
    assert caught.value is errors[0]
    assert caught.value.siblings == (errors[1],)  # type: ignore[attr-defined]
    assert caught.value.__notes__ == ["also failed: KeyError: 'second'"]


def test_eager_own_failure_comes_before_leftover_ones() -> None:
    """What the function raised itself is raised; what it left open are siblings."""
    left = KeyError("left")

    def parent() -> None:
        spawn(fail, left)
        raise ValueError("own")

    with pytest.raises(ValueError, match="own") as caught:
        spawn(parent).join()
    assert caught.value.siblings == (left,)  # type: ignore[attr-defined]


def test_eager_failure_that_was_joined_is_over() -> None:
    """Who catches it at the join has dealt with it."""

    def parent() -> str:
        handle = spawn(fail, ValueError("caught"))
        try:
            handle.join()
        except ValueError:
            return "fine"
        return "no error"

    assert spawn(parent).join() == "fine"


def test_eager_failure_that_nobody_joins_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """At the top there is no task that could fail for it."""
    spawn(fail, ValueError("unseen"))
    gc.collect()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "unseen"
    caplog.clear()
    handle = spawn(fail, ValueError("seen"))
    with pytest.raises(ValueError, match="seen"):
        handle.join()
    del handle
    gc.collect()
    assert caplog.records == []


def test_eager_chains_may_be_thousands_deep() -> None:
    """The limits are raised for the outermost child, and put back; beyond them an error says what to do."""

    def chain(n: int) -> int:
        return 0 if n == 0 else 1 + spawn(chain, n - 1).join()

    before = sys.getrecursionlimit()
    assert spawn(chain, 2_000).join() == 2_000
    assert sys.getrecursionlimit() == before
    with pytest.raises(RecursionTooDeep, match="resumable"):
        spawn(chain, 1_000_000).join()
    assert sys.getrecursionlimit() == before


def test_eager_threads_have_children_of_their_own() -> None:
    """A thread's children run in it, and what one of them leaves open is no other thread's affair."""
    found: list[Any] = []

    def parent() -> int:
        spawn(fail, ValueError("mine"))
        other = threading.Thread(target=lambda: found.append(spawn(threading.get_ident).join()))
        other.start()
        other.join()
        return threading.get_ident()

    with pytest.raises(ValueError, match="mine"):
        spawn(parent).join()
    assert len(found) == 1
    assert found[0] != threading.get_ident()


def test_eager_refuses_what_cannot_be_called() -> None:
    """At the spawn, where the mistake is."""
    with pytest.raises(TypeError, match="function"):
        spawn(3, 4)  # type: ignore[arg-type]


def test_eager_runaway_recursion_of_one_function_is_its_own() -> None:
    """Only a nest of children is told to be resumable."""

    def runaway(n: int) -> int:
        return runaway(n + 1)

    with pytest.raises(RecursionError) as caught:
        spawn(runaway, 0).join()
    assert type(caught.value) is RecursionError
