"""The end of a pool, in every way that a program may call for it."""

from __future__ import annotations

import concurrent.futures as cf
import gc
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import CloseReport, WorkStealingExecutor
from mpsched.errors import SchedulerClosed, WorkerDied
from tests.contract.conftest import alive
from tests.support import tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from tests.support.gates import Gate

HANG_S = 60.0


def test_shutdown_finishes_what_was_accepted(start_method: str) -> None:
    """Every future is done when it returns, and the processes are gone."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    assert ex.state == "accepting"
    futures = [ex.submit(tasks.square, number) for number in range(3000)]
    pids = [worker.pid for worker in ex.stats().workers]
    ex.shutdown()
    assert ex.state == "terminated"
    assert all(future.done() for future in futures)
    assert [future.result(0) for future in futures] == [n * n for n in range(3000)]
    assert not any(alive(pid) for pid in pids)


def test_shutdown_of_a_pool_that_was_never_used(start_method: str) -> None:
    """At once after the construction, with workers that are still starting."""
    for _ in range(3):
        ex = WorkStealingExecutor(2, mp_context=start_method)
        ex.shutdown()
        assert ex.state == "terminated"
    with WorkStealingExecutor(2, mp_context=start_method):
        pass


def test_submit_after_shutdown_is_refused(start_method: str, gate: Gate) -> None:
    """From the call on, while the pool drains and after its end."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    held = ex.submit(gate.hold)
    gate.wait_for(1)
    ex.shutdown(wait=False)
    assert ex.state == "draining"
    for _ in range(2):
        with pytest.raises(SchedulerClosed, match="shut down"):
            ex.submit(tasks.square, 3)
        with pytest.raises(RuntimeError):
            ex.run(tasks.square, 3)
        with pytest.raises(SchedulerClosed):
            ex.options(priority=3).submit(tasks.square, 3)
        with pytest.raises(SchedulerClosed):
            ex.map(tasks.square, [1])
        gate.open()
        assert ex.await_termination(HANG_S)
        assert ex.state == "terminated"
    assert held.result(0) == "task"


def test_shutdown_may_be_repeated(start_method: str) -> None:
    """In any order and with any argument; leaving the block is one more."""
    with WorkStealingExecutor(1, mp_context=start_method) as ex:
        future = ex.submit(tasks.square, 3)
        ex.shutdown(wait=False)
        ex.shutdown()
        ex.shutdown(cancel_futures=True)
        ex.shutdown(False)
        assert isinstance(ex.close(), CloseReport)
        assert ex.await_termination(0)
    assert future.result(0) == 9


def test_shutdown_from_eight_threads_at_once(start_method: str) -> None:
    """Each returns when the pool has ended."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    futures = [ex.submit(tasks.square, number) for number in range(500)]
    start = threading.Barrier(8)

    def end(_n: int) -> str:
        start.wait(HANG_S)
        ex.shutdown()
        return ex.state

    with cf.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(end, range(8))) == ["terminated"] * 8
    assert [future.result(0) for future in futures] == [n * n for n in range(500)]


def test_shutdown_races_with_submitting_threads(start_method: str) -> None:
    """Whatever was accepted is done, whatever was not was refused; nothing hangs."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    futures: list[cf.Future[int]] = []
    begun = threading.Event()

    def submit(base: int) -> int:
        for number in range(100_000):
            try:
                futures.append(ex.submit(tasks.square, base + number))
            except SchedulerClosed:
                return number
            begun.set()
        return -1

    with cf.ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(submit, base) for base in range(0, 400_000, 100_000)]
        assert begun.wait(HANG_S)
        ex.shutdown()
        assert all(job.result(HANG_S) >= 0 for job in jobs)
    for future in futures:
        assert future.result(HANG_S) >= 0
    assert ex.state == "terminated"


