"""What a pool tells about itself.

Maps 400 items of very uneven length and prints, for each worker, how many pieces of the map it ran,
for how long, and how often it took work from another, then the totals and how even the spread was.
"""

from __future__ import annotations

import random
import time

import mpsched


def spin(seconds: float) -> None:
    """Keep one core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main() -> None:
    """Run a skewed load and look at the counters."""
    rng = random.Random(1)
    loads = [min(rng.paretovariate(1.2) * 0.0005, 0.1) for _ in range(400)]
    with mpsched.WorkStealingExecutor() as ex:
        begun = time.perf_counter()
        for _ in ex.map(spin, loads):
            pass
        took = time.perf_counter() - begun
        stats = ex.stats()

    print("worker     pid    pieces   busy s  steals")
    for worker in stats.workers:
        print(
            f"{worker.index:6}{worker.pid:8}{worker.executed:10}{worker.busy_seconds:9.3f}"
            f"{worker.steals:8}"
        )
    busy = sum(worker.busy_seconds for worker in stats.workers)
    print(f"all: {stats.executed} pieces, {busy:.3f} s of work in {took:.3f} s")
    print(f"largest share of one worker: {share(stats, busy):.0%} of {len(stats.workers)} workers")


def share(stats: mpsched.PoolStats, busy: float) -> float:
    """Return the part of the work that the busiest worker did."""
    return max(worker.busy_seconds for worker in stats.workers) / busy


if __name__ == "__main__":
    main()
