"""Roots that lie with a worker before their time."""

from __future__ import annotations

import itertools
import marshal
import math
import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._schedule.handout import not_before
from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged
from mpsched._tasks import state as st, table as tab
from mpsched._worker import ahead, early, idle
from mpsched._worker.run import Runner
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from mpsched._pool.task import Task

TIME = 1_000_000


class Early:
    """A pool of two of which the first worker lingers, and a clock that the test moves.

    Attributes:
        now: what the clock shows (ns).
        looks: called whenever the worker gives way to others.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quiet = QuietPool()
        self.worker = self.quiet.workers[0]
        self.words = self.quiet.segment.words
        self.now = 0
        self.looks: list[Callable[[], object]] = []
        self.state(0, lay.LINGERING)
        self.state(1, lay.AWAKE)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr("os.sched_yield", self._look)

    def _look(self) -> None:
        assert self.words[self.quiet.layout.block(0) + lay.B_STATE] == lay.LINGERING
        self.looks.pop(0)()

    def state(self, worker: int, state: int) -> None:
        self.words[self.quiet.layout.block(worker) + lay.B_STATE] = state

    def hand(self, task: Task | None = None, at: int = TIME) -> bool:
        return self.quiet.dispatcher.hand_early(task or self.quiet.task(), at)

    def move(self, ns: int) -> None:
        self.now += ns


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Early]:
    """Close it, whatever was found."""
    made = Early(monkeypatch)
    yield made
    made.quiet.close()


def test_early_root_is_taken_at_its_time(pool: Early) -> None:
    """Not a nanosecond before; from a moment before on the worker tries again and again."""
    task = pool.quiet.task()
    assert pool.hand(task)
    assert pool.quiet.dispatcher.inflight == {task.id: task}
    seen: list[tuple[int, int]] = []
    take = pool.worker.take_early

    def taken() -> bool:
        found = take()
        seen.append((pool.now, len(pool.worker.local)))
        pool.now += 1
        return found

    pool.worker.take_early = taken  # type: ignore[method-assign]
    pool.now = 0
    pool.looks = [
        lambda: pool.move(TIME - early._NEAR_NS - 1),
        lambda: pool.move(early._NEAR_NS - 1),
    ]
    assert pool.worker.find_work()
    assert seen == [(TIME - 2, 0), (TIME - 1, 0), (TIME, 1)]
    assert list(pool.worker.local) == [task.handle]
    assert st.parts(pool.quiet.table.state[task.handle]) == (st.CLAIMED, 0)
    assert pool.words[pool.quiet.layout.block(0) + lay.B_STATE] == lay.AWAKE


def test_early_root_that_was_taken_back_is_awaited_no_more(pool: Early) -> None:
    """The parent removes it as any other that lies in an inbox."""
    task = pool.quiet.task()
    assert pool.hand(task)
    pool.looks = [lambda: pool.move(1), lambda: pool.quiet.dispatcher.remove(task, 0)]
    assert not pool.worker.find_work()
    assert not pool.looks
    assert not pool.worker.local
    assert pool.words[pool.quiet.layout.block(0) + lay.B_STATE] == lay.AWAKE


def test_early_root_that_is_due_goes_to_whoever_looks_first(pool: Early) -> None:
    """Its owner may be dead or stopped; until its time it is the owner's."""
    task = pool.quiet.task()
    assert pool.hand(task)
    thief = pool.quiet.workers[1]
    assert not thief.find_work()
    assert not idle.sources(thief)
    assert idle.sources(pool.worker)
    pool.now = TIME
    assert idle.sources(thief)
    assert thief.find_work()
    assert list(thief.local) == [task.handle]
    assert st.parts(pool.quiet.table.state[task.handle]) == (st.CLAIMED, 1)
    assert not pool.worker.find_work()


def test_early_root_is_given_to_who_has_nothing(pool: Early) -> None:
    """One that is awake rather than one that sleeps, who is rung; none if all have something."""
    quiet = pool.quiet
    pool.state(1, lay.PARKED)
    assert pool.hand()
    assert not any(bell.wait(0) for bell in quiet.bells)
    assert quiet.dispatcher.idle_one() == 1
    quiet.push(1)
    assert quiet.bells[1].wait(0)
    assert not pool.hand()
    handles = quiet.workers[1]._take(quiet.workers[1].inbox, 1, wait=True)
    assert len(handles) == 1
    assert pool.hand()
    assert quiet.bells[1].wait(0)
    assert not pool.hand()
    assert quiet.entries.in_use() == len(quiet.dispatcher.inflight) == 3


