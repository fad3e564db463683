"""How late timers are: from the due instant to the first line of the function.

Part of the suite `timers`. With mpsched that line is in a worker process; with the peers in a thread of
this one. All read the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import random
import sched
import threading
import time
from datetime import UTC, datetime, timedelta
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

from . import peers, work
from .harness import OURS, Run, Suite, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SUITE = Suite("timers")

PEERS = ("APScheduler", "asyncio", "sched")
TIMERS_N, SPREAD_S = 2_000, 2.0
TASK_S, LOAD = 0.005, 0.8


# --- an idle pool ----------------------------------------------------------------------------------


@SUITE.measure("lateness p50, 2,000 timers over 2 s", "us", (OURS, *PEERS), Target("<=", 120))
def idle_half(run: Run) -> float:
    """An idle pool, and a main thread that is asleep."""
    return quantile(latenesses(run), 0.5) * 1e6


@SUITE.measure("lateness p99, 2,000 timers over 2 s", "us", (OURS, *PEERS), Target("<=", 400))
def idle_most(run: Run) -> float:
    """As before."""
    return quantile(latenesses(run), 0.99) * 1e6


@SUITE.measure("lateness p99, the same, main thread busy", "us", (OURS, "APScheduler"))
def busy_most(run: Run) -> float:
    """Reported: the dispatcher needs the GIL, which a busy thread gives up every 5 ms."""
    return quantile(latenesses(run, spin=True), 0.99) * 1e6


def latenesses(run: Run, *, spin: bool = False) -> list[float]:
    """Run timers at seeded times; return how late each was, in seconds."""
    rng = random.Random(4)
    count = run.tasks(TIMERS_N)
    offsets = sorted(rng.random() * count * SPREAD_S / TIMERS_N for _ in range(count))
    late = {OURS: with_mpsched, "APScheduler": with_apscheduler, "asyncio": with_asyncio,
            "sched": with_sched}[run.system](run, offsets, spin)  # fmt: skip
    if len(late) != count or min(late) < 0:
        raise AssertionError(
            f"{run.system}: {len(late)} of {count} ran, the first {min(late)} s late"
        )
    return late


def with_mpsched(run: Run, offsets: Sequence[float], spin: bool) -> list[float]:
    with peers.load("mpsched").Scheduler(run.workers) as scheduler:
        warm(scheduler, run.workers)
        start = scheduler.now() + 0.5
        handles = [
            scheduler.schedule(number, start + offset, 0, work.stamp)
            for number, offset in enumerate(offsets)
        ]
        keep_busy(start + offsets[-1] if spin else 0.0)
        return [
            handle.result() - (start + offset)
            for handle, offset in zip(handles, offsets, strict=True)
        ]


def warm(scheduler: Any, workers: int) -> None:
    """Have every worker up, with the functions imported."""
    handles = [
        scheduler.schedule(("warm", number), fn=fn, after=0, args=(0.05,))
        for number, fn in enumerate([work.nap, work.stamp, work.spin] * (2 * workers))
    ]
    for handle in handles:
        handle.result()


def keep_busy(until: float) -> None:
    """Compute in this thread."""
    while time.monotonic() < until:
        sum(range(1000))


def with_apscheduler(run: Run, offsets: Sequence[float], spin: bool) -> list[float]:
    del run
    background = peers.load("apscheduler.schedulers.background")
    scheduler = background.BackgroundScheduler(timezone=UTC)
    scheduler.start(paused=True)
    late: list[float] = []
    done = threading.Event()

    def ran(due: float) -> None:
        late.append(time.monotonic() - due)
        if len(late) == len(offsets):
            done.set()

    wall, start = datetime.now(UTC) + timedelta(seconds=3), time.monotonic() + 3
    for offset in offsets:
        scheduler.add_job(
            ran, "date", run_date=wall + timedelta(seconds=offset), args=(start + offset,),
            misfire_grace_time=None,
        )  # fmt: skip
    scheduler.resume()
    keep_busy(start + offsets[-1] if spin else 0.0)
    done.wait(60)
    scheduler.shutdown()
    return late


def with_asyncio(run: Run, offsets: Sequence[float], spin: bool) -> list[float]:
    del run, spin
    late: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time() + 0.5
        for offset in offsets:
            loop.call_at(start + offset, lambda due: late.append(loop.time() - due), start + offset)
        await asyncio.sleep(offsets[-1] + 1)

    asyncio.run(main())
    return late


def with_sched(run: Run, offsets: Sequence[float], spin: bool) -> list[float]:
    del run, spin
    late: list[float] = []
    scheduler = sched.scheduler()
    start = time.monotonic() + 0.5
    for offset in offsets:
        due = start + offset
        scheduler.enterabs(due, 0, lambda due: late.append(time.monotonic() - due), (due,))
    scheduler.run()
    return late


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# --- under load ------------------------------------------------------------------------------------


@SUITE.measure(
    "lateness p99 at 0.8 of capacity / of an ideal queue", "x", (OURS,), Target("<=", 1.2)
)
def loaded(run: Run) -> float:
    """Seeded Poisson arrivals of 5 ms tasks; the ideal is a FIFO queue on the run times measured."""
    rng = random.Random(8)
    count = run.tasks(1_500)
    with peers.load("mpsched").Scheduler(run.workers) as scheduler:
        warm(scheduler, run.workers)
        due = scheduler.now() + 1.0
        handles, dues = [], []
        for number in range(count):
            due += rng.expovariate(LOAD * run.workers / TASK_S)
            dues.append(due)
            handles.append(
                scheduler.schedule(number, due, 0, work.stamped_spin, args=(TASK_S * 1e6,))
            )
        runs = [handle.result() for handle in handles]
    late = [begun - at for (begun, _), at in zip(runs, dues, strict=True)]
    ideal = queue(dues, [ended - begun for begun, ended in runs], run.workers)
    return quantile(late, 0.99) / quantile(ideal, 0.99)


def queue(dues: Sequence[float], seconds: Sequence[float], workers: int) -> list[float]:
    """Return how late each would be if a free worker took the first at once."""
    free = [dues[0]] * workers
    heapify(free)
    late = []
    for due, taken in zip(dues, seconds, strict=True):
        begun = max(due, free[0])
        late.append(begun - due)
        heapreplace(free, begun + taken)
    return late


@SUITE.measure("lateness p99 beside an endless spawner, 4 workers", "ms", (OURS,), Target("<=", 25))
def beside_spawner(run: Run) -> float:
    """One task spawns children of 0.1 ms without end; 200 timers over 2 s on the same pool."""
    mpsched = peers.load("mpsched")
    count = run.tasks(200)
    with mpsched.WorkStealingExecutor(4) as pool, mpsched.Scheduler(executor=pool) as scheduler:
        warm(scheduler, 4)
        spawner = pool.submit(work.spawn_for, count / 100 + 1.0)
        start = scheduler.now() + 0.5
        handles = [
            scheduler.schedule(number, start + number / 100, 0, work.stamp)
            for number in range(count)
        ]
        late = [handle.result() - (start + number / 100) for number, handle in enumerate(handles)]
        spawner.result()
    return quantile(late, 0.99) * 1e3


@SUITE.measure("low priority in a flood, aging: wait / its bound", "x", (OURS,), Target("<=", 1.0))
def aged(run: Run) -> float:
    """Twenty tasks of priority 5 are due at any moment; 10 points a second; the median of some waits."""
    mpsched = peers.load("mpsched")
    aging, gap, depth = 10.0, 5, 20
    with mpsched.Scheduler(run.workers, ready_order="priority", aging=aging) as scheduler:
        warm(scheduler, run.workers)
        stop = threading.Event()
        longest = [0.0]

        def flood(number: int) -> None:
            turn = 0
            while not stop.is_set():
                handle = scheduler.schedule(
                    (number, turn),
                    fn=work.stamped_spin,
                    after=0,
                    priority=gap,
                    args=(TASK_S * 1e6,),
                )
                begun, ended = handle.result()
                longest[0] = max(longest[0], ended - begun)
                turn += 1

        floods = [threading.Thread(target=flood, args=(number,)) for number in range(depth)]
        for thread in floods:
            thread.start()
        waits = []
        try:
            for number in range(run.tasks(50) // 10):
                due = scheduler.now()
                handle = scheduler.schedule(("low", number), due, 0, work.stamp)
                waits.append(handle.result() - due)
        finally:
            stop.set()
            for thread in floods:
                thread.join()
    # What was due before it may go first, and after that what was due until it had aged enough.
    bound = gap / aging + (depth / run.workers + 1) * longest[0]
    return float(max(waits) / bound)


@SUITE.measure(
    "100,000 timers due at one instant / the pool's rate", "x", (OURS,), Target(">=", 0.5)
)
def at_once(run: Run) -> float:
    """No-ops, from the instant to the last result; against `submit` of as many, in the same process."""
    mpsched = peers.load("mpsched")
    count = run.tasks(100_000)
    with mpsched.WorkStealingExecutor(run.workers) as pool:
        submit: Callable[..., Any] = pool.submit
        for future in [submit(work.noop, number) for number in range(1_000)]:
            future.result()
        begun = time.perf_counter()
        for future in [submit(work.noop, number) for number in range(count)]:
            future.result()
        alone = time.perf_counter() - begun
    with mpsched.Scheduler(run.workers) as scheduler:
        warm(scheduler, run.workers)
        due = scheduler.now() + 2.0 + count / 10_000
        handles = [
            scheduler.schedule(number, due, 0, work.noop, args=(number,)) for number in range(count)
        ]
        if scheduler.now() >= due:
            raise AssertionError("scheduling took longer than it may")
        for handle in handles:
            handle.result()
        taken = scheduler.now() - due
    return float(alone / taken)
