"""A Scheduler under load: cancel and replace against start, bursts, busy pools, killed workers."""

from __future__ import annotations

import concurrent.futures as cf
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched import CancelResult, Scheduler
from mpsched.errors import WorkerDied
from tests.support import tasks, timed
from tests.support.gates import wait_until
from tests.support.pools import kill

if TYPE_CHECKING:
    import numpy as np

    from mpsched import TaskHandle

HANG_S = 120.0


def race_cancels(
    s: Scheduler,
    rng: random.Random,
    races: int,
    marks: np.ndarray[Any, Any],
    ahead: float = 0.0,
) -> None:
    """Cancel each task at a random moment around its start; check what was promised.

    It is due `ahead` seconds after it is scheduled.
    """
    seen = dict.fromkeys(CancelResult, 0)
    done = 0
    while done < races:
        batch = range(done, min(done + 50, races))
        handles: list[TaskHandle[bool]] = []
        answers: list[CancelResult] = []
        for index in batch:
            # One that is asked must end by its signal; so each is either short or waits for it.
            handle = s.schedule("race", after=ahead, fn=timed.until_asked, args=(marks, index))
            if not index:
                wait_until(lambda: marks[0], "the start of the first")
            moment = 10 ** rng.uniform(-5, -2.3)  # some 10 us to 5 ms, as a busy machine needs
            if ahead:
                moment += ahead - 0.000_8
            until = time.perf_counter() + moment
            while time.perf_counter() < until:
                pass
            answers.append(s.cancel("race"))
            handles.append(handle)
        for index, handle, answer in zip(batch, handles, answers, strict=True):
            seen[answer] += 1
            if answer is CancelResult.PREVENTED:
                assert handle.cancelled(), index
            else:
                assert answer is CancelResult.REQUESTED, (index, answer)
                assert handle.result(HANG_S) is True, index
        done = batch.stop
    # Whatever was prevented has had its time to start by now, had it been possible.
    for index in range(races):
        assert marks[index] in {0, 1}
    ran = int(marks[:races].sum())
    assert ran == seen[CancelResult.REQUESTED], "PREVENTED ran, or REQUESTED did not"
    print({answer.name: number for answer, number in seen.items()})
    if not ahead:  # else a busy machine may be late for all of them, or too late for any
        assert seen[CancelResult.PREVENTED]
        assert seen[CancelResult.REQUESTED]


def test_scheduler_cancel_against_start_keeps_its_word(rng: random.Random) -> None:
    """PREVENTED never ran; REQUESTED ran, and saw its signal."""
    marks = mpsched.shared_array(800, "int64", fill=0)
    with Scheduler(2) as s:
        race_cancels(s, rng, 800, marks)


def test_scheduler_cancel_a_moment_before_the_time_keeps_its_word(rng: random.Random) -> None:
    """The same while it is prepared: claimed, and not handed over yet."""
    marks = mpsched.shared_array(300, "int64", fill=0)
    with Scheduler(2) as s:
        race_cancels(s, rng, 300, marks, 0.002)


def test_scheduler_starts_what_is_prepared_in_order_and_never_early(rng: random.Random) -> None:
    """Timers some 0 to 0.5 ms apart, at the same instants too, and one worker: their own order."""
    gaps = [rng.choice((0.0, 0.000_02, 0.000_3, rng.random() * 0.000_5)) for _ in range(400)]
    numbers = [*range(len(gaps))]
    rng.shuffle(numbers)
    with Scheduler(1, history=len(gaps)) as s:
        s.schedule("up", after=0, fn=tasks.nothing).result(HANG_S)
        ahead = 0.1
        while True:
            begin = s.now() + ahead
            times = [begin + offset for offset in itertools.accumulate(gaps)]
            handles = [s.schedule(n, times[n], -n, tasks.nothing) for n in numbers]
            in_time = s.now() < begin
            for handle in handles:
                handle.result(HANG_S)
            runs = sorted(s.history(), key=lambda run: run.started or 0.0)
            assert all(run.lateness is not None and run.lateness >= 0 for run in runs)
            if in_time:
                break
            ahead *= 2  # some were due before others were there: they had another order
        assert [run.task_id for run in runs] == [*range(len(gaps))]


