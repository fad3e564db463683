"""The pool: what a task costs, how well work is spread, what lies idle.

Each function below takes one value of one measure on one system; the decorator says what it is
called, who is measured and which figures mpsched is to reach. A change for the worse in

- the no-op measures means dispatch, collection or futures have become dearer;
- the shares of the ideal means that work waits while a worker is idle: chunking, stealing, parking;
- arrays and memory means that something is copied that was not;
- the first result means that importing or starting has grown.
"""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import random
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from . import peers, work
from .harness import OURS, ROOT, Run, Suite, Target
from .peers import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SUITE = Suite("pool")

PPE = peers.Processes.name
POOL = peers.Pool.name
JOBLIB = peers.Joblib.name
LOKY = peers.Loky.name
AT_ONCE = peers.AtOnce.name
PLAIN = peers.Plain.name
FORKSERVER = f"{PPE}, forkserver"
SEMAPHORES = "two semaphores"

SUBMIT = tuple(name for name in SYSTEMS if name not in {AT_ONCE, JOBLIB, PLAIN})
MAP = tuple(name for name in SYSTEMS if name not in {AT_ONCE, LOKY, PLAIN})
WITH_FUTURES = tuple(name for name in SUBMIT if SYSTEMS[name].futures)
# Threads are left out of these: `work.spin` goes by the clock, which does not stop for a thread
# that waits for the GIL.
MAP_SPIN = tuple(name for name in MAP if name != peers.Threads.name)
SUBMIT_SPIN = tuple(name for name in SUBMIT if name != peers.Threads.name)
ARRAYS = (OURS, PPE, POOL, JOBLIB)


# --- what a task costs -----------------------------------------------------------------------------


@SUITE.measure(
    "no-op, submit to result", "tasks/s", SUBMIT, Target(">=", 20, PPE), Target(">=", 5, POOL)
)
def submit_to_result(run: Run) -> float:
    """50,000 futures, all submitted, then all read in order."""
    system = run.open()

    def through(tasks: int) -> None:
        handles = [system.submit(work.noop, number) for number in range(tasks)]
        if system.results(handles) != list(range(tasks)):
            raise AssertionError(f"{run.system} gave wrong results")

    return rate(run, through, run.tasks(50_000, system.rate))


