"""Who wakes whom in the parent: a record or a task that comes at any line is seen by somebody."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._pool.dispatch import _TRIES, Dispatcher
from mpsched._pool.leader import Leader
from mpsched._pool.supervisor import _LINGER_S, Supervisor
from mpsched._shm import layout as lay
from mpsched._tasks import records as rec, state as st
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._pool.future import Future


@pytest.fixture
def quiet() -> Iterator[QuietPool]:
    pool = QuietPool()
    yield pool
    pool.close()


class SleepsError(Exception):
    """The leader would sleep now, although nobody will ring it."""


class Running:
    """A pool of two in which two roots run; the parent's threads are this test.

    Attributes:
        futures: theirs; the leader waits for the first.
        collecting: the test itself is the collector, which cannot come a second time.
        published: whether a result was; slept_over: whether one was when the leader went to sleep.
    """

    def __init__(self) -> None:
        self.collecting = self.published = self.slept_over = False
        self.pool = QuietPool()
        tasks = [self.pool.task(), self.pool.task()]
        self.futures: list[Future[Any]] = [task.future for task in tasks if task.future is not None]
        self.pool.submit(*tasks)
        self.pool.dispatcher.pump()
        for worker in self.pool.workers:
            (handle,) = worker._take(worker.inbox, 1, wait=True)
            self.pool.table.state[handle] = st.word(st.RUNNING, worker.index)
        self.handles = [task.handle for task in tasks]
        self.workers = [self.pool.table.state[handle] >> 8 for handle in self.handles]
        for bell in (*self.pool.bells, self.pool.collector_bell, self.pool.leader_bell):
            bell.drain()
        leader_bell = self.pool.leader_bell

        running = self

        class Bell:
            def wait(self, _timeout: float | None) -> bool:
                if not leader_bell.wait(0):
                    running.slept_over = running.published
                    raise SleepsError
                return True

            def wake(self) -> None:
                leader_bell.wake()

        self.pool.leader_bell = Bell()  # type: ignore[assignment]
        self._leader_bell = leader_bell

    def publish(self, which: int) -> None:
        """The worker's side: a result that nobody was told of yet."""
        worker = self.pool.workers[self.workers[which]]
        worker.results.write(which + 1, self.handles[which], rec.R_INT, 5, 40 + which)
        self.published = True

    def finish(self, which: int) -> None:
        """The worker's side: publish a result, then ring whoever is to be rung."""
        self.publish(which)
        self.pool.workers[self.workers[which]].ring_the_parent()
        if not self.collecting:
            self.collector()

    def collector(self) -> None:
        """The supervisor's side: whenever its bell was rung, look once."""
        if self.pool.collector_bell.wait(0):
            self.pool.leader.collect()

    def lead(self) -> None:
        """Wait for the first future, as `Future.result` does."""
        self.pool.leader.lead(self.futures[0].done, None)

    def nobody_sleeps_over_it(self) -> bool:
        """Whether every record was read, or the collector was told to look, or looks by itself."""
        leader = self.pool.leader
        return leader._all_empty() or leader.lingering or self.pool.collector_bell.wait(0)

    def close(self) -> None:
        self.pool.leader_bell = self._leader_bell
        self.pool.close()


def lead(running: Running) -> None:
    running.publish(0)
    running.lead()


def lead_beside_outsiders(running: Running) -> None:
    """Somebody waits from outside: no lingering."""
    running.pool.leader.outsider()
    running.pool.collector_bell.drain()
    lead(running)


def in_passing(running: Running) -> None:
    running.publish(0)
    running.pool.leader.drain_in_passing(burst=False)


def in_passing_of_a_burst(running: Running) -> None:
    running.publish(0)
    running.pool.leader.drain_in_passing(burst=True)


def collect(running: Running) -> None:
    """The supervisor takes over from a thread that lingered and went away: nobody was rung."""
    running.pool.segment.words[lay.H_WAIT] = lay.WAIT_NOBODY
    running.pool.leader.lingering = True
    running.publish(0)
    running.collecting = True
    running.pool.leader.collect()


CASES = [
    (lead, Leader.lead),
    (lead, Leader._hand_over),
    (lead, Leader.drain),
    (lead_beside_outsiders, Leader.lead),
    (lead_beside_outsiders, Leader._hand_over),
    (lead_beside_outsiders, Leader.drain),
    (in_passing, Leader.drain_in_passing),
    (in_passing, Leader.drain),
    (in_passing_of_a_burst, Leader.drain_in_passing),
    (in_passing_of_a_burst, Leader.linger),
    (collect, Leader.collect),
]


