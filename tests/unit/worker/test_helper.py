"""The helper thread's answers, with the main thread at any of its lines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mpsched._deque.inbox import Inbox
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._worker import helper, main
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable

ROOTS = 4


class Sitting:
    """A worker that has claimed some roots, of which none has started.

    Attributes:
        started: handles that the main thread has started.
    """

    def __init__(self, *, slots: int = 16) -> None:
        self.pool = QuietPool(inbox_slots=slots, window=slots // 2)
        self.worker = self.pool.workers[0]
        self.handles = self.pool.push(0, ROOTS)
        self.pool.bells[0].drain()
        assert self.claim() == ROOTS
        self.started: list[int] = []

    def claim(self) -> int:
        """Claim all that is in the inbox; the main thread does."""
        found = self.worker._take(self.worker.inbox, 64, wait=True)
        self.worker._accept(found)
        return len(found)

    def start_one(self) -> None:
        """Start the oldest; the main thread does, as `main._loop` and `Runner.run`."""
        try:
            handle = self.worker.local.popleft()
        except IndexError:
            return
        self.pool.table.state[handle] = st.word(st.RUNNING, 0)
        self.started.append(handle)

    def ask_for(self, handle: int) -> None:
        """Store what the parent does."""
        word = self.pool.layout.block(0) + lay.B_REVOKE
        self.pool.segment.words[word] = self.pool.table.run_key(handle)

    def states(self) -> dict[int, st.TaskState]:
        return {handle: st.parts(self.pool.table.state[handle])[0] for handle in self.handles}

    def claimed_word(self) -> int:
        return self.pool.segment.words[self.pool.layout.block(0) + lay.B_CLAIMED]

    def check(self) -> None:
        """Assert that every root is in exactly one place, and its state says in which."""
        queued = self.worker.inbox.handles()
        local = list(self.worker.local)
        states = self.states()
        revoked = [handle for handle, state in states.items() if state == st.REVOKED]
        assert Counter(queued + local + self.started + revoked) == Counter(self.handles)
        assert {states[handle] for handle in queued} <= {st.TaskState.QUEUED}
        assert {states[handle] for handle in local} <= {st.TaskState.CLAIMED}
        assert {states[handle] for handle in self.started} <= {st.TaskState.RUNNING}


def each_line(function: Callable[..., object], call: Callable[[Sitting], object]) -> range:
    """Return the lines that a call executes of a function, in a worker that nobody disturbs."""
    sitting = Sitting()
    lines = lines_of(function, lambda: call(sitting))
    sitting.pool.close()
    assert lines > 3
    return range(lines)


@pytest.mark.parametrize("which", range(ROOTS))
def test_helper_revoke_takes_out_the_one_that_is_asked_for(which: int) -> None:
    """It is REVOKED; the others stay, in their order."""
    sitting = Sitting()
    wanted = sitting.handles[which]
    sitting.ask_for(wanted)
    helper.revoke(sitting.worker)
    assert sitting.states()[wanted] == st.REVOKED
    assert list(sitting.worker.local) == [one for one in sitting.handles if one != wanted]
    sitting.check()
    sitting.pool.close()


def test_helper_revoke_of_nothing_changes_nothing() -> None:
    """A helper that is rung for something else finds no wish."""
    sitting = Sitting()
    helper.revoke(sitting.worker)
    assert set(sitting.states().values()) == {st.TaskState.CLAIMED}
    sitting.pool.close()


def test_helper_revoke_of_another_run_in_the_same_entry_changes_nothing() -> None:
    """STATE-4: a wish for a task that had the entry before, or for an attempt before, is void."""
    sitting = Sitting()
    handle = sitting.handles[1]
    for field, change in ((sitting.pool.table.ident, 99), (sitting.pool.table.meta, 1 << 8)):
        sitting.ask_for(handle)
        field[handle] += change
        helper.revoke(sitting.worker)
        assert set(sitting.states().values()) == {st.TaskState.CLAIMED}
    sitting.check()
    sitting.pool.close()


@pytest.mark.parametrize("started_before", range(ROOTS))
def test_helper_revoke_or_start_but_never_both(started_before: int) -> None:
    """STATE-3: the main thread starts roots before any line of the helper; each goes one way."""
    outcomes = set()

    def call(sitting: Sitting) -> None:
        sitting.ask_for(sitting.handles[started_before])
        helper.revoke(sitting.worker)

    for line in each_line(helper.revoke, call):
        sitting = Sitting()
        for _ in range(started_before):
            sitting.start_one()
        with before_line(helper.revoke, line, sitting.start_one):
            call(sitting)
        sitting.check()
        outcomes.add(sitting.states()[sitting.handles[started_before]])
        sitting.pool.close()
    assert outcomes == {st.TaskState.REVOKED, st.TaskState.RUNNING}


@pytest.mark.parametrize("started", range(ROOTS + 1))
def test_helper_share_or_start_but_never_both(started: int) -> None:
    """What waits behind the running root is given back; roots that start meanwhile are not."""
    for line in each_line(helper.share, lambda sitting: helper.share(sitting.worker)):
        sitting = Sitting()

        def start_some() -> None:
            for _ in range(started):
                sitting.start_one()  # noqa: B023

        with before_line(helper.share, line, start_some):
            helper.share(sitting.worker)
        sitting.check()
        assert not sitting.worker.local
        assert sitting.worker.inbox.handles() == sitting.handles[len(sitting.started) :]
        sitting.pool.close()


def test_helper_share_tells_those_who_sleep() -> None:
    """What comes into the inbox by it is rung for."""
    sitting = Sitting()
    sitting.pool.segment.words[sitting.pool.layout.block(1) + lay.B_STATE] = lay.PARKED
    helper.share(sitting.worker)
    assert sitting.pool.bells[1].wait(0)
    assert not sitting.pool.bells[0].wait(0)
    sitting.pool.close()


def test_helper_share_keeps_what_finds_no_room() -> None:
    """The oldest stay claimed, in order, and thieves are told that there are some."""
    sitting = Sitting(slots=8)
    more = sitting.pool.push(0, 6)
    helper.share(sitting.worker)
    assert list(sitting.worker.local) == sitting.handles[:2]
    assert sitting.worker.inbox.handles() == sitting.handles[2:] + more
    assert sitting.claimed_word() == 2
    sitting.pool.close()


def test_helper_share_hides_nothing_that_is_claimed_meanwhile() -> None:
    """Whenever the main thread claims again, CLAIMED says so afterwards."""
    for line in each_line(helper.share, lambda sitting: helper.share(sitting.worker)):
        sitting = Sitting()

        def claim_more() -> None:
            sitting.start_one()  # noqa: B023
            sitting.handles += sitting.pool.push(0, 3)  # noqa: B023
            sitting.claim()  # noqa: B023

        # The lock is the helper's in `give_back`; the main thread would wait there.
        with before_line(helper.share, line, claim_more):
            helper.share(sitting.worker)
        sitting.check()
        assert bool(sitting.claimed_word()) >= (len(sitting.worker.local) > 1), line
        sitting.pool.close()


def test_helper_share_sends_results_that_nobody_was_told_of() -> None:
    """A finished result behind a long task is rung for."""
    sitting = Sitting()
    sitting.worker.unflushed = 1
    helper.share(sitting.worker)
    assert sitting.worker.unflushed == 0
    assert sitting.pool.collector_bell.wait(0)
    sitting.pool.close()


def test_helper_share_without_memory_at_any_line_loses_nothing() -> None:
    """HELPER-3: each root is in one place afterwards, and shared at the next try."""
    places = set()

    def fail() -> None:
        raise MemoryError

    for line in each_line(Inbox.give_back, lambda sitting: helper.share(sitting.worker)):
        sitting = Sitting()
        with (
            before_line(Inbox.give_back, line, fail),
            pytest.raises(MemoryError),
        ):
            helper.share(sitting.worker)
        sitting.check()
        places.add(len(sitting.worker.local))
        helper.share(sitting.worker)
        sitting.check()
        assert sitting.worker.inbox.handles() == sitting.handles
        sitting.pool.close()
    assert places == {0, ROOTS}


@pytest.mark.parametrize("act", [helper.share, helper.revoke])
def test_main_retiring_worker_gives_each_root_back_once(act: Callable[..., None]) -> None:
    """The helper may do the same at any line: no root is given back by both."""

    def retire(sitting: Sitting) -> None:
        main._retire(sitting.worker)

    for line in each_line(main._retire, retire):
        sitting = Sitting()
        sitting.ask_for(sitting.handles[2])
        with before_line(main._retire, line, lambda: act(sitting.worker)):  # noqa: B023
            retire(sitting)
        sitting.check()
        assert not sitting.worker.local
        sitting.pool.close()
