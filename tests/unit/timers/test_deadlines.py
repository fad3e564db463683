"""Deadlines, and times that follow the wall clock."""

from __future__ import annotations

from mpsched import CancelResult, Due, VersionedTimerHeap, Wait
from tests.support.timers import Drops, drain, function, state, take


def test_deadlines_passed_are_missed() -> None:
    """What has not started by its deadline never starts; it failed, as missed."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 1.0, 0, function, deadline=3.0)
    heap.schedule("b", 1.0, 0, function, deadline=5.0)
    assert heap.next(0.0) == Wait(1.0)
    assert drain(heap, 3.5) == ["b"]
    assert drops == [(("a", 1), "missed")]
    status = heap.status("a")
    assert status is not None
    assert (status.state, status.outcome, status.deadline) == ("failed", "missed", 3.0)
    assert heap.cancel("a") is CancelResult.TOO_LATE


def test_deadlines_their_very_moment_is_in_time() -> None:
    """At the deadline it may start; a moment later it may not."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function, deadline=1.0)
    assert drain(heap, 1.0) == ["a"]
    heap.schedule("a", 1.0, 0, function, deadline=1.0)
    assert drain(heap, 1.000_001) == []
    assert state(heap, "a") == "failed"


def test_deadlines_before_the_time_are_waited_for() -> None:
    """The hint is the first of times and deadlines, so that a miss is told in time."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 9.0, 0, function, deadline=4.0)
    assert heap.peek(1.0) == Wait(3.0)
    assert heap.expire(4.0) == []
    assert not drops
    assert heap.expire(4.5) == []
    assert drops == [(("a", 1), "missed")]
    assert heap.peek(4.5) is None
    heap.check_invariants()


def test_deadlines_of_what_is_claimed_are_told_once() -> None:
    """The caller takes it back and finishes it, or it has started meanwhile."""
    heap = VersionedTimerHeap()
    for name in "abc":
        heap.schedule(name, 1.0, 0, function, deadline=2.0)
    one, two, three = heap.claim_many(1.0, 3)
    assert heap.next(1.5) == Wait(0.5)
    assert heap.next(3.0) is None
    assert heap.start(three)
    assert heap.expire(3.0) == [one, two]
    assert heap.expire(3.0) == []
    assert heap.finish(one, "missed")
    assert heap.revoke(two)
    assert heap.next(3.0) is None
    assert (state(heap, "a"), state(heap, "b"), state(heap, "c")) == ("failed", "failed", "running")
    assert heap.finish(three, "completed")
    heap.check_invariants()


def test_deadlines_of_what_left_its_claim_are_not_told() -> None:
    """Cancelled, replaced, finished or taken back after the deadline was seen: nobody is told."""
    heap = VersionedTimerHeap()
    for name in "abcd":
        heap.schedule(name, 1.0, 0, function, deadline=2.0)
    dues = heap.claim_many(1.0, 4)
    assert heap.next(3.0) is None
    heap.cancel("a")
    heap.schedule("b", 9.0, 0, function)
    heap.finish(dues[2], "failed")
    heap.revoke(dues[3])
    assert heap.expire(3.0) == []
    heap.check_invariants()


def test_deadlines_bind_every_attempt() -> None:
    """An attempt that has not started by the deadline is missed, the second one too."""
    drops = Drops()
    heap = VersionedTimerHeap(on_drop=drops)
    heap.schedule("a", 1.0, 0, function, deadline=5.0)
    assert heap.retry(take(heap, 1.0), 4.0)
    assert heap.retry(take(heap, 4.0), 8.0)
    assert heap.next(4.0) == Wait(1.0)
    assert heap.next(8.0) is None
    assert drops == [(("a", 1), "missed")]
    heap.schedule("b", 1.0, 0, function, deadline=5.0)
    due = take(heap, 1.0)
    assert heap.peek(6.0) is None  # its deadline is looked at while it runs
    assert heap.retry(due, 7.0)
    assert heap.next(7.0) is None
    assert drops[1:] == [(("b", 2), "missed")]


def test_deadlines_hold_for_what_is_paused_and_moved() -> None:
    """Pausing or moving a task does not move its deadline."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function, deadline=5.0)
    heap.schedule("b", 1.0, 0, function, deadline=5.0)
    heap.pause("a")
    heap.reschedule("b", run_at=7.0)
    assert heap.peek(0.0) == Wait(5.0)
    heap.expire(6.0)
    heap.check_invariants()
    assert (state(heap, "a"), state(heap, "b"), len(heap)) == ("failed", "failed", 0)


def test_deadlines_of_an_older_version_do_not_concern_the_new_one() -> None:
    """The id lives on without its old deadline."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function, deadline=5.0)
    heap.schedule("a", 9.0, 0, function)
    assert heap.peek(0.0) == Wait(9.0)
    assert drain(heap, 9.0) == ["a"]


def test_walls_move_with_the_clock_and_nothing_else_does() -> None:
    """`rebase` gives what follows the wall clock its time anew (B1)."""
    heap = VersionedTimerHeap()
    heap.schedule("wall", 50.0, 0, function, at=1050.0)
    heap.schedule("plain", 60.0, 0, function)
    assert heap.walls == 1
    assert heap.rebase(1000.0) == 0
    assert heap.rebase(980.0) == 1  # set back by 20 seconds: due 20 seconds later
    heap.check_invariants()
    assert heap.peek(0.0) == Wait(60.0)
    assert drain(heap, 60.0) == ["plain"]
    assert heap.peek(60.0) == Wait(10.0)
    heap.rebase(1e6)
    assert drain(heap, 60.0) == ["wall"]
    assert heap.walls == 0


def test_walls_are_those_of_pending_versions() -> None:
    """Claimed, moved to a plain time, paused, cancelled, replaced: the count follows."""
    heap = VersionedTimerHeap()
    for name in "abcd":
        heap.schedule(name, 1.0, 0, function, at=1001.0)
    due = heap.claim(1.0)
    assert isinstance(due, Due)
    heap.check_invariants()
    assert (heap.walls, heap.rebase(500.0)) == (3, 3)
    assert heap.revoke(due)
    heap.check_invariants()
    assert heap.walls == 4
    heap.reschedule("a", run_at=3.0)
    heap.reschedule("b", priority=3)
    heap.reschedule("c", run_at=7.0, at=1007.0)
    heap.check_invariants()
    assert heap.walls == 3
    heap.pause("b")
    heap.rebase(1000.0)
    heap.check_invariants()
    heap.resume("b")
    status = heap.status("b")
    assert status is not None
    assert (status.run_at, status.at) == (1.0, 1001.0)
    heap.pause("c")
    heap.resume("c", 5.0)
    heap.check_invariants()
    heap.cancel("b")
    heap.schedule("d", 2.0, 0, function)
    heap.check_invariants()
    assert heap.walls == 0


def test_walls_forget_the_wall_at_a_retry() -> None:
    """A retry comes at the time it was given."""
    heap = VersionedTimerHeap()
    heap.schedule("a", 1.0, 0, function, at=1001.0)
    heap.retry(take(heap, 1.0), 5.0)
    heap.check_invariants()
    assert (heap.walls, heap.rebase(0.0)) == (0, 0)
    assert drain(heap, 5.0) == ["a"]
