"""What befalls a Scheduler from outside: dead templates and workers, stopped ones, replacing without end."""

from __future__ import annotations

import concurrent.futures as cf
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import mpsched
from mpsched import CancelResult, Scheduler
from mpsched._pool.limits import stopped
from mpsched.errors import WorkerDied
from tests.support import blows, tasks, timed
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from mpsched import TaskHandle

HANG_S = 120.0


def all_final(handles: list[TaskHandle[Any]]) -> None:
    """Wait for handles, whatever becomes of them; none may stay open."""
    _done, still_open = cf.wait(handles, timeout=HANG_S)
    assert not still_open


def test_scheduler_goes_on_when_the_template_is_killed(tmp_path: Any) -> None:
    """What runs fails with WorkerDied; what is claimed, and what is due later, runs."""
    with Scheduler(2, mp_context="forkserver") as s:
        pool = s._desk.pool
        assert pool is not None
        running = [
            s.schedule(("runs", n), after=0, fn=timed.mark_until_asked, args=(tmp_path, n))
            for n in range(2)
        ]
        wait_until(lambda: len(timed.marked(tmp_path)) == 2, "two that run")
        claimed = [s.schedule(n, after=0, fn=tasks.square, args=(n,)) for n in range(20)]
        later = s.schedule("later", after=0.5, fn=tasks.square, args=(3,))
        template: int = pool.supervisor._launcher.template_pid  # type: ignore[attr-defined]
        os.kill(template, signal.SIGKILL)
        assert [handle.result(HANG_S) for handle in claimed] == [n * n for n in range(20)]
        assert later.result(HANG_S) == 9
        for handle in running:
            assert isinstance(handle.exception(HANG_S), WorkerDied)


def test_what_a_stopped_worker_was_given_is_had_back() -> None:
    """It is cancelled, moved and replaced without it; the close does not wait for it."""
    s = Scheduler(1)
    try:
        pid = s.schedule("pid", after=0, fn=tasks.pid).result(HANG_S)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: stopped(pid), "a worker that is stopped")
        handles = [s.schedule(n, after=0, fn=tasks.square, args=(n,)) for n in range(6)]
        assert s.cancel(0) is CancelResult.PREVENTED
        assert s.reschedule(1, after=1000)
        new = s.schedule(2, after=1000, fn=tasks.nothing)
        assert [handles[n].cancelled() for n in range(3)] == [True, False, True]
        assert not new.done()
    finally:
        report = s.close(0.1, kill_after=0.1)
    assert report.state == "closed"
    assert new.cancelled()
    assert all(handle.cancelled() for handle in handles)


def test_versions_replaced_from_place_to_place_run_once_or_never(rng: random.Random) -> None:
    """In workers and threads, while others dispatch: whatever is not cancelled has run once."""
    ids, turns = 6, 150
    marks = mpsched.shared_array(4 * turns, "int64", fill=0)
    made: list[tuple[int, TaskHandle[int]]] = []
    seeds = [rng.random() for _ in range(4)]
    over = threading.Event()

    def replace(first: int) -> None:
        own = random.Random(seeds[first])
        for turn in range(turns):
            index = first * turns + turn
            handle = s.schedule(
                own.randrange(ids),
                after=own.choice((0, 0, 0.001)),
                fn=blows.begin,
                args=(marks, index),
                where=own.choice(("worker", "thread")),
                if_running=own.choice(("let_finish", "wait", "cancel")),
            )
            made.append((index, handle))
            until = time.perf_counter() + own.random() * 0.000_5
            while time.perf_counter() < until:
                pass

    def delay() -> None:
        # As a machine under load does: who dispatches is put aside in the middle of it.
        while not over.wait(0.02):
            if section.try_enter():
                try:
                    time.sleep(0.06)
                finally:
                    section.leave()

    with Scheduler(2) as s:
        pool = s._desk.pool
        assert pool is not None
        section = pool.dispatcher.section
        threads = [threading.Thread(target=replace, args=(n,)) for n in range(4)]
        delayer = threading.Thread(target=delay)
        for thread in (*threads, delayer):
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        over.set()
        delayer.join(HANG_S)
        all_final([handle for _, handle in made])
        for index, handle in made:
            assert marks[index] == (0 if handle.cancelled() else 1), (index, handle)
        metrics = s.metrics()
        assert (metrics.pending, metrics.dispatched, metrics.running) == (0, 0, 0)
        assert sum(metrics.outcomes.values()) == len(made) == 4 * turns


def test_jobs_that_die_are_tried_again_and_replaced_once(rng: random.Random) -> None:
    """Deaths, retries with a pause and replacements at once: no attempt too many, none too few."""
    jobs = 40
    marks = mpsched.shared_array(2 * jobs, "int64", fill=0)
    with Scheduler(2) as s:
        old = [
            s.schedule(
                n,
                after=rng.random() * 0.3,
                fn=blows.begin_and_die if n % 3 == 0 else blows.begin,
                args=(marks, n),
                retries=1,
                backoff=0.02,
            )
            for n in range(jobs)
        ]
        new = []
        for n in rng.sample(range(jobs), jobs // 2):
            new.append((n, s.schedule(n, after=0, fn=blows.begin, args=(marks, jobs + n))))
            time.sleep(rng.random() * 0.02)
        for _, handle in new:
            assert handle.result(HANG_S) == 1
        all_final(old)
        replaced = {n for n, _ in new}
        for n, handle in enumerate(old):
            deadly = n % 3 == 0
            if n not in replaced:
                assert handle.result(HANG_S) == marks[n] == (2 if deadly else 1)
            elif handle.cancelled():  # before its start, or while it waited for its second attempt
                assert marks[n] <= (1 if deadly else 0), n
            elif handle.exception(HANG_S) is None:
                assert marks[n] == (2 if deadly else 1), n
            else:  # it died, and was replaced before that was known
                assert isinstance(handle.exception(HANG_S), WorkerDied)
                assert (deadly, marks[n]) == (True, 1), n
