"""Fork-join: what a spawn costs, what recursion gains from a second core, how fast a child is stolen.

A speed-up is T_S / T_2: the plain program in one worker, against the forking one in two, taken in turn.
A change for the worse in

- the cost per spawn means that spawn, join or what stands between them has grown;
- the speed-ups means that children are not there when a worker wants some, or steals cost more;
- the steal and the fan-out means parking, waking, publishing.

The peers show what one does without nested tasks: threads, and `ProcessPoolExecutor` with the
program cut into some dozens of calls by hand. Dask's tasks may wait for tasks of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from . import kernels, peers
from .harness import OURS, Run, Suite, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SUITE = Suite("forkjoin")

THREADS = peers.Threads.name
PPE = peers.Processes.name
DASK = peers.Dask.name
BY_HAND = (OURS, THREADS, PPE)

# What a spawn may cost is promised for one version; others are reported.
PER_SPAWN = (Target("<=", 0.5),) if sys.version_info[:2] == (3, 11) else ()


# --- what a spawn costs ----------------------------------------------------------------------------


@SUITE.measure("fib(27), no cut-off: (T_1 - T_S) per spawn", "us", (OURS,), *PER_SPAWN)
def per_spawn(run: Run) -> float:
    """Each the best of three in one worker."""
    n = 22 if run.quick else 27
    run.open(workers=1)
    plain = min(in_worker(run, kernels.fib_plain, n) for _ in range(3))
    ours = min(in_worker(run, kernels.fib, n) for _ in range(3))
    return (ours - plain) / kernels.FIB_SPAWNS[n] * 1e6


@SUITE.measure("for_each over 1,000,000 cheap items: per item", "ns", (OURS,), Target("<=", 60))
def per_item(run: Run) -> float:
    """What `parallel.for_each` adds to a plain loop, in one worker."""
    items = 100_000 if run.quick else 1_000_000
    system = run.open(workers=1)
    (seconds,) = system.results([system.submit(kernels.loop_overhead, items)])
    return float(seconds) / items * 1e9


@SUITE.measure("a stolen child: spawn to result, thief awake", "us", (OURS,), Target("<=", 60))
def steal(run: Run) -> float:
    """The median; of 10 to warm up and 300."""
    system = run.open()
    system.results([system.submit(kernels.give_away, 10)])
    (taken,) = system.results([system.submit(kernels.give_away, run.tasks(300))])
    return float(statistics.median(taken)) * 1e6


# --- what recursion gains --------------------------------------------------------------------------


@SUITE.measure("fib(27), no cut-off: T_1 / T_2", "x", (OURS,), Target(">=", 1.9))
def fib_scaling(run: Run) -> float:
    """The same program in a pool of one and in a pool of two; the best of three each."""
    n = 22 if run.quick else 27
    taken = []
    for workers in (1, 2):
        run.open(workers)
        taken.append(min(in_worker(run, kernels.fib, n) for _ in range(3)))
        run.close()
    return taken[0] / taken[1]


@SUITE.measure("fib(30) cut at 15: T_S / T_2", "x", (*BY_HAND, DASK), Target(">=", 1.93))
def fib_cut(run: Run) -> float:
    """Dask cuts at 24."""
    n = 24 if run.quick else 30
    return speed_up(
        run,
        partial(kernels.fib_plain, n),
        forking=partial(kernels.fib_cut, n),
        parts=kernels.fib_parts(n),
        nested=partial(kernels.fib_dask, n),
        join=sum,
    )


@SUITE.measure("nqueens(10), spawn to depth 3: T_S / T_2", "x", (*BY_HAND, DASK), Target(">=", 1.9))
def queens(run: Run) -> float:
    """By hand, and with Dask, the first two rows are cut off."""
    n = 8 if run.quick else 10
    return speed_up(
        run,
        partial(kernels.queens_plain, n),
        forking=partial(kernels.queens, n),
        parts=kernels.queens_parts(n),
        nested=partial(kernels.queens_dask, n),
        join=sum,
    )


@SUITE.measure("UTS T3, every child a task: T_S / T_2", "x", (OURS,), Target(">=", 1.25))
def uts_each(run: Run) -> float:
    """4,112,897 tasks, 1,572 deep; T_S is the same recursion, by calls. Nobody else nests so deep, or so many."""
    return uts(run, kernels.uts_all_recursive, kernels.uts_all_each)


@SUITE.measure("UTS T3, every child a task, against a loop: T_S / T_2", "x", (OURS,))
def uts_each_by_loop(run: Run) -> float:
    """T_S is a loop with a stack of its own: what remains against a program without recursion."""
    return uts(run, kernels.uts_all_plain, kernels.uts_all_each)


@SUITE.measure("UTS T3, a range of subtrees: T_S / T_2", "x", BY_HAND, Target(">=", 1.85))
def uts_ranges(run: Run) -> float:
    """`parallel.map_reduce` over the root's 2,000 children; by hand 64 calls of 31 subtrees."""
    return uts(run, kernels.uts_all_plain, kernels.uts_ranges)