@pytest.mark.parametrize(("act", "function"), CASES)
def test_wakeups_result_that_comes_at_any_line_is_seen(
    act: Callable[[Running], None], function: Callable[..., object]
) -> None:
    """LEADER-2: whoever is about to leave has read the record, or somebody was told of it."""
    probe = Running()
    lines = lines_of(function, lambda: act(probe))
    probe.close()
    assert lines > 3
    for line in range(lines):
        running = Running()
        with before_line(function, line, lambda: running.finish(1)):  # noqa: B023
            act(running)
        assert running.nobody_sleeps_over_it(), f"before line {line}"
        assert running.futures[0].result(0) == 40
        running.close()


def test_wakeups_leader_does_not_sleep_over_its_own_result() -> None:
    """A leader whose result comes at any line of its wait does not go to sleep."""

    def wait(running: Running) -> bool:
        """Return whether the leader went to sleep after its result had come."""
        try:
            running.lead()
        except SleepsError:
            return running.slept_over
        return False

    probe = Running()
    lines = lines_of(Leader.lead, lambda: wait(probe))
    probe.close()
    assert lines > 12
    for line in range(lines):
        running = Running()
        with before_line(Leader.lead, line, lambda: running.finish(0)):  # noqa: B023
            assert not wait(running), f"before line {line}"
        running.close()


def test_wakeups_who_has_a_result_finds_room_for_the_next_task() -> None:
    """A future is final before its task is accounted for; it is not counted as pending from then on."""
    probe = Running()
    lines = lines_of(Leader._accept_plain, lambda: lead(probe))
    probe.close()
    early = 0
    for line in range(lines):
        running = Running()
        dispatcher, futures = running.pool.dispatcher, running.futures
        counted: list[tuple[int, int, int]] = []

        def count() -> None:
            left = sum(not future.done() for future in futures)  # noqa: B023
            counted.append((left, dispatcher.unfinished(), len(dispatcher.inflight)))  # noqa: B023

        with before_line(Leader._accept_plain, line, count):
            lead(running)
        ((left, unfinished, inflight),) = counted
        assert unfinished == left, f"before line {line}"
        early += inflight > left
        running.close()
    assert early > 1


def test_wakeups_leader_looks_by_itself_and_then_has_the_supervisor_look(
    quiet: QuietPool,
) -> None:
    """A result that nobody rings for is found soon, and a longer silence is looked into."""
    naps: list[float] = []

    class Bell:
        def wait(self, timeout: float) -> bool:
            naps.append(timeout)
            if len(naps) == 12:
                worker = quiet.workers[0]
                worker.results.write(1, task.handle, rec.R_INT, 0, 7)
            return False

    task = quiet.task()
    future = task.future
    assert future is not None
    quiet.submit(task)
    quiet.dispatcher.pump()
    handle = quiet.workers[0]._take(quiet.dispatcher.inboxes[0], 1, wait=True)
    assert handle == [task.handle]
    quiet.collector_bell.drain()
    real, quiet.leader_bell = quiet.leader_bell, Bell()  # type: ignore[assignment]
    assert quiet.leader.lead(future.done, None)
    quiet.leader_bell = real
    assert future.result(0) == 7
    assert naps[:3] == [0.002, 0.004, 0.008]
    assert naps[-1] == naps[-2] == 0.5
    assert quiet.collector_bell.wait(0)


@pytest.mark.parametrize("why", ["dozing", "taken", "lingering"])
def test_wakeups_outsider_wakes_a_supervisor_that_might_not_look(
    quiet: QuietPool, why: str
) -> None:
    """`wait` and callbacks do not lead, so somebody has to: one who sleeps without a limit is rung."""
    quiet.leader.outsider()
    assert not quiet.collector_bell.wait(0)
    if why == "dozing":
        quiet.supervisor.dozing = True
    elif why == "taken":
        assert quiet.leader.section.try_enter()
    else:
        quiet.leader.lingering = True
    quiet.leader.outsider()
    assert quiet.collector_bell.wait(0)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("function", [Dispatcher.pump, Dispatcher._pump, Dispatcher._fill])
def test_wakeups_task_that_is_submitted_at_any_line_of_a_pump_is_dispatched(
    function: Callable[..., object], cancelled: bool
) -> None:
    """Whoever finds the section taken may go: whoever is inside looks again.

    Also if the first pump has moved nothing, because nobody wants its task any more.
    """

    def first(pool: QuietPool) -> None:
        task = pool.task()
        task.cancelled = cancelled
        pool.submit(task)
        pool.dispatcher.pump()

    def second(pool: QuietPool) -> None:
        pool.submit(pool.task())
        pool.dispatcher.pump()

    probe = QuietPool()
    lines = lines_of(function, lambda: first(probe))
    probe.close()
    for line in range(lines):
        pool = QuietPool()
        with before_line(function, line, lambda: second(pool)):  # noqa: B023
            first(pool)
        assert len(pool.dispatcher.inflight) == 2 - cancelled, f"before line {line}"
        assert not pool.ready
        pool.close()