def test_shutdown_without_waiting_goes_on_by_itself(start_method: str, gate: Gate) -> None:
    """Accepted work is done although nobody waits, and then the pool ends."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    futures = [ex.submit(gate.hold, number) for number in range(5)]
    gate.wait_for(1)
    ex.shutdown(wait=False)
    assert not ex.await_termination(0.01)
    assert not futures[-1].done()
    gate.open()
    assert [future.result(HANG_S) for future in futures] == [0, 1, 2, 3, 4]
    assert ex.await_termination(HANG_S)


def test_shutdown_may_cancel_what_has_not_started(start_method: str, gate: Gate) -> None:
    """`cancel_futures=True`: what runs ends, the rest never starts, every future is final."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    futures = [ex.submit(gate.hold, number) for number in range(300)]
    gate.wait_for(1)
    ender = threading.Thread(target=ex.shutdown, kwargs={"cancel_futures": True})
    ender.start()
    wait_until(lambda: sum(future.cancelled() for future in futures) >= 299, "299 cancelled")
    gate.open()
    ender.join(HANG_S)
    assert not ender.is_alive()
    assert futures[0].result(0) == 0
    assert all(future.cancelled() for future in futures[1:])
    assert gate.arrivals() == ["0"]


def test_shutdown_that_cancels_ends_maps_too(start_method: str, gate: Gate) -> None:
    """Reading a map whose rest was cancelled says so."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    results = ex.map(gate.hold, range(1000), chunksize=1)
    gate.wait_for(1)
    ex.shutdown(wait=False, cancel_futures=True)
    gate.open()
    assert ex.await_termination(HANG_S)
    with pytest.raises(cf.CancelledError):
        list(results)
    assert len(gate.arrivals()) < 100


def test_shutdown_from_a_callback(start_method: str) -> None:
    """In the pool's own thread it must not wait for itself; the pool ends all the same."""
    outcome: queue.SimpleQueue[str] = queue.SimpleQueue()
    for wait in (True, False):
        ex = WorkStealingExecutor(2, mp_context=start_method)
        futures = [ex.submit(tasks.square, number) for number in range(50)]

        def end(_future: object, ex: WorkStealingExecutor = ex, wait: bool = wait) -> None:
            ex.shutdown(wait=wait)
            outcome.put(ex.state)

        futures[10].add_done_callback(end)
        assert outcome.get(timeout=HANG_S) in {"draining", "terminated"}
        assert ex.await_termination(HANG_S)
        assert [future.result(0) for future in futures] == [n * n for n in range(50)]


def test_shutdown_inside_of_a_with_block_of_another_pool(start_method: str) -> None:
    """Two pools of one program do not know of each other."""
    with WorkStealingExecutor(1, mp_context=start_method) as one:
        with WorkStealingExecutor(1, mp_context=start_method) as two:
            assert two.submit(tasks.square, 2).result(HANG_S) == 4
        assert two.state == "terminated"
        assert one.submit(tasks.square, 3).result(HANG_S) == 9


def test_shutdown_when_the_block_is_left_by_an_error(start_method: str) -> None:
    """The error goes on after the accepted work is done."""
    futures: list[cf.Future[int]] = []

    def block() -> None:
        with WorkStealingExecutor(2, mp_context=start_method) as ex:
            futures.extend(ex.submit(tasks.square, number) for number in range(100))
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        block()
    assert [future.result(0) for future in futures] == [n * n for n in range(100)]