@SUITE.measure("no-op, add_done_callback", "tasks/s", WITH_FUTURES, Target(">=", 5, PPE))
def done_callbacks(run: Run) -> float:
    """Each future has a callback; nobody waits in `result()`."""
    system = run.open()

    def through(tasks: int) -> None:
        left = tasks
        last = threading.Event()

        def count(future: Future[int]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                last.set()

        for number in range(tasks):
            system.submit(work.noop, number).add_done_callback(count)
        last.wait()

    return rate(run, through, run.tasks(50_000, system.rate))


@SUITE.measure("no-op, as_completed", "tasks/s", WITH_FUTURES, Target(">=", 5, PPE))
def completed(run: Run) -> float:
    """All submitted, then taken through `concurrent.futures.as_completed`."""
    system = run.open()

    def through(tasks: int) -> None:
        futures = [system.submit(work.noop, number) for number in range(tasks)]
        for _ in as_completed(futures):
            pass

    return rate(run, through, run.tasks(50_000, system.rate))


@SUITE.measure(
    "no-op, asyncio.gather", "tasks/s", (*WITH_FUTURES, AT_ONCE), Target(">=", 0.7, AT_ONCE)
)
def gathered(run: Run) -> float:
    """Awaited from an event loop; the loop's own part is what "completes at once" shows."""
    system = run.open()

    async def gather(tasks: int) -> None:
        await asyncio.gather(
            *(asyncio.wrap_future(system.submit(work.noop, number)) for number in range(tasks))
        )

    return rate(
        run, lambda tasks: asyncio.run(gather(tasks)), run.tasks(50_000, min(system.rate, 50_000))
    )


@SUITE.measure(
    "no-op round trip, back to back", "us", (*SUBMIT, SEMAPHORES), Target("<=", 0.3, PPE)
)
def round_trip(run: Run) -> float:
    """One at a time. Two semaphores between two processes show what waking up costs alone."""
    if run.system == SEMAPHORES:
        return semaphore_round_trip(run.tasks(2_000))
    return median_trip(run, pause=0.0)


@SUITE.measure("no-op round trip, pauses of 300 us", "us", SUBMIT, Target("<=", 0.45, PPE))
def round_trip_paused(run: Run) -> float:
    """One at a time, with a sleep between: the workers are parked when a task comes."""
    return median_trip(run, pause=300e-6)


@SUITE.measure("by-value lambda, submit to result", "tasks/s", (OURS, LOKY, peers.Dask.name))
def lambdas(run: Run) -> float:
    """A lambda that closes over a local, sent with each task; reported, without a figure."""
    system = run.open()
    one = 1

    def through(tasks: int) -> None:
        handles = [system.submit(lambda value: value + one, number) for number in range(tasks)]
        if system.results(handles) != list(range(1, tasks + 1)):
            raise AssertionError(f"{run.system} gave wrong results")

    return rate(run, through, run.tasks(10_000, system.rate))


# --- how well work is spread -----------------------------------------------------------------------


@SUITE.measure("map, 1,000,000 no-op items", "items/s", MAP, Target(">=", 1, POOL))
def million(run: Run) -> float:
    """Defaults: no system is told a chunk size."""
    system = run.open()

    def through(items: int) -> None:
        if sum(system.map(work.noop, range(items))) != items * (items - 1) // 2:
            raise AssertionError(f"{run.system} gave wrong results")

    return rate(run, through, run.tasks(1_000_000, system.map_rate))


@SUITE.measure(
    "map, 10,000 items of 100 us", "of the ideal", (*MAP_SPIN, PLAIN), Target(">=", 0.97)
)  # fmt: skip
def even(run: Run) -> float:
    """The ideal: all workers busy with nothing but items, all the time."""
    system = run.open()
    items = [100] * run.tasks(10_000, system.map_rate)
    took = seconds(lambda: system.map(work.spin, items))
    return sum(items) / 1e6 / run.workers / took


@SUITE.measure(
    "map, 10,000 items of 100 us, parent busy", "of the ideal", MAP_SPIN, Target(">=", 0.93)
)
def even_parent_busy(run: Run) -> float:
    """The parent computes for 1 ms after each 100 results; the ideal shares that out as well."""
    system = run.open()
    items = [100] * run.tasks(10_000, system.map_rate)

    def consume() -> None:
        for number, _ in enumerate(system.iterate(work.spin, items), 1):
            if number % 100 == 0:
                work.spin(1_000)

    took = seconds(consume)
    return (sum(items) / 1e6 + len(items) / 100 / 1e3) / run.workers / took


@SUITE.measure(
    "map, 4,000 Pareto items", "of the greedy schedule", MAP_SPIN, Target(">=", 0.98)
)  # fmt: skip
def skewed(run: Run) -> float:
    """Alpha 1.2, scale 80 us, capped at 200 ms: a few items are as long as thousands of others.

    The yardstick gives each item, as long as it really was, to the worker that is free first.
    """
    system = run.open()
    rng = random.Random(1)
    wanted = run.tasks(4_000, system.map_rate)
    items = [min(80 * rng.paretovariate(1.2), 200_000) for _ in range(wanted)]
    taken: list[float] = []
    took = seconds(lambda: taken.extend(system.map(work.spin, items)))
    return greedy_makespan(taken, run.workers) / took


@SUITE.measure("100 tasks of 20 ms", "of the ideal", (*SUBMIT_SPIN, PLAIN), Target(">=", 0.99))
def coarse(run: Run) -> float:
    """Tasks long enough that only the last ones can be spread badly."""
    system = run.open()
    tasks = 20 if run.quick else 100
    took = seconds(lambda: system.results([system.submit(work.spin, 20_000) for _ in range(tasks)]))
    return tasks * 0.020 / run.workers / took


# --- large arguments -------------------------------------------------------------------------------


@SUITE.measure("the same 100 MB array to 8 tasks", "s", ARRAYS, Target("<=", 0.5, JOBLIB))
def array(run: Run) -> float:
    """After one such round, so that who keeps the array has had its chance."""
    return seconds(array_round(run, again=True))


@SUITE.measure("a new 100 MB array to 8 tasks", "s", ARRAYS)
def new_array(run: Run) -> float:
    """The first time that this pool sees the array; reported, without a figure."""
    return seconds(array_round(run, again=False))


@SUITE.measure("private memory grown by a 100 MB array", "MB", ARRAYS, Target("<=", 10))
def private_memory(run: Run) -> float:
    """What is a worker's own after 8 tasks have read the array, less that before; the largest."""
    system = run.open()
    values = big_array(run)
    before = max(eight(system, work.own_bytes_after_reading, values[:512]))
    after = max(eight(system, work.own_bytes_after_reading, values))
    return float(max(after - before, 0)) / 1e6


# --- starting, waiting, holding --------------------------------------------------------------------

FIRST_RESULT = {
    OURS: "import mpsched; ex = mpsched.WorkStealingExecutor({n})",
    FORKSERVER: (
        "import multiprocessing as mp; from concurrent.futures import ProcessPoolExecutor; "
        "ex = ProcessPoolExecutor({n}, mp_context=mp.get_context('forkserver'))"
    ),
    PPE: (
        "import multiprocessing as mp; from concurrent.futures import ProcessPoolExecutor; "
        "ex = ProcessPoolExecutor({n}, mp_context=mp.get_context('fork'))"
    ),
    LOKY: "import loky; ex = loky.get_reusable_executor({n})",
    peers.Deadpool.name: "import deadpool; ex = deadpool.Deadpool({n})",
}
IMPORTS = {
    OURS: "import mpsched",
    PPE: "import concurrent.futures.process",
    POOL: "import multiprocessing.pool",
    JOBLIB: "import joblib",
    LOKY: "import loky",
    peers.Pebble.name: "import pebble",
    peers.Mpire.name: "import mpire",
    peers.Deadpool.name: "import deadpool",
    peers.Dask.name: "import distributed",
}


@SUITE.measure(
    "first result from a new pool", "ms", FIRST_RESULT, Target("<=", 1.2, FORKSERVER)
)  # fmt: skip
def first_result(run: Run) -> float:
    """From the first import to the result of one call, in a fresh interpreter."""
    start = FIRST_RESULT[run.system].format(n=run.workers)
    return fresh(f"{start}; ex.submit(abs, -1).result()", after="; ex.shutdown()") * 1e3


@SUITE.measure("import", "ms", IMPORTS, Target("<=", 30))
def imported(run: Run) -> float:
    """The import alone, in a fresh interpreter."""
    return fresh(IMPORTS[run.system]) * 1e3


@SUITE.measure(
    "memory in the parent per pending task", "bytes", (OURS, PPE, POOL), Target("<=", 1024)
)
def pending_memory(run: Run) -> float:
    """1,000,000 no-ops wait behind tasks that never end; their futures are held."""
    system = run.open()
    run.abandon()
    blockers = [system.submit(work.nap, 3_600) for _ in range(run.workers)]
    tasks = run.tasks(1_000_000 if run.system == OURS else 200_000)
    this = psutil.Process()
    before = this.memory_info().rss
    held = [system.submit(work.noop, number) for number in range(tasks)]
    grown = this.memory_info().rss - before
    del held, blockers
    return float(grown) / tasks


@SUITE.measure(
    "idle pool of 8, CPU time in 10 s", "ms",
    (OURS, PPE, POOL, LOKY, peers.Pebble.name, peers.Deadpool.name),
    Target("<=", 20),
)  # fmt: skip
def idle(run: Run) -> float:
    """All its processes together, a second after the last task."""
    run.open(workers=8)
    time.sleep(1)
    window = 2.0 if run.quick else 10.0
    this = psutil.Process()
    tree = this.children(recursive=True)
    # This process comes last, then first, so that reading the others is not counted.
    before = [process_cpu_seconds(process) for process in [*tree, this]]
    time.sleep(window)
    after = [process_cpu_seconds(process) for process in [this, *tree]]
    return (sum(after) - sum(before)) * 1e3 * 10 / window


# --- how it is done --------------------------------------------------------------------------------


def rate(run: Run, through: Callable[[int], None], tasks: int) -> float:
    """Tasks per second of `through(tasks)`, after a tenth of them to warm up."""
    through(max(tasks // 10, 1))
    return tasks / seconds(lambda: through(tasks))


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def median_trip(run: Run, pause: float) -> float:
    """Median of many single calls in microseconds; `pause` seconds of sleep before each."""
    system = run.open()
    trips = []
    for number in range(run.tasks(1_000, system.rate / 20)):
        if pause:
            time.sleep(pause)
        begun = time.perf_counter()
        system.results([system.submit(work.noop, number)])
        trips.append(time.perf_counter() - begun)
    return statistics.median(trips) * 1e6


def semaphore_round_trip(trips: int) -> float:
    """Median microseconds for two processes to wake each other once."""
    context = multiprocessing.get_context("fork")
    ping, pong = context.Semaphore(0), context.Semaphore(0)

    def answer() -> None:
        for _ in range(trips):
            ping.acquire()
            pong.release()

    def once() -> None:
        ping.release()
        pong.acquire()

    process = context.Process(target=answer)
    process.start()
    taken = [seconds(once) for _ in range(trips)]
    process.join()
    return statistics.median(taken) * 1e6


def greedy_makespan(durations: Sequence[float], workers: int) -> float:
    """When a list schedule ends: each item in turn goes to the worker that is free first."""
    free = [0.0] * workers
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def big_array(run: Run) -> Any:
    """100 MB of random numbers (10 MB when quick)."""
    numpy = peers.load("numpy")
    return numpy.random.default_rng(1).random(1_250_000 if run.quick else 12_500_000)


def array_round(run: Run, *, again: bool) -> Callable[[], None]:
    """Eight tasks that read the same array; with `again`, one round has been run already."""
    values = big_array(run)
    system = run.open()
    eight(system, work.sum_pages, values[:512])  # imports NumPy in the workers

    def once() -> None:
        sums = eight(system, work.sum_pages, values)
        if len(set(sums)) != 1 or len(sums) != 8:
            raise AssertionError(f"{run.system} gave wrong sums")

    if again:
        once()
    return once


def eight(system: peers.System, fn: Callable[..., Any], arg: object) -> list[Any]:
    """Run `fn` eight times with the same argument."""
    if isinstance(system, peers.Joblib):
        return system.map(fn, [arg] * 8)
    return system.results([system.submit(fn, arg) for _ in range(8)])


def fresh(code: str, after: str = "") -> float:
    """Seconds that `code` takes in a new interpreter, from its first line."""
    program = (
        f"import time; t = time.perf_counter(); {code}; t = time.perf_counter() - t; "
        f"print(t, flush=True){after}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        raise peers.Missing(done.stderr.strip().splitlines()[-1])
    if not done.stdout:
        raise RuntimeError(f"{program!r} failed: {done.stderr.strip()}")
    return float(done.stdout.split()[0])


def process_cpu_seconds(process: psutil.Process) -> float:
    """One process's CPU seconds: to the nanosecond where Linux tells, else to the clock tick."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError):
        pass
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