def uts(run: Run, plain: Callable[[], int], forking: Callable[[], int]) -> float:
    def join(counts: Iterable[int]) -> int:
        return 1 + sum(counts)

    parts = kernels.uts_parts()
    return speed_up(
        run, plain, forking=forking, parts=parts, join=join,
        expected=kernels.T3.nodes, pairs=1,
    )  # fmt: skip


@SUITE.measure("mandelbrot 1024 x 1024: T_S / T_2", "x", BY_HAND, Target(">=", 1.85))
def mandelbrot(run: Run) -> float:
    """At most 300 iterations a point, in pure Python; rows that split themselves."""
    size = 128 if run.quick else 1024
    return speed_up(
        run,
        partial(kernels.mandel_plain, size),
        forking=partial(kernels.mandel, size),
        parts=kernels.mandel_parts(size),
        join=sum,
        pairs=1,
    )


@SUITE.measure("integrate over 0..2000, eps 1e-3: T_S / T_2", "x", BY_HAND, Target(">=", 1.85))
def integrate(run: Run) -> float:
    """The parts differ by three orders of magnitude. Sums agree to the last digits but a few."""
    end = 200.0 if run.quick else 2000.0
    return speed_up(
        run,
        partial(kernels.integrate_plain, *kernels.interval(0.0, end)),
        forking=partial(kernels.integrate, *kernels.interval(0.0, end)),
        parts=kernels.integrate_parts(end),
        join=sum,
        digits=4,
    )


# --- arrays ----------------------------------------------------------------------------------------


@SUITE.measure("sort of 2^21 float64: T_S / T_2", "x", BY_HAND, Target(">=", 1.5))
def sort(run: Run) -> float:
    """One `ndarray.sort`, in place; ours in a shared array, in place. Others sort halves and merge."""
    numpy = peers.load("numpy")
    mpsched = peers.load("mpsched")
    values = numpy.random.default_rng(1).random(1 << (17 if run.quick else 21))
    wanted = numpy.sort(values)
    system = run.open()
    half = len(values) // 2
    ratios = []
    for _ in range(5):
        ours = mpsched.shared_copy(values)
        begun = values.copy()
        plain = kernels.timed(kernels.sort_plain, begun)[0]
        if run.system == OURS:
            (answer,) = system.results([system.submit(timed_sort, ours)])
            taken, result = answer, ours
        else:
            taken, result = kernels.timed(sorted_by_hand, system, values.copy(), half)
        if not numpy.array_equal(result, wanted):
            raise AssertionError(f"{run.system} did not sort")
        ratios.append(plain / taken)
    return float(statistics.median(ratios))


def timed_sort(values: Any) -> float:
    return kernels.timed(kernels.sort_shared, values)[0]


def sorted_by_hand(system: peers.System, values: Any, half: int) -> Any:
    numpy = peers.load("numpy")
    halves = [system.submit(kernels.sorted_part, part) for part in (values[:half], values[half:])]
    both = numpy.concatenate(system.results(halves))
    both.sort(kind="stable")  # finds the two runs, and merges
    return both


@SUITE.measure("matrix product 1024, blocked: T_S / T_2", "x", BY_HAND, Target(">=", 1.85))
def product(run: Run) -> float:
    """Blocks of 128, one thread of BLAS for everybody; T_S in the same shared arrays."""
    numpy, ours = product_arrays(run)
    a, b, out = (numpy.array(one) for one in ours)
    size = len(a)
    system = run.open()
    rows = size // 8
    ratios = []
    for _ in range(5):
        plain = kernels.timed(kernels.product_plain, *ours)[0]
        out[:] = ours[2]
        ours[2][:] = 0
        if run.system == OURS:
            (answer,) = system.results([system.submit(timed_product, ours)])
            taken, result = answer, ours[2]
        else:
            parts = [(kernels.product_part, a[at : at + rows], b) for at in range(0, size, rows)]
            taken, strips = kernels.timed(by_hand, system, parts)
            result = numpy.concatenate(strips)
        if not numpy.allclose(result, out):
            raise AssertionError(f"{run.system} gave a wrong product")
        ratios.append(plain / taken)
    return float(statistics.median(ratios))