def test_pool_that_is_dropped_ends_its_workers(start_method: str) -> None:
    """Without a shutdown: what was accepted is done, then everything goes."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    futures = [ex.submit(tasks.square, number) for number in range(200)]
    pids = [worker.pid for worker in ex.stats().workers]
    seen = weakref.ref(ex)
    del ex
    wait_until(lambda: gc.collect() >= 0 and seen() is None, "the end of the executor")
    assert [future.result(HANG_S) for future in futures] == [n * n for n in range(200)]
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of the workers")


def test_pool_that_is_dropped_with_a_callback_pending(start_method: str, gate: Gate) -> None:
    """The callback of an accepted task is called although nobody holds the executor."""
    called = threading.Event()
    ex = WorkStealingExecutor(1, mp_context=start_method)
    ex.submit(gate.hold).add_done_callback(lambda _future: called.set())
    gate.wait_for(1)
    del ex
    gc.collect()
    gate.open()
    assert called.wait(HANG_S)


def test_shutdown_from_a_finalizer(start_method: str) -> None:
    """An object that owns a pool may end it in its finalizer, whenever the collector comes."""

    class Owner:
        def __init__(self) -> None:
            self.ex = WorkStealingExecutor(1, mp_context=start_method)
            self.cycle = self
            self.finalizer = weakref.finalize(self, self.ex.shutdown)

    owner = Owner()
    future = owner.ex.submit(tasks.square, 3)
    finalizer = owner.finalizer
    del owner
    wait_until(lambda: gc.collect() >= 0 and not finalizer.alive, "the finalizer")
    assert future.result(HANG_S) == 9


def test_shutdown_in_a_del_method(start_method: str) -> None:
    """`__del__` is called by the garbage collector, in the middle of anything."""

    class Owner:
        def __init__(self) -> None:
            self.ex = WorkStealingExecutor(1, mp_context=start_method)
            self.cycle = self

        def __del__(self) -> None:
            self.ex.shutdown(wait=False)

    future = Owner().ex.submit(tasks.square, 3)
    gc.collect()
    assert future.result(HANG_S) == 9


def test_shutdown_wakes_whoever_waits(start_method: str, gate: Gate) -> None:
    """Threads in `result`, `wait`, `as_completed` and a map all come back."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    first = ex.submit(gate.hold)
    gate.wait_for(1)
    rest = [ex.submit(tasks.nothing) for _ in range(3)]
    results = ex.map(tasks.square, range(100))
    with cf.ThreadPoolExecutor(4) as threads:
        waiting: list[cf.Future[Any]] = [
            threads.submit(rest[0].exception, HANG_S),
            threads.submit(cf.wait, rest, HANG_S),
            threads.submit(lambda: list(cf.as_completed(rest, HANG_S))),
            threads.submit(list, results),
        ]
        ex.shutdown(wait=False, cancel_futures=True)
        gate.open()
        for one in waiting[1:3]:
            one.result(HANG_S)
        assert isinstance(waiting[0].exception(HANG_S), cf.CancelledError)
        assert isinstance(waiting[3].exception(HANG_S), cf.CancelledError)
    assert first.result(HANG_S) == "task"
    assert ex.await_termination(HANG_S)


def test_future_can_be_used_after_the_end(start_method: str) -> None:
    """Results, errors, callbacks and `cancel` work when the pool is long gone."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    good, bad, unread = (
        ex.submit(tasks.square, 3),
        ex.submit(tasks.fail),
        ex.submit(tasks.square, 4),
    )
    ex.shutdown()
    assert good.result(0) == 9
    assert isinstance(bad.exception(0), ValueError)
    called: list[Any] = []
    unread.add_done_callback(called.append)
    assert called == [unread]
    assert cf.wait([good, bad, unread], 0).done == {good, bad, unread}
    assert not good.cancel()
    assert not good.running()
    assert (good.attempts, good.worker) == (1, 0)
    assert unread.result() == 16
    assert "finished" in repr(good)


def test_stats_can_be_read_after_the_end(start_method: str) -> None:
    """The last counters stay."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    assert list(ex.map(tasks.square, range(100))) == [n * n for n in range(100)]
    for _ in range(10):
        ex.submit(tasks.square, 3).result(HANG_S)
    ex.shutdown()
    stats = ex.stats()
    assert stats.items == 100
    assert stats.executed >= 11
    assert (stats.ready, stats.inflight, stats.deaths) == (0, 0, 0)


