"""Parking, with work that comes before any of its lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mpsched._shm import layout as lay
from mpsched._worker import idle
from tests.support.lines import before_line, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.worker import Worker


class SleepsError(Exception):
    """It would sleep now, without a token that ends it. Args: what was added before."""


def watch(worker: Worker, added: list[str] | None = None) -> None:
    """Let a sleep that nobody has ended already be an error."""
    bell = worker.bell

    class Bell:
        def wait(self, _timeout: float | None) -> bool:
            if not bell.wait(0):
                raise SleepsError(*(added or ()))
            return True

    worker.bell = Bell()  # type: ignore[assignment]


def state(quiet: QuietPool, worker: int) -> int:
    return quiet.segment.words[quiet.layout.block(worker) + lay.B_STATE]


def push_to_own(quiet: QuietPool) -> None:
    quiet.push(0)


def hand_early_to_own(quiet: QuietPool) -> None:
    """One that is due at once; where the worker is not idle, as any other."""
    quiet.segment.words[quiet.layout.block(1) + lay.B_STATE] = lay.AWAKE
    if not quiet.dispatcher.hand_early(quiet.task(), 1):
        push_to_own(quiet)


def push_to_busy_neighbour(quiet: QuietPool) -> None:
    quiet.push(1)


def give_back_of_neighbour(quiet: QuietPool) -> None:
    """Two roots go through the neighbour's hands into its inbox again."""
    other = quiet.workers[1]
    span = quiet.entries.allocate(2)
    for handle in span:
        quiet.entries.write(handle, quiet.task(), 1 | 1 << 8)
    quiet.dispatcher.inboxes[1].push(list(span))
    other.give_back(other._take(other.inbox, 2, wait=True))


def stop(quiet: QuietPool) -> None:
    quiet.segment.words[quiet.layout.block(0) + lay.B_STOP] = 1
    quiet.bells[0].wake()


WAYS = (push_to_own, hand_early_to_own, push_to_busy_neighbour, give_back_of_neighbour, stop)


def test_idle_without_work_sleeps(quiet: QuietPool) -> None:
    """What the other tests take for a sleep is one; and it is announced while it lasts."""
    watch(quiet.workers[0])
    with pytest.raises(SleepsError):
        idle.park(quiet.workers[0])
    assert state(quiet, 0) == lay.AWAKE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [idle.park, idle.sources])
def test_idle_work_that_comes_at_any_line_is_not_slept_over(
    way: Callable[[QuietPool], None], function: Callable[..., object]
) -> None:
    """No lost wake-up: whoever adds work before any line, the parker looks again or is rung."""

    def parked() -> None:
        pool = QuietPool()
        watch(pool.workers[0])
        with pytest.raises(SleepsError):
            idle.park(pool.workers[0])
        pool.close()

    lines = lines_of(function, parked)
    assert lines >= 8
    for line in range(lines):
        pool = QuietPool()
        added: list[str] = []
        watch(pool.workers[0], added)

        def add() -> None:
            way(pool)  # noqa: B023
            added.append("work")  # noqa: B023

        with before_line(function, line, add):
            slept_over: tuple[str, ...] = ()
            try:
                idle.park(pool.workers[0])
            except SleepsError as sleep:
                slept_over = sleep.args
        assert not slept_over, f"it sleeps over what came before line {line}"
        assert state(pool, 0) == lay.AWAKE
        pool.close()


def test_idle_park_rings_the_helpers_of_those_who_have_more(quiet: QuietPool) -> None:
    """A thief that nobody answers asks the helper of the one that sits on claimed roots."""
    worker, words = quiet.workers[0], quiet.segment.words
    words[quiet.layout.block(1) + lay.B_CLAIMED] = 3
    waits = 0

    class Bell:
        def wait(self, _timeout: float | None) -> bool:
            nonlocal waits
            waits += 1
            return waits == 3

    worker.bell = Bell()  # type: ignore[assignment]
    idle.park(worker)
    assert waits == 3
    assert quiet.helper_bells[1].wait(0)
    assert not quiet.helper_bells[0].wait(0)


