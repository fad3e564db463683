"""From pending to final: claims, starts, ends, retries, replacement while running."""

from __future__ import annotations

import math

import pytest

from mpsched import CancelResult, Due, VersionedTimerHeap, Wait
from mpsched._timers.states import ALLOWED, State
from mpsched.errors import StaleVersion
from tests.support.timers import Drops, drain, function, state, take


def test_versions_go_from_pending_to_completed() -> None:
    """schedule, next, finish; then it is known to be over."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    assert state(heap, "a") == "pending"
    due = take(heap, 1.0)
    assert state(heap, "a") == "running"
    assert heap.state_of(due) is State.RUNNING
    assert heap.finish(due, "completed")
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.outcome, status.running) == ("completed", "completed", ())
    assert heap.state_of(due) is State.COMPLETED
    assert heap.cancel("a") is CancelResult.TOO_LATE


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_versions_are_finished_once(outcome: str) -> None:
    """A second end of the same attempt is refused, and changes nothing."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    due = take(heap, 1.0)
    heap.finish(due, outcome)  # type: ignore[arg-type]
    with pytest.raises(StaleVersion, match="version 1 of 'a', attempt 1, is over"):
        heap.finish(due, "failed")
    assert state(heap, "a") == outcome


def test_versions_claimed_are_pending_and_come_back() -> None:
    """A claim is dispatched, not started; a revoked one is in its old place again."""
    heap = VersionedTimerHeap()
    for name in "abc":
        heap.schedule(name, 1.0, 0, function)
    first = heap.claim(1.0)
    assert isinstance(first, Due)
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.claimed) == ("pending", True)
    assert (len(heap), heap.metrics().claimed) == (2, 1)
    second, third = heap.claim_many(1.0, 5)
    assert heap.claim_many(1.0, 5) == []
    assert heap.claim(1.0) is None
    assert heap.revoke(second)
    assert heap.revoke(first)
    assert not heap.revoke(first)
    heap.check_invariants()
    assert heap.start(third)
    assert not heap.start(third)
    assert not heap.revoke(third)
    assert drain(heap, 1.0) == ["a", "b"]


def test_versions_claim_waits_as_next_does() -> None:
    """Nothing due: the seconds until something is."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 7.0, 0, function)
    assert heap.claim(1.0) == Wait(6.0)
    assert heap.claim_many(1.0, 2) == []
    with pytest.raises(ValueError, match="nan"):
        heap.claim(math.nan)
    with pytest.raises(ValueError, match="nan"):
        heap.claim_many(math.nan, 1)


def test_versions_cancelled_while_claimed_never_start() -> None:
    """The start asks first, and is told not to."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 1.0, 0, function)
    due = heap.claim(1.0)
    assert isinstance(due, Due)
    assert heap.cancel("a") is CancelResult.PREVENTED
    heap.check_invariants()
    assert not heap.start(due)
    assert not heap.revoke(due)
    with pytest.raises(StaleVersion):
        heap.finish(due, "failed")
    assert drops == [(("a", 1), "cancelled")]
    assert heap.next(9.0) is None


def test_versions_replaced_while_claimed_never_start() -> None:
    """The old version is over as soon as the new one is there."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 1.0, 0, max)
    due = heap.claim(1.0)
    assert isinstance(due, Due)
    heap.schedule("a", 2.0, 0, min)
    heap.check_invariants()
    assert not heap.start(due)
    assert not heap.revoke(due)
    assert heap.state_of(due) is None
    assert drops == [(("a", 1), "superseded")]
    assert take(heap, 2.0).fn is min


def test_versions_claimed_can_fail_without_a_start() -> None:
    """What could not be sent, or was too late, ends as failed; it cannot have been completed."""
    heap = VersionedTimerHeap()
    for outcome in ("failed", "cancelled", "missed"):
        heap.schedule("a", 1.0, 0, function)
        due = heap.claim(1.0)
        assert isinstance(due, Due)
        with pytest.raises(ValueError, match="cannot be 'completed': it has not started"):
            heap.finish(due, "completed")
        assert heap.finish(due, outcome)
        status = heap.status("a")
        assert status is not None
        assert status.outcome == outcome
        heap.check_invariants()
    heap.schedule("a", 1.0, 0, function)
    due = take(heap, 1.0)
    with pytest.raises(ValueError, match="cannot be 'missed': it has started"):
        heap.finish(due, "missed")
    with pytest.raises(ValueError, match="outcome must be one of"):
        heap.finish(due, "done")  # type: ignore[arg-type]
    assert heap.finish(due, "completed")


def test_versions_running_are_asked_to_stop() -> None:
    """Cancelling what runs is a request, shown in its status, until it is finished."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    due = take(heap, 1.0)
    assert heap.cancel("a") is CancelResult.REQUESTED
    assert heap.cancel("a") is CancelResult.REQUESTED
    assert not CancelResult.REQUESTED
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.cancel_requested) == ("running", True)
    heap.finish(due, "completed")
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.cancel_requested) == ("completed", True)
    assert heap.cancel("a") is CancelResult.TOO_LATE