def test_wakeups_taken_inbox_is_tried_again_by_the_supervisor(quiet: QuietPool) -> None:
    """A task whose only inboxes are taken stays in the queue, and somebody is told to come back."""
    quiet.locks.taken = {0, 1}
    quiet.submit(quiet.task())
    quiet.dispatcher.pump()
    assert quiet.locks.tries == 2 * _TRIES
    assert quiet.dispatcher.busy
    assert len(quiet.ready) == 1
    assert not quiet.dispatcher.inflight
    assert quiet.collector_bell.wait(0)
    quiet.dispatcher.pump(ring=False)  # the supervisor itself needs no ring to try again
    assert not quiet.collector_bell.wait(0)
    quiet.locks.taken.clear()
    quiet.dispatcher.pump(ring=False)
    assert len(quiet.dispatcher.inflight) == 1


def test_wakeups_taken_inbox_is_passed_for_a_free_one(quiet: QuietPool) -> None:
    """The other worker gets the task; nobody has to come back."""
    quiet.locks.taken = {0}
    quiet.submit(quiet.task())
    quiet.dispatcher.pump()
    assert len(quiet.dispatcher.inboxes[1]) == 1
    assert not quiet.collector_bell.wait(0)


@pytest.mark.parametrize("pushed_to", [0, 1])
@pytest.mark.parametrize("parked", [set(), {0}, {1}, {0, 1}])
def test_wakeups_push_wakes_the_owner_or_else_a_thief(
    quiet: QuietPool, pushed_to: int, parked: set[int]
) -> None:
    """Exactly one of those who sleep is woken: the owner of the inbox if it does."""
    for worker in (0, 1):
        word = quiet.layout.block(worker) + lay.B_STATE
        quiet.segment.words[word] = lay.PARKED if worker in parked else lay.AWAKE
    quiet.push(pushed_to)
    woken = {worker for worker in (0, 1) if quiet.bells[worker].wait(0)}
    assert woken == ({pushed_to} if pushed_to in parked else parked)


def test_wakeups_push_past_a_busy_inbox_wakes_its_owner_too(quiet: QuietPool) -> None:
    """Both sleep, and one is rung for a root already: the next one may lie behind it, and be long."""
    for worker in (0, 1):
        quiet.segment.words[quiet.layout.block(worker) + lay.B_STATE] = lay.PARKED
    quiet.submit(quiet.task())
    quiet.dispatcher.pump()
    assert [worker for worker in (0, 1) if quiet.bells[worker].wait(0)] == [0]
    quiet.locks.taken = {1}
    quiet.submit(quiet.task())
    quiet.dispatcher.pump()
    assert len(quiet.dispatcher.inboxes[0]) == 2
    assert quiet.bells[1].wait(0)


def test_wakeups_root_that_came_back_too_late_is_queued_again(quiet: QuietPool) -> None:
    """REVOKED with nobody who waits: the root lies in the inbox again, and its owner is rung."""
    (handle,) = quiet.push(0)
    assert quiet.workers[0]._take(quiet.dispatcher.inboxes[0], 1, wait=True) == [handle]
    quiet.table.state[handle] = st.word(st.REVOKED, 0)
    quiet.bells[0].drain()
    quiet.locks.taken = {0}
    quiet.dispatcher.queue_again(handle, 0)
    assert st.parts(quiet.table.state[handle]) == (st.REVOKED, 0)
    quiet.locks.taken.clear()
    quiet.dispatcher.queue_again(handle, 0)
    assert st.parts(quiet.table.state[handle]) == (st.QUEUED, 0)
    assert quiet.dispatcher.inboxes[0].handles() == [handle]
    assert quiet.bells[0].wait(0)


def test_wakeups_results_that_are_left_to_lie_delay_no_limit() -> None:
    """The supervisor sleeps no longer than until the next look, and then does more than collect.

    (It only collects after `_linger` seconds, so it has to tell the two apart.)
    """
    look: float | None = None
    nothing = SimpleNamespace(next=lambda: None, busy=lambda: False)
    supervisor: Any = object.__new__(Supervisor)
    supervisor._slots = []
    supervisor._linger = linger = _LINGER_S[0]
    supervisor._spares = supervisor._memory = supervisor.alone = nothing
    supervisor.limits = SimpleNamespace(next=lambda: look)
    supervisor.burial = SimpleNamespace(trees=nothing)
    supervisor._pool = SimpleNamespace(leader=SimpleNamespace(lingering=True))
    assert supervisor._timeout(5.0) == linger
    look = time.monotonic() + linger / 2
    assert supervisor._timeout(5.0) < linger
    look = time.monotonic() - 1.0
    assert supervisor._timeout(5.0) == 0.0
