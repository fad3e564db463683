"""Work that is in nobody's hands is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched._deque.ring import TOMB
from mpsched._pool.audit import Audit
from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged
from mpsched._tasks import records as rec, state as st
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def quiet() -> Iterator[QuietPool]:
    """A pool whose workers do nothing."""
    pool = QuietPool()
    yield pool
    pool.close()


def looks(audit: Audit, count: int) -> None:
    """Look so often, without waiting between."""
    for _ in range(count):
        audit._due = 0.0
        audit.look()


def dispatch(quiet: QuietPool, count: int) -> None:
    """Dispatch roots, as many to each worker."""
    for _ in range(count):
        quiet.ready.append(quiet.task(), 0)
    quiet.dispatcher.pump()


def claimed_by(quiet: QuietPool, worker: int) -> int:
    """Have a worker claim a root, and return its entry."""
    quiet.segment.words[quiet.layout.block(worker) + lay.B_STATE] = lay.AWAKE
    assert quiet.workers[worker]._claim()
    return quiet.workers[worker].local[-1]


def say(quiet: QuietPool, worker: int, state: int) -> None:
    """Have a worker say what it does."""
    quiet.segment.words[quiet.layout.block(worker) + lay.B_STATE] = state


def test_audit_of_a_sound_pool_finds_nothing(quiet: QuietPool) -> None:
    """Roots in inboxes, in a worker's hands, and none."""
    audit = Audit(quiet.as_pool)
    looks(audit, 3)
    dispatch(quiet, 6)
    looks(audit, 3)
    claimed_by(quiet, 0)
    looks(audit, 3)


def test_audit_finds_a_root_that_lies_nowhere(quiet: QuietPool) -> None:
    """At the second look: it fails the pool, with a text that says which."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.INBOX_HEADER + words[base + lay.I_HEAD] % quiet.layout.inbox_slots] = TOMB
    audit = Audit(quiet.as_pool)
    looks(audit, 1)
    with pytest.raises(Damaged, match=r"waits for worker 0, and lies in no inbox"):
        looks(audit, 1)


def test_audit_finds_an_index_that_is_wrong(quiet: QuietPool) -> None:
    """A HEAD beyond TAIL looks empty to whoever only glances at it."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.I_HEAD] = words[base + lay.I_TAIL] + 3
    with pytest.raises(Damaged, match="the inbox of worker 0 is damaged"):
        looks(Audit(quiet.as_pool), 1)


def test_audit_waits_for_nobody_who_holds_an_inbox(quiet: QuietPool) -> None:
    """What somebody moves is looked at the next time."""
    dispatch(quiet, 4)
    words = quiet.segment.words
    base = quiet.layout.inbox(0)
    words[base + lay.INBOX_HEADER + words[base + lay.I_HEAD] % quiet.layout.inbox_slots] = TOMB
    quiet.locks.tries = 0
    audit = Audit(quiet.as_pool)
    quiet.locks.taken = {0}
    looks(audit, 3)
    quiet.locks.taken = set()
    looks(audit, 1)
    with pytest.raises(Damaged):
        looks(audit, 1)


def test_audit_finds_a_root_that_an_idle_worker_is_said_to_run(quiet: QuietPool) -> None:
    """Its record is lost, or its state word names another worker than the one that has it."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    audit = Audit(quiet.as_pool)
    looks(audit, 3)
    say(quiet, 0, lay.PARKED)
    looks(audit, 1)
    with pytest.raises(Damaged, match=r"is in the hands of worker 0, which has nothing"):
        looks(audit, 1)


def test_audit_gives_a_claimed_root_one_look_more(quiet: QuietPool) -> None:
    """A helper may be about to give it back."""
    dispatch(quiet, 1)
    claimed_by(quiet, 0)
    say(quiet, 0, lay.PARKED)
    audit = Audit(quiet.as_pool)
    looks(audit, 2)
    with pytest.raises(Damaged, match="which has nothing"):
        looks(audit, 1)


def test_audit_leaves_out_what_a_stopped_worker_has_claimed(
    quiet: QuietPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its helper may have been stopped with it in its hands."""
    dispatch(quiet, 1)
    claimed_by(quiet, 0)
    say(quiet, 0, lay.PARKED)
    monkeypatch.setattr("mpsched._pool.limits.stopped", lambda _pid: True)
    looks(Audit(quiet.as_pool), 5)