def test_shutdown_gives_everything_back_while_the_executor_is_kept(start_method: str) -> None:
    """Twenty ended pools that are still referred to hold no memory file and no descriptor."""
    import os
    from pathlib import Path

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("descriptors can only be counted in /proc")
    kept = []
    counts = []
    for _ in range(4):
        ex = WorkStealingExecutor(2, mp_context=start_method)
        future = ex.submit(tasks.square, 3)
        future.result(HANG_S)
        ex.shutdown()
        kept.append((ex, future))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[-1]
    maps = Path("/proc/self/maps").read_text()
    assert "mpsched-segment" not in maps


def test_close_reports_what_finished(start_method: str) -> None:
    """Without a limit it drains, like shutdown."""
    ex = WorkStealingExecutor(2, mp_context=start_method)
    futures = [ex.submit(tasks.square, number) for number in range(500)]
    report = ex.close()
    assert report.complete
    assert (report.cancelled, report.killed, report.running) == (0, (), ())
    assert 0 <= report.finished <= 500
    assert report.seconds >= 0
    assert [future.result(0) for future in futures] == [n * n for n in range(500)]


def test_close_cancels_what_waits(start_method: str, gate: Gate) -> None:
    """`cancel_pending=True`: what runs is finished."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    futures = [ex.submit(gate.hold, number) for number in range(50)]
    gate.wait_for(1)
    with cf.ThreadPoolExecutor(1) as threads:
        closing = threads.submit(ex.close, cancel_pending=True)
        wait_until(lambda: all(future.cancelled() for future in futures[1:]), "49 cancelled")
        gate.open()
        report = closing.result(HANG_S)
    assert (report.finished, report.cancelled) == (1, 49)
    assert not report.complete
    assert futures[0].result(0) == 0


def test_close_asks_what_runs_to_stop_after_its_timeout(start_method: str, gate: Gate) -> None:
    """A task that looks at its signal ends by itself and is finished."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    future = ex.submit(gate.hold_until_cancelled)
    waiting = ex.submit(tasks.nothing)
    gate.wait_for(1)
    report = ex.close(timeout=0.05, kill_after=HANG_S)
    assert future.result(0) == "cancelled"
    assert waiting.cancelled()
    assert (report.finished, report.cancelled, report.killed) == (1, 1, ())
    assert ex.state == "terminated"


def test_close_kills_what_does_not_stop(start_method: str) -> None:
    """Within its bound, and it names what it has ended; that future is final."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    named = ex.options(name="stubborn")
    future = named.submit(time.sleep, 600)
    wait_until(future.running, "running")
    report = ex.close(timeout=0.05, kill_after=0.05)
    assert report.seconds < HANG_S
    assert len(report.killed) == 1
    assert "stubborn" in report.killed[0]
    assert not report.complete
    assert future.done()
    assert isinstance(future.exception(0), WorkerDied)
    assert ex.state == "terminated"


def test_close_without_killing_reports_what_runs(start_method: str, gate: Gate) -> None:
    """It returns with the pool still draining; another close ends it."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    future = ex.options(name="busy").submit(gate.hold)
    gate.wait_for(1)
    report = ex.close(timeout=0.05)
    assert len(report.running) == 1
    assert "busy" in report.running[0]
    assert ex.state == "draining"
    assert not future.done()
    gate.open()
    assert future.result(HANG_S) == "task"
    assert ex.close().complete
    assert ex.state == "terminated"


def test_close_of_an_ended_pool_has_nothing_to_report(start_method: str) -> None:
    """Again and again."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    ex.shutdown()
    for _ in range(2):
        report = ex.close(timeout=0, cancel_pending=True, kill_after=0)
        assert report.complete
        assert (report.finished, report.cancelled) == (0, 0)


def test_await_termination_says_whether_it_has_ended(start_method: str) -> None:
    """It does not end the pool itself."""
    ex = WorkStealingExecutor(1, mp_context=start_method)
    assert not ex.await_termination(0)
    assert not ex.await_termination(0.01)
    assert ex.submit(tasks.square, 3).result(HANG_S) == 9
    ex.shutdown()
    assert ex.await_termination()
    assert ex.await_termination(0)
