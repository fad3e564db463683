"""A thief that parks, and a joiner that sleeps, while children come or end before any of their lines."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._worker import awaiting, away, hot, idle, long, publish, stolen
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._worker.worker import Worker


class SleepsError(Exception):
    """It would sleep now, without a token that ends it."""


@contextmanager
def home_of(quiet: QuietPool, index: int) -> Iterator[Worker]:
    """Make this process's fork-join that of worker `index`, which runs a root."""
    home = quiet.workers[index]
    span = quiet.entries.allocate(1)
    quiet.entries.write(span.start, quiet.task(), st.word(st.QUEUED, index))
    for phase in (st.CLAIMED, st.RUNNING):
        quiet.table.state[span.start] = st.word(phase, index)
    home.current = span.start
    long.enter(home)
    awaiting.enter(home)
    publish.enter(home)
    try:
        yield home
    finally:
        long.end_root()
        home.current = None
        publish.leave()
        awaiting.leave()
        long.leave()


def sleep_with(worker: Worker, before_sleep: Callable[[], object]) -> None:
    """Let a sleep do `before_sleep` first, and be an error if no token has come then."""
    bell = worker.bell

    class Bell:
        def wait(self, _timeout: float | None) -> bool:
            before_sleep()
            if not bell.wait(0):
                raise SleepsError
            return True

        def wake(self) -> None:
            bell.wake()

    worker.bell = Bell()  # type: ignore[assignment]


@pytest.mark.parametrize("function", [idle.park, idle.sources, idle.ask, idle.others_have_more])
@pytest.mark.parametrize("forked_before", [False, True])
def test_fork_thief_that_parks_is_served_by_the_next_spawn(
    function: Callable[..., object], forked_before: bool
) -> None:
    """Whenever a worker begins to fork, a thief that parks gets a child at its second spawn at the latest.

    The first comes before any line of the thief's, the second when it sleeps.
    """

    def parked(action: Callable[[], object] | None, line: int) -> None:
        quiet = QuietPool()
        with home_of(quiet, 1) as home:
            thief = quiet.workers[0]
            if forked_before:
                hot.spawn(abs, -3)
            sleep_with(thief, lambda: hot.spawn(abs, -4))
            with before_line(function, line, action) if action else nullcontext():
                idle.park(thief)
            assert len(home.deque) >= 1, "it woke up, and there is nothing to take"
            # It still counts as one that asks, until it has taken something.
            assert quiet.segment.words[quiet.layout.block(0) + lay.B_WAITS] == lay.WAITS_ANY
            entry = stolen.take(thief, 1)
            assert entry is not None
            assert quiet.segment.words[quiet.layout.block(0) + lay.B_WAITS] == 0
            assert home.table.state[entry] == st.word(st.CLAIMED, 0)
            # As if it had been returned by the parent, so that the root can end.
            home.table.state[entry] = st.word(st.RETURNED, 1)
        quiet.close()

    lines = lines_of(function, lambda: parked(None, -1))
    assert lines >= 5
    for line in range(lines):
        parked(lambda: hot.spawn(abs, -5), line)


def ended_by_thief(quiet: QuietPool, entry: int) -> Callable[[], None]:
    """Return what a thief does at a child's end."""

    def end() -> None:
        thief, table = quiet.workers[1], quiet.workers[1].table
        record = away.Away(away.INLINE)
        record.succeed(7)
        from mpsched._worker import outcome

        state = outcome.store(thief, entry, record, "")
        table.state[entry] = st.word(state, 1)
        words, at = quiet.segment.words, quiet.layout.block(0)
        if words[at + lay.B_STATE] == lay.JOINING and words[at + lay.B_JOINING] == 1 + entry:
            quiet.bells[0].wake()

    return end


def returned_by_parent(quiet: QuietPool, entry: int) -> Callable[[], None]:
    """Return what the parent does when the thief has died before the child's start."""

    def end() -> None:
        quiet.table.state[entry] = st.word(st.RETURNED, 0)
        quiet.bells[0].wake()

    return end


def lost_by_parent(quiet: QuietPool, entry: int) -> Callable[[], None]:
    """Return what the parent does when the thief has died in the child."""

    def end() -> None:
        quiet.table.length[entry] = -9 & 0xFFFFFFFF
        quiet.table.started[entry] = 4711
        quiet.table.state[entry] = st.word(st.LOST, 1)
        quiet.bells[0].wake()

    return end


@pytest.mark.parametrize("way", [ended_by_thief, returned_by_parent, lost_by_parent])
@pytest.mark.parametrize("function", [awaiting.wait, awaiting._sleep, awaiting._changed])
def test_fork_joiner_does_not_sleep_over_the_end_of_its_child(
    way: Callable[[QuietPool, int], Callable[[], None]], function: Callable[..., object]
) -> None:
    """Whenever a child ends, its joiner sees it, or is rung."""

    def joined(line: int) -> Any:
        quiet = QuietPool(linger_s=1e-9)
        with home_of(quiet, 0) as home:
            handle = hot.spawn(divmod, 15, 2)
            publish.give_all()
            entry = stolen.take(quiet.workers[1], 0)
            assert entry is not None
            if way.__name__ != "returned_by_parent":
                home.table.state[entry] = st.word(st.RUNNING, 1)
            done: list[bool] = []
            end = way(quiet, entry)

            def once() -> None:
                if not done:
                    done.append(True)
                    end()

            # What has come before a sleep must have rung; else it comes during the sleep.
            sleep_with(home, once)
            with before_line(function, line, once) if line >= 0 else nullcontext():
                try:
                    value: Any = handle.join()
                except Exception as problem:
                    value = type(problem).__name__
            assert done
            assert quiet.segment.words[home.block + lay.B_STATE] != lay.JOINING
            assert quiet.segment.words[home.block + lay.B_JOINING] == 0
        quiet.close()
        return value

    expected = {
        "ended_by_thief": 7,
        "returned_by_parent": (7, 1),
        "lost_by_parent": "WorkerDied",
    }[way.__name__]
    lines = lines_of(function, lambda: joined(-1))
    assert lines >= 2
    for line in range(lines):
        assert joined(line) == expected