def test_versions_replaced_while_running_go_on() -> None:
    """A late end goes to the old version, never over the new one."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, max)
    old = take(heap, 1.0)
    heap.schedule("a", 2.0, 0, min)
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.version, status.running) == ("pending", 2, (1,))
    new = take(heap, 2.0)
    heap.schedule("a", 3.0, 0, abs)
    status = heap.status("a")
    assert status is not None
    assert (status.version, status.running) == (3, (1, 2))
    assert not heap.finish(old, "failed")
    heap.check_invariants()
    assert state(heap, "a") == "pending"
    assert not heap.finish(new, "completed")
    assert take(heap, 3.0).fn is abs
    heap.check_invariants()


def test_versions_replaced_for_ever_leave_nothing() -> None:
    """An id that is replaced during each of its runs keeps no trace of the old ones."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 0.0, 0, function)
    running = take(heap, 0.0)
    for _ in range(500):
        heap.schedule("a", 0.0, 0, function)
        following = take(heap, 0.0)
        assert not heap.finish(running, "completed")
        running = following
    heap.check_invariants()
    assert heap.metrics()._replace(rebuilds=0) == (0, 0, 0, 0.0, 0, 0, 1, 0, 0)
    assert heap.finish(running, "completed")


def test_versions_cancel_finds_the_ones_that_still_run() -> None:
    """With the newest one over, older ones that run are asked; one version can be named."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    take(heap, 1.0)
    heap.schedule("a", 9.0, 0, function)
    assert heap.cancel("a", version=7) is CancelResult.UNKNOWN
    assert heap.cancel("a", version=1) is CancelResult.REQUESTED
    assert state(heap, "a") == "pending"
    assert heap.cancel("a") is CancelResult.PREVENTED
    assert heap.cancel("a") is CancelResult.REQUESTED
    assert heap.cancel("a", version=2) is CancelResult.TOO_LATE
    heap.check_invariants()


def test_versions_cancel_names_the_version() -> None:
    """`version=` of the pending one prevents it; of an older one that is over, it is too late."""
    heap = VersionedTimerHeap()
    old = heap.schedule("a", 1.0, 0, function)
    new = heap.schedule("a", 1.0, 0, function)
    assert heap.cancel("a", version=old) is CancelResult.TOO_LATE
    assert state(heap, "a") == "pending"
    assert heap.cancel("a", version=new) is CancelResult.PREVENTED


def assert_over(heap: VersionedTimerHeap, due: Due) -> None:
    with pytest.raises(StaleVersion, match="is over"):
        heap.finish(due, "failed")
    with pytest.raises(StaleVersion, match="does not run"):
        heap.retry(due, 3.0)


def test_versions_retry_is_another_attempt_of_the_same() -> None:
    """Running, then pending again with the next attempt; the old attempt is over."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, max, args=(1, 2))
    first = take(heap, 1.0)
    assert heap.retry(first, 5.0)
    heap.check_invariants()
    assert heap.next(4.0) == Wait(1.0)
    assert_over(heap, first)
    second = take(heap, 5.0)
    assert second == first._replace(run_at=5.0, attempt=2)
    assert_over(heap, first)
    assert not heap.start(first)
    assert not heap.revoke(first)
    assert heap.finish(second, "completed")


def test_versions_cancelled_between_attempts_never_run_again() -> None:
    """PREVENTED between attempts: no further attempt starts."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    heap.retry(take(heap, 1.0), 5.0)
    assert heap.cancel("a") is CancelResult.PREVENTED
    assert heap.next(9.0) is None
    assert state(heap, "a") == "cancelled"


def test_versions_asked_to_stop_or_replaced_are_not_retried() -> None:
    """Then the attempt is the last, and is to be finished."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    due = take(heap, 1.0)
    heap.cancel("a")
    assert not heap.retry(due, 5.0)
    assert heap.finish(due, "cancelled")
    heap.schedule("a", 1.0, 0, function)
    due = take(heap, 1.0)
    heap.schedule("a", 9.0, 0, function)
    assert not heap.retry(due, 5.0)
    assert not heap.finish(due, "failed")
    heap.check_invariants()


def test_versions_every_claimed_retry_keeps_its_attempt() -> None:
    """A second attempt that is claimed and taken back is the second attempt still."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function)
    heap.retry(take(heap, 1.0), 2.0)
    due = heap.claim(2.0)
    assert isinstance(due, Due)
    assert due.attempt == 2
    assert heap.revoke(due)
    assert take(heap, 2.0).attempt == 2


def test_versions_ends_are_remembered_up_to_a_bound() -> None:
    """At least `remember` ends are known, at most twice as many, the last ones first."""
    heap = VersionedTimerHeap(remember=10)
    for task_id in range(100):
        heap.schedule(task_id, 1.0, 0, function)
        if task_id % 2:
            heap.cancel(task_id)
        else:
            heap.finish(take(heap, 1.0), "failed")
        assert all(heap.status(one) is not None for one in range(max(0, task_id - 9), task_id + 1))
        assert heap.metrics().remembered <= 20
    assert heap.cancel(0) is CancelResult.UNKNOWN
    assert heap.cancel(99) is CancelResult.TOO_LATE


def test_states_finals_allow_nothing_and_the_rest_reaches_them() -> None:
    """The table has every state; from each that is not final, every end is reached."""
    finals = {State.COMPLETED, State.FAILED, State.CANCELLED}
    assert set(ALLOWED) == set(State)
    assert {one for one, moves in ALLOWED.items() if not moves} == finals
    for start in State:
        seen, new = {start}, {start}
        while new := {to for one in new for to in ALLOWED[one]} - seen:
            seen |= new
        assert start in finals or seen >= finals
    assert State.CLAIMED.public == "pending"
    assert {state.public for state in State} == {
        "pending", "running", "completed", "failed", "cancelled",
    }  # fmt: skip