@SUITE.measure("matrix product 1024, two processes without a pool: T_S / T", "x", (OURS,))
def product_side_by_side(run: Run) -> float:
    """What the machine gives: half of the rows in each of two processes, which begin at the same time.

    No pool can reach more than this, on cores that slow each other down.
    """
    numpy, arrays = product_arrays(run)
    size = len(arrays[0])
    context = multiprocessing.get_context("fork")
    ratios = []
    for _ in range(5):
        plain = kernels.timed(kernels.product_plain, *arrays)[0]
        wanted = numpy.array(arrays[2])
        arrays[2][:] = 0
        barrier, times = context.Barrier(2), context.SimpleQueue()
        halves = [
            context.Process(target=half_product, args=(arrays, start, size // 2, barrier, times))
            for start in (0, size // 2)
        ]
        for half in halves:
            half.start()
        spans = [times.get() for _ in halves]
        for half in halves:
            half.join()
        if not numpy.allclose(arrays[2], wanted):
            raise AssertionError("two halves gave a wrong product")
        ratios.append(plain / (max(end for _, end in spans) - min(start for start, _ in spans)))
    return float(statistics.median(ratios))


def half_product(arrays: list[Any], start: int, rows: int, barrier: Any, times: Any) -> None:
    a, b, out = arrays
    kernels.product_plain(a[start : start + 1], b, out[start : start + 1])  # to open the memory
    barrier.wait()
    begun = time.perf_counter()
    kernels.product_plain(a[start : start + rows], b, out[start : start + rows])
    times.put((begun, time.perf_counter()))


def product_arrays(run: Run) -> tuple[Any, list[Any]]:
    """Return NumPy, with one thread of BLAS, and two factors and their product in shared arrays."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # read when NumPy is imported
    numpy = peers.load("numpy")
    size = 256 if run.quick else 1024
    factors = [numpy.random.default_rng(seed).random((size, size)) for seed in (1, 2)]
    return numpy, [
        peers.load("mpsched").shared_copy(one) for one in (*factors, numpy.zeros((size, size)))
    ]


def timed_product(arrays: list[Any]) -> float:
    return kernels.timed(kernels.product, *arrays)[0]


# --- many small tasks, and sleeping ones -----------------------------------------------------------


@SUITE.measure("skynet: time per task", "us", (OURS, DASK))
def skynet(run: Run) -> float:
    """A tree of ten children each, 100,000 leaves; Dask gets 1,000. Reported, without a figure."""
    size = 100_000 if run.system == OURS else 1_000
    if run.quick:
        size //= 10
    run.open()
    fn = kernels.skynet if run.system == OURS else kernels.skynet_dask
    taken = in_worker(run, fn, 0, size, expected=size * (size - 1) // 2)
    return taken / ((size * 10 - 1) // 9) * 1e6


@SUITE.measure("flat fan-out of 8 x 50 ms sleeps, 4 workers", "ms", BY_HAND, Target("<=", 110))
def fan_out(run: Run) -> float:
    """Spawned and joined in one order, by one task; the others submit them. The best is 100."""
    system = run.open(workers=4)
    taken = []
    for _ in range(3):
        if run.system == OURS:
            taken.append(in_worker(run, kernels.fan_out, 8, 0.05, expected=8))
        else:
            begun = time.perf_counter()
            system.results([system.submit(kernels.nap, 0.05) for _ in range(8)])
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e3


# --- how it is done --------------------------------------------------------------------------------


def in_worker(run: Run, fn: Callable[..., Any], *args: Any, expected: Any = None) -> float:
    """Seconds that a call takes in a worker of the system that was opened."""
    system = run.opened()
    (answer,) = system.results([system.submit(in_task, (fn, *args))])
    seconds, result = answer
    if expected is not None and result != expected:
        raise AssertionError(f"{run.system} gave {result!r} instead of {expected!r}")
    return float(seconds)


def in_task(call: tuple[Any, ...]) -> tuple[float, Any]:
    return kernels.timed(*call)


def by_hand(system: peers.System, parts: list[tuple[Any, ...]]) -> list[Any]:
    """Run the parts as tasks; return their results."""
    return system.results([system.submit(kernels.call, part) for part in parts])


def speed_up(
    run: Run,
    plain: Callable[[], Any],
    *,
    forking: Callable[[], Any],
    parts: list[tuple[Any, ...]],
    join: Callable[[Iterable[Any]], Any],
    nested: Callable[[], Any] | None = None,
    expected: Any = None,
    pairs: int = 3,
    digits: int | None = None,
) -> float:
    """The median of T_S / T_P, of some pairs taken one after the other in the same pool.

    Args:
        run: Whose turn it is.
        plain: The program without a pool; it runs in a worker.
        forking: The program for mpsched; one task.
        parts: The program cut by hand, for those without nested tasks.
        join: Makes the result of those of the parts.
        nested: The program for Dask; one task.
        expected: The result, if it is known.
        pairs: How often.
        digits: Decimal places to which the results agree; None: they are equal.
    """
    system = run.open()
    ratios = []
    for _ in range(pairs):
        (answer,) = system.results([system.submit(in_task, (plain,))])
        slow, wanted = answer
        if run.system in {OURS, DASK}:
            task = forking if run.system == OURS else nested
            (answer,) = system.results([system.submit(in_task, (task,))])
            quick, found = answer
        else:
            begun = time.perf_counter()
            found = join(by_hand(system, parts))
            quick = time.perf_counter() - begun
        for known in (wanted, expected):
            if known is not None and (
                found != known if digits is None else round(found / known - 1, digits)
            ):
                raise AssertionError(f"{run.system} gave {found!r} instead of {known!r}")
        ratios.append(slow / quick)
    return float(statistics.median(ratios))