@pytest.mark.slow
def test_scheduler_cancel_against_start_keeps_its_word_20_000_times(rng: random.Random) -> None:
    """The same, often."""
    marks = mpsched.shared_array(20_000, "int64", fill=0)
    with Scheduler(2) as s:
        race_cancels(s, rng, 20_000, marks)


def race_replacements(
    s: Scheduler, rng: random.Random, races: int, marks: np.ndarray[Any, Any]
) -> None:
    """Replace each version at a random moment around its start, while workers are busy."""
    begun: list[tuple[TaskHandle[bool], int]] = []
    for index in range(races):
        name = index % 4
        handle = s.schedule(
            name, after=0, fn=timed.count, args=(marks, index, rng.choice((0, 200)))
        )
        begun.append((handle, index))
        until = time.perf_counter() + rng.random() * 0.000_2
        while time.perf_counter() < until:
            pass
    replaced = 0
    for handle, index in begun:
        try:
            handle.result(HANG_S)
        except cf.CancelledError:
            replaced += 1
            assert marks[index] == 0, f"version {handle.version} ran after its replacement"
        else:
            assert marks[index] == 1
    assert int(marks[:races].sum()) == races - replaced
    assert replaced
    # An old version that starts does so before the call that replaced it has returned.
    versions = [handle.version for handle, _ in begun]
    assert versions == sorted(versions)


def test_scheduler_old_version_never_starts_after_its_replacement(rng: random.Random) -> None:
    """Whichever is cancelled has not run, and never does; every other one has run once."""
    marks = mpsched.shared_array(600, "int64", fill=0)
    with Scheduler(2) as s:
        race_replacements(s, rng, 600, marks)


@pytest.mark.slow
def test_scheduler_old_version_never_starts_5_000_times(rng: random.Random) -> None:
    """The same, often."""
    marks = mpsched.shared_array(5000, "int64", fill=0)
    with Scheduler(2) as s:
        race_replacements(s, rng, 5000, marks)


def test_scheduler_never_runs_more_at_once_than_it_has_workers() -> None:
    """Thousands due at one instant; peak active workers stay within the limit, and all are done."""
    active, seen = (mpsched.shared_array(8, "int64", fill=0) for _ in range(2))
    with Scheduler(2, history=3000) as s:
        at = s.now() + 0.2
        # However late one of the workers is, these two have one each.
        handles = [s.schedule(n, at, 0, timed.meet_one, args=(active, seen)) for n in range(2)]
        handles += [
            s.schedule(n, at, 0, timed.hold_one_more, args=(active, 0.0005)) for n in range(2, 2000)
        ]
        peak = max(handle.result(HANG_S) for handle in handles)
        metrics = s.metrics()
        assert peak == metrics.peak_active == 2
        assert metrics.outcomes == {"completed": 2000}
        workers = {run.worker for run in s.history()}
        assert workers == {0, 1}
        assert all(run.lateness is not None and run.lateness >= 0 for run in s.history())


def test_scheduler_hands_out_no_more_than_the_room() -> None:
    """What is with the pool is never more than the workers and their windows."""
    with Scheduler(2) as s:
        desk = s._desk
        most: list[int] = []
        at = s.now() + 0.1
        handles = [s.schedule(n, at, 0, tasks.nothing) for n in range(5000)]
        while not all(handle.done() for handle in handles[-20:]):
            with desk.lock:
                window = desk.pool.dispatcher.window()  # type: ignore[union-attr]
                most.append(desk.handed - 2 * (1 + max(window, 512)))
        assert max(most) <= 0
        for handle in handles:
            handle.result(HANG_S)
        wait_until(lambda: desk.handed == 0, "the last of them")


def test_scheduler_starts_a_burst_in_order() -> None:
    """3,000 timers due at one instant reach one worker in the order of their schedules."""
    with Scheduler(1, history=5000) as s:
        at = s.now() + 0.2
        handles = [s.schedule(n, at, 0, tasks.nothing) for n in range(3000)]
        for handle in handles:
            handle.result(HANG_S)
        runs = sorted(s.history(), key=lambda run: run.started or 0.0)
        assert [run.task_id for run in runs] == [*range(3000)]


