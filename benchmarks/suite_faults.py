"""Faults: how long a killed worker is missed, how exactly limits end tasks, whether closing ends.

One worker, so that the next result has to come from its replacement: what one waits for is the parent's
notice of the death, a new process, and the result. A change for the worse in

- the recovery means that the end of a process is noticed later, or that a worker starts more slowly;
- the kills survived is a defect of the pool, whatever the figure;
- the limits and the close mean that the supervisor is kept from its work.

Peers stand beside it where they survive; a pool that a death breaks says so in its line.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from concurrent.futures import CancelledError
from typing import Any

from . import peers, work
from .harness import OURS, Run, Suite, Target

SUITE = Suite("faults")

PEBBLE = peers.Pebble.name
PEERS = (OURS, peers.Processes.name, peers.Loky.name, PEBBLE, peers.Deadpool.name)
KILLS = 200
KILLS_S = 100
MANY = 10_000
MANY_S = 150
"""A sample may take three minutes; slower pools get fewer kills, by `KILLS_S` as well."""
TRIES = 20
LOST_S = 10.0
"""Seconds within which a pool has to notice that a worker is dead."""
LIMIT_S = 0.1


# --- recovery --------------------------------------------------------------------------------------


@SUITE.measure("an idle worker is killed: to the next result, p50", "ms", PEERS)
def idle_median(run: Run) -> float:
    """The median of 200 kills, or of as many as there are in 100 s."""
    return statistics.median(recoveries(run, busy=False))


@SUITE.measure("an idle worker is killed: to the next result, p99", "ms", PEERS, Target("<=", 100))
def idle_late(run: Run) -> float:
    """The 99th percentile of 200 kills, or of as many as there are in 100 s."""
    return percentile(recoveries(run, busy=False), 99)


@SUITE.measure("a busy worker is killed: to the next result, p50", "ms", PEERS)
def busy_median(run: Run) -> float:
    """The median of as many; the running task is lost."""
    return statistics.median(recoveries(run, busy=True))


@SUITE.measure("a busy worker is killed: to the next result, p99", "ms", PEERS, Target("<=", 100))
def busy_late(run: Run) -> float:
    """The 99th percentile of as many."""
    return percentile(recoveries(run, busy=True), 99)


@SUITE.measure("idle workers killed one after the other: survived", "%", PEERS, Target(">=", 100))
def survived(run: Run) -> float:
    """Of 10,000 kills, or as many as there are in 150 s: after how many a result comes."""
    system = run.open(workers=1)
    wanted = run.tasks(MANY)
    kills = well = 0
    end = time.monotonic() + MANY_S
    pid = next_pid(system)
    while kills < wanted and time.monotonic() < end:
        os.kill(pid, signal.SIGKILL)
        kills += 1
        try:
            pid = next_pid(system)
        except peers.Unfit:
            break
        well += 1
    return 100 * well / kills


def recoveries(run: Run, *, busy: bool) -> list[float]:
    """Milliseconds from each kill to the next result."""
    system = run.open(workers=1)
    taken: list[float] = []
    end = time.monotonic() + KILLS_S
    while len(taken) < run.tasks(KILLS) and (not taken or time.monotonic() < end):
        pid = next_pid(system)
        lost = None
        if busy:
            lost = begin(system)
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        next_pid(system)
        taken.append((time.perf_counter() - begun) * 1e3)
        if lost is not None:
            has_failed(lost)
    return taken


def begin(system: peers.System) -> Any:
    """Return the future of a long task that runs by now, in the only worker there is.

    Raises:
        peers.Unfit: It fails each time before it runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TRIES):
            said = os.path.join(folder, str(number))
            future = system.submit(work.nap_and_say, said)
            while not os.path.exists(said) and not future.done():
                time.sleep(0.001)
            if os.path.exists(said):
                return future
    raise peers.Unfit(f"after a killed worker, {TRIES} tasks fail before they run")


def next_pid(system: peers.System) -> int:
    """Wait for the next result, which is the process that it comes from.

    A peer may give a task to the worker that is just dying, and lose it: then the next one counts. Ours
    has one try.

    Raises:
        peers.Unfit: There is none: the pool does not survive.
    """
    for left in reversed(range(1 if system.name == OURS else TRIES)):
        try:
            (pid,) = system.results([system.submit(work.pid, 0)])
            return int(pid)
        except Exception as broken:
            if not left:
                raise peers.Unfit(f"a killed worker ends it: {type(broken).__name__}") from broken
            time.sleep(0.01)
    raise AssertionError("no try is left, and none was made")


def has_failed(lost: Any) -> None:
    """See that a task died with its worker, and that its future says so.

    Raises:
        peers.Unfit: The future says nothing: who waits for it waits for ever.
    """
    try:
        lost.result(LOST_S)
    except (Exception, CancelledError) as problem:
        if not lost.done():
            raise peers.Unfit("the future of what a killed worker ran never ends") from problem
        return
    raise AssertionError("a task of 60 s came to its end")


def percentile(values: list[float], share: int) -> float:
    """The value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * share // 100) - 1]


# --- limits, and the end ---------------------------------------------------------------------------


@SUITE.measure(
    "a limit of 100 ms, no grace: how late the future fails, worst", "ms", (OURS, PEBBLE),
    Target("<=", 20),
)  # fmt: skip
def limits(run: Run) -> float:
    """Of 50 tasks that sleep on, one after the other."""
    system = run.open(workers=1)
    late = []
    for _ in range(run.tasks(50)):
        begun = time.perf_counter()
        future = with_limit(run, system)
        try:
            future.result(60)
        except TimeoutError:
            late.append((time.perf_counter() - begun - LIMIT_S) * 1e3)
        else:
            raise AssertionError("a task of 60 s came to its end")
        next_pid(system)  # the replacement is up
    return max(late)


def with_limit(run: Run, system: Any) -> Any:
    """Submit a long task with a time limit, in the system's own way."""
    if run.system == OURS:
        limited = system._executor.options(timeout=LIMIT_S, grace=0)  # noqa: SLF001
        return limited.submit(work.nap, 60.0)
    return system._pool.schedule(work.nap, args=(60.0,), timeout=LIMIT_S)  # noqa: SLF001


@SUITE.measure("close(timeout=0.2, kill_after=0.2) on tasks that never end", "ms", (OURS,))
def close(run: Run) -> float:
    """400 ms are asked for."""
    system: Any = run.open()
    for _ in range(4 * run.workers):
        system.submit(work.nap, 600.0)
    time.sleep(0.1)
    begun = time.perf_counter()
    system._executor.close(timeout=0.2, kill_after=0.2)  # noqa: SLF001
    return (time.perf_counter() - begun) * 1e3