def test_early_root_does_not_overtake_what_waits(pool: Early) -> None:
    """With something in the queue it is refused, and leaves nothing behind."""
    pool.quiet.submit(pool.quiet.task())
    assert not pool.hand()
    assert not pool.quiet.entries.in_use()
    assert not pool.quiet.dispatcher.inflight


def test_early_root_whose_inbox_is_locked_is_refused(pool: Early) -> None:
    """The parent waits for nobody; what it has begun is undone."""
    pool.quiet.locks.taken.add(0)
    task = pool.quiet.task()
    assert not pool.hand(task)
    assert (task.handle, pool.quiet.entries.in_use(), pool.quiet.dispatcher.inflight) == (-1, 0, {})


@pytest.mark.parametrize("due", [False, True])
def test_early_root_has_its_worker_for_itself_until_its_time(pool: Early, due: bool) -> None:
    """What is dispatched meanwhile goes to others; from then on it may lie behind it."""
    quiet = pool.quiet
    assert pool.hand()
    quiet.submit(*(quiet.task() for _ in range(9)))
    pool.state(1, lay.PARKED)
    pool.now = TIME - (not due)
    quiet.dispatcher.pump()
    assert [len(inbox) for inbox in quiet.dispatcher.inboxes] == ([2, 2] if due else [0, 2])


def test_early_root_that_somebody_wanted_to_pump_beside_has_the_collector_rung(
    pool: Early,
) -> None:
    """Who finds the section taken relies on whoever is inside."""
    quiet = pool.quiet
    quiet.collector_bell.drain()
    assert pool.hand()
    assert not quiet.collector_bell.wait(0)
    pool.state(1, lay.LINGERING)
    lay_down = quiet.dispatcher._lay

    def pumped(*args: Any) -> int:
        quiet.submit(quiet.task())
        quiet.dispatcher.pump()
        return lay_down(*args)

    quiet.dispatcher._lay = pumped  # type: ignore[assignment, method-assign]
    assert pool.hand()
    assert quiet.collector_bell.wait(0)


