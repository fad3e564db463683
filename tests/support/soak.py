"""Long runs under fire: what the tasks do, and who kills their workers."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING, Any

import mpsched
from tests.support import fork_calls, pools

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int64]


class Killer(threading.Thread):
    """Kills a worker of a pool now and then, chosen by a seed, while the block runs.

    It waits until the pool has its full width again, or `least` workers that are ready, and stops after
    `most`: on a machine that is busy with something else workers would be killed before they have done
    anything, for ever. With `done`, a count of what has come to its end, it kills whoever is ready as soon as
    that has grown; and one time in eight whoever is there, at once.

    Attributes:
        kills: how many have died of it.
        problem: what ended it before its time.
    """

    def __init__(
        self,
        ex: mpsched.WorkStealingExecutor,
        every_s: float,
        seed: int,
        spared: Callable[[], int] = int,
        most: int = 1 << 30,
        done: Callable[[], int] | None = None,
        least: int | None = None,
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self.kills = 0
        self.problem: BaseException | None = None
        self._ex = ex
        self._every_s = every_s
        self._dice = random.Random(seed)
        self._spared = spared
        self._most = most
        self._least = least
        self._done = done
        self._seen = -1
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while self.kills < self._most and not self._over.wait(self._pause_s()):
                spared = self._spared()
                targets = [pid for pid in self._targets() if pid > 0 and pid != spared]
                if targets:
                    self.kills += pools.kill(self._dice.choice(targets))
        except BaseException as problem:  # told in the test's own thread
            self.problem = problem

    def _pause_s(self) -> float:
        return self._every_s * self._dice.uniform(0.3, 1.7)

    def _targets(self) -> list[int]:
        supervisor: Any = self._ex._pool.supervisor  # type: ignore[union-attr]
        slots = supervisor._slots[: len(pools.pids(self._ex))]
        ready = [slot.pid for slot in slots if slot.ready]
        if self._done is None:
            least = len(slots) if self._least is None else self._least
            return ready if len(ready) >= least else []
        if not self._dice.randrange(8):
            return [slot.pid for slot in slots]
        done = self._done()
        if done == self._seen:
            return []
        self._seen = done
        return ready

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self.join(pools.DEADLINE_S)
        assert not self.is_alive()
        if error is None:
            assert self.problem is None, self.problem


def explore(nodes: list[bytes], seconds: float) -> tuple[int, list[bytes]]:
    """Count nodes of a tree until the time is over; return how many, and those that are left."""
    until = time.monotonic() + seconds
    found, todo = 0, nodes
    while todo and time.monotonic() < until:
        found += 1
        todo += fork_calls.below(todo.pop())
    return found, todo


def count_in_pieces(
    ex: mpsched.WorkStealingExecutor, nodes: list[bytes], seconds: float, width: int
) -> int:
    """Count a tree by roots of at most `seconds` each, which give back what they have not explored."""
    patient = ex.options(retries=1000)
    found, todo = 0, nodes
    running: set[Any] = set()
    while todo or running:
        while todo and len(running) < width:
            share = max(1, len(todo) // width)
            running.add(patient.submit(explore, todo[-share:], seconds))
            del todo[-share:]
        done, running = wait(running, pools.DEADLINE_S, FIRST_COMPLETED)
        assert done, "no root of a few milliseconds has come to its end"
        for future in done:
            count, left = future.result(0)
            found += count
            todo += left
    return found


def count_as_one(tree: tuple[int, int], where: Words) -> int:
    """Count a tree, a seed and a width, by children; `where` gets the pid of the root's worker."""
    where[0] = os.getpid()
    handles = [mpsched.spawn(_count, node) for node in fork_calls.root(*tree)]
    return sum(handle.join() for handle in handles)


def _count(node: bytes) -> int:
    handles = [mpsched.spawn(_count, child) for child in fork_calls.below(node)]
    return 1 + sum(handle.join() for handle in reversed(handles))


class Footprint:
    """What this process holds: memory in bytes, descriptors, threads."""

    def __init__(self) -> None:
        with open("/proc/self/statm", encoding="ascii") as statm:
            self.memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = threading.active_count()

    def __repr__(self) -> str:
        return f"{self.memory >> 20} MB, {self.descriptors} descriptors, {self.threads} threads"