@pytest.mark.slow
def test_scheduler_takes_300_000_that_are_due_now() -> None:
    """All run, none is lost, and nothing piles up."""
    with Scheduler(2, history=1000) as s:
        handles = [s.schedule(n, after=0, fn=tasks.identity, args=(n,)) for n in range(300_000)]
        assert sum(handle.result(HANG_S) for handle in handles) == sum(range(300_000))
        metrics = s.metrics()
        assert metrics.outcomes == {"completed": 300_000}
        assert metrics.pending == metrics.entries == metrics.dispatched == 0
        assert not s._desk.current


def test_scheduler_timers_do_not_starve_beside_a_task_that_spawns_without_end() -> None:
    """Timers find a worker although one task could keep all of them busy with its children."""
    stop = mpsched.shared_array(2, "int64", fill=0)
    with Scheduler(2) as s:
        spawner = s.schedule("spawner", after=0, fn=timed.endless, args=(stop,))
        wait_until(lambda: stop[1], "the spawner")
        base = s.now() + 0.1
        timers = [s.schedule(n, base + n * 0.02, 0, tasks.identity, args=(n,)) for n in range(50)]
        assert [timer.result(HANG_S) for timer in timers] == [*range(50)]
        assert not spawner.done()
        stop[0] = 1
        assert spawner.result(HANG_S) > 0


def test_scheduler_goes_on_when_its_workers_are_killed(rng: random.Random) -> None:
    """Each attempt ends once: completed, or failed with WorkerDied; what was only claimed runs."""
    with Scheduler(2) as s:
        handles = [s.schedule(n, after=0.001 * n, fn=time.sleep, args=(0.002,)) for n in range(300)]
        stop = threading.Event()
        kills: list[bool] = []

        def strike() -> None:
            pool = s._desk.pool
            assert pool is not None
            while len(kills) < 30 and not stop.wait(0.05 + rng.random() * 0.1):
                if pid := rng.choice(pool.supervisor.pids()):
                    kills.append(kill(pid))

        killer = threading.Thread(target=strike)
        killer.start()
        try:
            ends = [handle.exception(HANG_S) for handle in handles]
        finally:
            stop.set()
            killer.join()
        assert all(end is None or isinstance(end, WorkerDied) for end in ends)
        assert sum(end is not None for end in ends) <= sum(kills)
        assert len(s.history()) == 300


def test_scheduler_calls_from_many_threads_keep_the_book_in_order(rng: random.Random) -> None:
    """schedule, cancel, reschedule, status and metrics of the same few ids, from eight threads."""
    with Scheduler(2, on_error=lambda *_: None) as s:
        handles: list[TaskHandle[Any]] = []
        seeds = [rng.random() for _ in range(8)]

        def work(seed: float) -> None:
            own = random.Random(seed)
            for _ in range(150):
                name = own.randrange(5)
                step = own.randrange(6)
                if step < 3:
                    handles.append(
                        s.schedule(
                            name,
                            after=own.choice((-1, 0, 0.001, 0.01)),
                            fn=tasks.nothing,
                            where=own.choice(("worker", "thread")),
                            if_running=own.choice(("let_finish", "cancel", "wait")),
                        )
                    )
                elif step == 3:
                    s.cancel(name)
                elif step == 4:
                    s.reschedule(name, after=own.choice((0, 0.005)), priority=own.randrange(3))
                else:
                    s.status(name)
                    s.metrics()

        with cf.ThreadPoolExecutor(8) as threads:
            for future in [threads.submit(work, seed) for seed in seeds]:
                future.result(HANG_S)
        wait_until(lambda: all(handle.done() for handle in handles), "the end of all", HANG_S)
        desk = s._desk
        with desk.lock:
            desk.workers.check_invariants()
            desk.inside.check_invariants()
            assert (desk.handed, desk.in_threads, desk.deadlines) == (0, 0, 0)
            assert not desk.current
            assert not desk.older
        records = {(run.version, run.attempt) for run in s.history()}
        assert records == {(handle.version, 1) for handle in handles}
        assert len(s.history()) == len(handles)