@pytest.mark.parametrize("function", [idle.linger, idle._look])
def test_early_root_at_any_line_of_idleness_is_awaited_or_refused(
    function: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stops being idle sees it before it takes anything else, or is seen."""
    ticks = itertools.count(0, 20_000)
    # Whoever looks at it moves it, so each worker lingers for as many lines.
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(ticks))

    def lingered(quiet: QuietPool) -> object:
        quiet.segment.words[lay.H_SOON] = next(ticks) + 200_000
        return idle.linger(quiet.workers[0])

    def alone() -> None:
        quiet = QuietPool(1)
        lingered(quiet)
        quiet.close()

    lines = lines_of(function, alone)
    assert lines >= 8
    given = 0
    for line in range(lines):
        quiet = QuietPool(1)
        handed: list[bool] = []
        # Far away, so that it is still there when the worker has left.
        at = next(ticks) + 60_000_000_000

        def hand(quiet: QuietPool = quiet, handed: list[bool] = handed, at: int = at) -> None:
            if not handed:
                handed.append(quiet.dispatcher.hand_early(quiet.task(), at))

        with before_line(function, line, hand):
            came = lingered(quiet)
        if handed == [True]:
            given += 1
            assert quiet.segment.words[quiet.workers[0].inbox.early]
            # (After its last look it goes on to park, whose look finds it.)
            assert came == idle.CAME or idle.sources(quiet.workers[0])
        quiet.close()
    assert given


def test_early_root_of_a_far_time_is_damage(pool: Early) -> None:
    """No parent hands anything over a second before its time."""
    assert pool.hand(at=early._FAR_NS + 1)
    with pytest.raises(Damaged, match="1 s before its time"):
        pool.worker.find_work()
    assert pool.words[pool.quiet.layout.block(0) + lay.B_STATE] == lay.AWAKE


def test_early_place_that_names_no_root_of_it_is_damage(pool: Early) -> None:
    """A handle that there is not, or whose state says something else."""
    for word in (1 << 40, 1):
        pool.words[pool.worker.inbox.early] = word
        with pytest.raises(Damaged, match="inbox of worker 0"):
            pool.worker.inbox.take_early(0, TIME)


def test_early_time_is_never_shown_as_earlier(rng: random.Random) -> None:
    """In nanoseconds it is rounded up, by what a float of that size may be wrong, and by little more."""
    for _ in range(2000):
        seconds = rng.random() * 10.0 ** rng.uniform(0, 9)
        ns = not_before(seconds)
        assert ns / 1e9 >= seconds
        assert ns - seconds * 1e9 < 10 + 4e9 * math.ulp(seconds)


# --- reading ahead -----------------------------------------------------------------------------------


class Loud:
    """What says that it was unpickled."""

    made = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _loud, ()


def _loud() -> Loud:
    Loud.made += 1
    return Loud()


def scheduled(quiet: QuietPool, kind: int, frame: bytes, fn: Callable[..., Any] = abs) -> Task:
    """Return a task as a scheduler makes it."""
    task = quiet.task(fn)
    task.meta = (
        kind | tab.FLAG_TIMED | tab.FLAG_CONTEXT | quiet.functions.number(fn) << tab.FUNCTION_SHIFT
    )
    task.frame = pickle.dumps((None, 0, False, 7, (1,), frame), 5)
    return task


FRAMES = {
    "plain": (tab.KIND_PLAIN, marshal.dumps((-5,), 2)),
    "args": (tab.KIND_ARGS, pickle.dumps((-5,), 5)),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_early_root_of_a_known_function_is_read_ahead(
    pool: Early, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What it is called with is decoded before its time, and used for it alone."""
    runner = Runner(pool.worker, 0)
    runner._functions[pool.quiet.functions.number(abs)] = abs
    task = scheduled(pool.quiet, *FRAMES[kind])
    assert pool.hand(task)
    pool.now = TIME
    assert pool.worker.find_work()
    assert pool.worker.ahead is not None
    assert (pool.worker.ahead.fn, pool.worker.ahead.args) == (abs, (-5,))
    other = pool.quiet.push(0)[0]
    assert not pool.worker.ahead.is_of(other, pool.quiet.table.ident[other])
    monkeypatch.setattr(Runner, "_decode", None)
    future = task.future
    assert future is not None
    runner.run(pool.worker.local.popleft())
    assert vars(pool.worker)["ahead"] is None
    assert pool.worker.executed == 1
    pool.quiet.leader.drain(10)
    assert future.result(0) == 5


def test_early_root_runs_nothing_before_its_time(pool: Early) -> None:
    """Arguments of classes are left for then; so is a function that would have to be loaded."""
    runner = Runner(pool.worker, 0)
    number = pool.quiet.functions.number(abs)
    loud = scheduled(pool.quiet, tab.KIND_ARGS, pickle.dumps((Loud(),), 5))
    new = scheduled(pool.quiet, *FRAMES["plain"])
    for task, known in ((loud, True), (new, False)):
        runner._functions.clear()
        if known:
            runner._functions[number] = abs
        made = Loud.made
        assert pool.hand(task)
        runner.look_ahead(task.handle)
        assert pool.worker.ahead is None
        assert made == Loud.made
        assert pool.quiet.dispatcher.remove(task, 0)


def test_early_root_that_is_taken_back_while_it_is_read_is_not_kept(pool: Early) -> None:
    """Its entry may be another's by then, half written."""
    runner = Runner(pool.worker, 0)
    runner._functions[pool.quiet.functions.number(abs)] = abs
    task = scheduled(pool.quiet, *FRAMES["args"])
    assert pool.hand(task)
    read = pool.worker.table.read_frame

    class Table:
        def __getattr__(self, name: str) -> Any:
            return getattr(pool.quiet.table, name)

        def read_frame(self, handle: int) -> bytes:
            found = bytes(read(handle))
            assert pool.quiet.dispatcher.remove(task, 0)
            return found

    pool.worker.table = Table()  # type: ignore[assignment]
    runner.look_ahead(task.handle)
    assert pool.worker.ahead is None


def test_ahead_loads_values_that_name_nothing() -> None:
    """And nothing else."""
    value = ({"a": [1, 2.5, None]}, (b"x", {3}, True))
    assert ahead.loads(pickle.dumps(value, 5)) == value
    for named in (Loud(), abs, ValueError):
        with pytest.raises(pickle.UnpicklingError):
            ahead.loads(pickle.dumps(named, 5))
