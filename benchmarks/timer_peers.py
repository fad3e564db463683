"""Timers of mpsched and of its peers behind one small face, each used as its documentation says.

`fill` makes timers that stay; `schedule`, `cancel` and `next` are what is measured. A peer that has no such
operation raises NotImplementedError, and is not in that row.
"""

from __future__ import annotations

import asyncio
import sched
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from . import peers, work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Timers:
    """Timers that are far away; a number names each.

    Attributes:
        name: As it stands in tables.
        rate: Operations per second with 100,000 timers, roughly: bounds how many a sample takes.
    """

    name: ClassVar[str]
    rate: ClassVar[float] = 1e9

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        """Return the arguments of `add` for timers at `times`, in seconds: not measured."""
        return list(enumerate(times))

    def adder(self) -> Callable[..., Any]:
        """Return what adds one timer."""
        raise NotImplementedError

    def canceller(self) -> Callable[[Any], Any]:
        """Return what cancels the timer that an adder returned."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""


class Heap(Timers):
    """The heap alone, which names timers by id, and knows versions, claims and states."""

    name = "mpsched"

    def __init__(self) -> None:
        self.heap = peers.load("mpsched").VersionedTimerHeap()

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        return [(number, time, 0, work.noop) for number, time in enumerate(times)]

    def adder(self) -> Callable[..., Any]:
        schedule: Callable[..., Any] = self.heap.schedule
        return schedule

    def canceller(self) -> Callable[[Any], Any]:
        cancel: Callable[[Any], Any] = self.heap.cancel
        return cancel


class Sched(Timers):
    """The standard library's `sched`: no ids; cancelling is a search."""

    name = "sched"
    rate = 500

    def __init__(self) -> None:
        self.scheduler = sched.scheduler()

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        return [(time, 0, work.noop) for time in times]

    def adder(self) -> Callable[..., Any]:
        return self.scheduler.enterabs

    def canceller(self) -> Callable[[Any], Any]:
        return self.scheduler.cancel


class Asyncio(Timers):
    """`loop.call_at`: no ids, no priorities."""

    name = "asyncio"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        now = self.loop.time()
        return [(now + time, work.noop) for time in times]

    def adder(self) -> Callable[..., Any]:
        return self.loop.call_at

    def canceller(self) -> Callable[[Any], Any]:
        return asyncio.TimerHandle.cancel

    def close(self) -> None:
        self.loop.close()


class Apscheduler(Timers):
    """APScheduler 3 with its job store in memory; started, and paused, so that jobs are in the store."""

    name = "APScheduler"
    rate = 5_000

    def __init__(self) -> None:
        background = peers.load("apscheduler.schedulers.background")
        self.trigger = peers.load("apscheduler.triggers.date").DateTrigger
        self.scheduler = background.BackgroundScheduler(timezone=UTC)
        self.scheduler.start(paused=True)

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        start = datetime.now(UTC) + timedelta(hours=1)
        return [
            (work.noop, self.trigger(start + timedelta(seconds=time)), (0,), None, str(number))
            for number, time in enumerate(times)
        ]

    def adder(self) -> Callable[..., Any]:
        add: Callable[..., Any] = self.scheduler.add_job
        return add

    def canceller(self) -> Callable[[Any], Any]:
        remove: Callable[[Any], Any] = peers.load("apscheduler.job").Job.remove
        return remove

    def close(self) -> None:
        self.scheduler.shutdown(wait=False)


class Threads(Timers):
    """`threading.Timer`: a thread for each timer."""

    name = "threading.Timer"
    rate = 5_000

    def __init__(self) -> None:
        self.started: list[threading.Timer] = []

    def prepare(self, times: Sequence[float]) -> list[tuple[Any, ...]]:
        return [(3600.0 + time,) for time in times]

    def adder(self) -> Callable[..., Any]:
        return self.start

    def start(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, work.noop)
        timer.daemon = True
        timer.start()
        self.started.append(timer)
        return timer

    def canceller(self) -> Callable[[Any], Any]:
        return threading.Timer.cancel

    def close(self) -> None:
        for timer in self.started:
            timer.cancel()


TIMERS: dict[str, Callable[[], Timers]] = {
    timers.name: timers for timers in (Heap, Sched, Asyncio, Apscheduler, Threads)
}