def test_audit_waits_for_a_record_that_nobody_has_read(quiet: QuietPool) -> None:
    """The root has ended, and is as good as delivered."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    worker = quiet.workers[0]
    worker.results.write(quiet.table.ident[handle], handle, rec.R_INT, 5, 7)
    say(quiet, 0, lay.PARKED)
    audit = Audit(quiet.as_pool)
    looks(audit, 5)
    assert quiet.leader.drain() == 1
    looks(audit, 5)


def test_audit_leaves_a_lost_root_to_those_who_wait_for_its_children(quiet: QuietPool) -> None:
    """Its state word names an index whose next process knows nothing of it."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    say(quiet, 0, lay.STARTING)
    quiet.lost = {quiet.table.ident[handle]}
    looks(Audit(quiet.as_pool), 5)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("state", st.word(st.DONE, 0), "is in no state that there is, 0x5"),
        ("state", st.word(st.RUNNING, 99), "is in no state that there is, 0x6303"),
        ("state", st.word(st.REVOKED, 1), "was taken back, and by nobody"),
        ("ident", 4711, "has the entry of task 4711"),
        ("meta", 9 << 8, "has the entry of task 1"),
    ],
)
def test_audit_finds_words_that_say_something_else(
    quiet: QuietPool, field: str, value: int, text: str
) -> None:
    """A state of no root, a worker that there is not, another task's id, another attempt."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    raw = memoryview(quiet.segment.words)[getattr(quiet.layout, field) :]
    raw[handle] = value
    audit = Audit(quiet.as_pool)
    looks(audit, 1)
    with pytest.raises(Damaged, match=text):
        looks(audit, 2)
    raw.release()


@pytest.mark.parametrize("state", [st.CLAIMED, st.RUNNING])
def test_audit_finds_a_child_in_the_hands_of_an_idle_thief(quiet: QuietPool, state: int) -> None:
    """Its home would wait for it without end; a thief that is awake may have it."""
    dispatch(quiet, 1)
    claimed_by(quiet, 0)
    (child, *_) = quiet.layout.children_of(0)
    raw = memoryview(quiet.segment.words)[quiet.layout.state :]
    raw[child] = st.word(state, 1)
    say(quiet, 1, lay.AWAKE)
    audit = Audit(quiet.as_pool)
    looks(audit, 3)
    say(quiet, 1, lay.PARKED)
    looks(audit, 1)
    with pytest.raises(Damaged, match="a child of worker 0 is in the hands of worker 1"):
        looks(audit, 1)
    raw.release()


def test_audit_forgets_what_was_well_in_between(quiet: QuietPool) -> None:
    """Looks count in a row only."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    audit = Audit(quiet.as_pool)
    for _ in range(4):
        say(quiet, 0, lay.PARKED)
        looks(audit, 1)
        say(quiet, 0, lay.AWAKE)
        looks(audit, 1)


def told(quiet: QuietPool, worker: int, executed: int) -> None:
    """Have a worker say how many roots it has finished."""
    quiet.segment.words[quiet.layout.block(worker) + lay.B_EXECUTED] = executed


def test_audit_finds_what_a_busy_worker_is_said_to_run(quiet: QuietPool) -> None:
    """One that goes on finishing other roots is not inside of this one, nor of a child."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    audit = Audit(quiet.as_pool)
    for executed in (5, 9, 40, 40, 40):
        told(quiet, 0, executed)
        looks(audit, 1)
    told(quiet, 0, 41)
    with pytest.raises(Damaged, match=r"worker 0, which has finished others since"):
        looks(audit, 1)


def test_audit_finds_a_child_that_a_busy_thief_is_said_to_run(quiet: QuietPool) -> None:
    """A thief finishes no root before the child that it has."""
    dispatch(quiet, 1)
    claimed_by(quiet, 0)
    say(quiet, 1, lay.AWAKE)
    (child, *_) = quiet.layout.children_of(0)
    raw = memoryview(quiet.segment.words)[quiet.layout.state :]
    raw[child] = st.word(st.RUNNING, 1)
    audit = Audit(quiet.as_pool)
    for executed in (5, 9, 40):
        told(quiet, 1, executed)
        looks(audit, 1)
    told(quiet, 1, 41)
    with pytest.raises(Damaged, match="of worker 1, which has finished roots since"):
        looks(audit, 1)
    raw.release()


def test_audit_of_a_root_that_has_ended_waits_for_its_record(quiet: QuietPool) -> None:
    """Its worker goes on with others, while nobody reads."""
    dispatch(quiet, 1)
    handle = claimed_by(quiet, 0)
    quiet.table.state[handle] = st.word(st.RUNNING, 0)
    quiet.workers[0].results.write(quiet.table.ident[handle], handle, rec.R_INT, 5, 7)
    audit = Audit(quiet.as_pool)
    for executed in range(8):
        told(quiet, 0, executed)
        looks(audit, 1)
    assert quiet.leader.drain() == 1
    for executed in range(8, 16):
        told(quiet, 0, executed)
        looks(audit, 1)