@pytest.mark.parametrize("then", ["nobody", "rings", "takes it"])
def test_idle_park_that_its_safety_timeout_ends_with_work_is_counted(
    quiet: QuietPool, then: str
) -> None:
    """A lost wake-up is seen in `rescues`; who has brought work may ring late, or ring another one."""
    worker, block = quiet.workers[0], quiet.layout.block(0)
    asked: list[float | None] = []

    class Bell:
        def wait(self, timeout: float | None) -> bool:
            asked.append(timeout)
            if len(asked) == 2:
                span = quiet.entries.allocate(1)
                quiet.entries.write(span.start, quiet.task(), 1)
                quiet.dispatcher.inboxes[1].push(list(span))
            if len(asked) == 3 and then == "takes it":
                other = quiet.workers[1]
                assert other._take(other.inbox, 2, wait=True)
            return len(asked) == 3 and then == "rings"

    worker.bell = Bell()  # type: ignore[assignment]
    assert idle.park(worker)
    assert asked == [0.1, 0.2, 0.1]
    assert quiet.segment.words[block + lay.B_RESCUES] == (then == "nobody")
    assert quiet.segment.words[block + lay.B_PARKS] == 2


def test_idle_safety_timeout_grows_up_to_its_limit() -> None:
    """An idle pool uses no CPU: 0.1 s, twice as long each time, at most 5 s."""
    pool = QuietPool()
    asked: list[float | None] = []

    class Bell:
        def wait(self, timeout: float | None) -> bool:
            asked.append(timeout)
            return len(asked) == 9

    pool.workers[0].bell = Bell()  # type: ignore[assignment]
    idle.park(pool.workers[0])
    pool.close()
    assert asked == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_worker_that_was_told_of_a_root_to_come_stays_awake_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For as long as the word says, up to a limit; without it, it sleeps at once."""
    quiet = QuietPool()
    worker = quiet.workers[0]
    looks: list[int] = []

    def look() -> None:
        looks.append(state(quiet, 0))
        if len(looks) == 3:
            push_to_own(quiet)

    assert idle._SOON_NS == 5_000_000
    # This test may be put aside for longer.
    monkeypatch.setattr(idle, "_SOON_NS", 60_000_000_000)
    monkeypatch.setattr("os.sched_yield", look)
    monkeypatch.setattr(idle, "_SOON_NS", 3_600_000_000_000)  # else a busy machine ends it earlier
    assert not idle.linger(worker)
    assert looks == []
    assert not idle.is_expected(worker)
    quiet.segment.words[lay.H_SOON] = time.monotonic_ns() + 3_600_000_000_000
    assert idle.is_expected(worker)
    assert idle.linger(worker)
    assert looks == [lay.LINGERING] * 3
    assert state(quiet, 0) == lay.AWAKE
    assert len(worker._take(worker.inbox, 9, wait=True)) == 1
    monkeypatch.setattr(idle, "_SOON_NS", 1)
    assert not idle.linger(worker)  # it ended by itself
    quiet.close()


def test_worker_that_lingers_stays_awake_for_what_is_expected_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once nothing new is expected, it parks."""
    quiet = QuietPool()
    worker, words = quiet.workers[0], quiet.segment.words
    now = [time.monotonic_ns()]
    words[lay.H_SOON] = now[0] + 1_000_000_000
    looks: list[int] = []

    def look() -> None:
        looks.append(state(quiet, 0))
        now[0] += 4_000_000  # two looks and it has waited its time
        if len(looks) == 2:
            assert quiet.dispatcher.expect(now[0] + 3_000_000, 1)

    monkeypatch.setattr("os.sched_yield", look)
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    assert not idle.linger(worker)
    assert looks == [lay.LINGERING] * 3
    assert not quiet.bells[0].wait(0)
    assert state(quiet, 0) == lay.AWAKE
    quiet.close()


@pytest.mark.parametrize("long", [False, True])
def test_worker_is_woken_for_what_is_expected_unless_others_need_the_cores(long: bool) -> None:
    """One works for long, one waits for the moment: on two cores a third one would keep it from its work."""
    quiet = QuietPool()
    words, dispatcher = quiet.segment.words, quiet.dispatcher
    for worker, what in enumerate((lay.PARKED, lay.AWAKE)):
        words[quiet.layout.block(worker) + lay.B_STATE] = what
    if long:
        dispatcher.note_times(5e6, 0.0)
        dispatcher._cores = 2
        assert dispatcher.expect(17, 1)
        assert not quiet.bells[0].wait(0)
        assert words[lay.H_SOON] == 0
        dispatcher._cores = 3
    assert dispatcher.expect(17, 1)
    assert quiet.bells[0].wait(0)
    assert words[lay.H_SOON] == 17
    words[quiet.layout.block(0) + lay.B_STATE] = lay.AWAKE
    assert not dispatcher.expect(17, 1)
    quiet.close()
