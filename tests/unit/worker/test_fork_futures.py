"""Futures of children: what `submit` gives in a task."""

from __future__ import annotations

import concurrent.futures as cf
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import forkfuture
from tests.support.forking import root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._worker.forkfuture import ForkFuture


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    with root() as running:
        yield running


def submit(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ForkFuture[Any]:
    return forkfuture.submit(fn, args, kwargs)


def fib(n: int) -> int:
    if n < 2:
        return n
    a = submit(fib, n - 1)
    second = fib(n - 2)
    first: int = a.result()
    return first + second


def fail() -> None:
    raise OSError("on purpose")


def test_fork_future_result_runs_the_child_here(run: Callable[..., Any]) -> None:
    """Waiting for the result on the only worker there is ends."""
    assert run(fib, 12) == 144


def test_fork_future_wait_and_as_completed_join(run: Callable[..., Any]) -> None:
    """The standard library's functions for several futures help as well."""

    def parent() -> None:
        futures = [submit(pow, 2, n) for n in range(5)]
        assert not futures[0].done()
        done, pending = cf.wait(futures, timeout=0.001)
        assert (len(done), len(pending)) == (5, 0)
        assert all(f.done() and not f.running() and not f.cancelled() for f in futures)
        more = [submit(pow, 3, n) for n in range(3)]
        assert sorted(f.result() for f in cf.as_completed(more)) == [1, 3, 9]

    run(parent)


def test_fork_future_of_an_older_sibling_may_be_waited_for(run: Callable[..., Any]) -> None:
    """A child that got the future of an older one waits for it, in either order of joins."""

    def parent() -> None:
        for order in (1, -1):
            older = submit(pow, 2, 3)
            younger = submit(lambda f: f.result() + 1, older)
            assert [f.result() for f in (older, younger)[::order]] == [8, 9][::order]

    run(parent)


def test_fork_future_error_is_raised_and_kept(run: Callable[..., Any]) -> None:
    """`exception` gives it, `result` raises it, and it fails the task no more."""

    def parent() -> None:
        future = submit(fail)
        problem = future.exception()
        assert isinstance(problem, OSError)
        with pytest.raises(OSError, match="on purpose"):
            future.result()

    run(parent)


def test_fork_future_that_nobody_reads_fails_the_task(run: Callable[..., Any]) -> None:
    """A child stays a child: its failure is not lost."""

    def parent() -> None:
        submit(fail)

    with pytest.raises(OSError, match="on purpose"):
        run(parent)


def test_fork_future_cancel_prevents_the_start(run: Callable[..., Any]) -> None:
    """An unstarted child that is cancelled never runs."""
    ran: list[int] = []

    def parent() -> None:
        future, other = submit(ran.append, 1), submit(ran.append, 2)
        assert future.cancel()
        assert future.cancel()
        assert future.cancelled()
        assert future.done()
        with pytest.raises(cf.CancelledError):
            future.result()
        other.result()
        assert not other.cancel()

    run(parent)
    assert ran == [2]


def test_fork_future_callbacks_are_called_once(run: Callable[..., Any]) -> None:
    """A callback comes with the outcome; one that is added later at once."""
    seen: list[int] = []

    def parent() -> None:
        future = submit(pow, 2, 5)
        future.add_done_callback(lambda f: seen.append(f.result()))
        assert seen == []
        assert future.result() == 32
        assert seen == [32]
        future.add_done_callback(lambda f: seen.append(f.result() + 1))
        assert seen == [32, 33]
        late = submit(pow, 2, 6)
        late.add_done_callback(lambda f: seen.append(f.result()))
        forkfuture.finish_callbacks()
        assert seen == [32, 33, 64]

    run(parent)
