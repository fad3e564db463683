"""The book: the versions there are and what became of them, under one lock. See README.md, "Book"."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final

from mpsched._base.clock import WallWatch
from mpsched._pool.future import COMPLETION
from mpsched._pool.waiting import Condition, Latch
from mpsched._schedule.bell import Bell
from mpsched._schedule.history import History
from mpsched._schedule.verdict import Verdict
from mpsched._timers.heap import VersionedTimerHeap
from mpsched.errors import DeadlineMissed, SchedulerClosed, TaskCancelled, TaskTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mpsched._base.clock import Clock
    from mpsched._schedule.attempt import Attempt, ThreadRun
    from mpsched._schedule.closing import End
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.history import Run
    from mpsched._timers.due import Due, TimerStatus

    Raw = Callable[[], tuple[Any, BaseException | None]]

STUCK_S: Final = 0.5
"""Seconds after which a verdict that is not told, and whose handle is not final, is told by another."""


class Book:
    """Every version that is not over, and a record of each attempt that is.

    What is here of states is the heaps': the book calls `schedule`, `cancel`, `claim_many`, `start`,
    `revoke`, `retry`, `finish` and `status`, and a store would have to have these. The two heaps, for
    workers and for threads of this process, share the version counter. Methods expect the lock, unless
    they say otherwise, and run no code of the user's.

    Attributes:
        lock: guards everything here; never held while user code runs, nor while the pool is asked to
            take something back.
        changed: notified when something that a caller may wait for has changed; and listeners called.
        workers, inside: what waits for workers, and for threads of this process.
        current: the newest version of each id, as long as it is not over.
        older: versions that run although they were replaced, by id.
        taken: versions that the caller runs, by version (pull mode).
        deadlines: how many versions that are not over have one.
        state: "accepting", "closing", "draining" or "closed"; end: what is known of the end, then.
        mixed: something due may come before what is with the pool and waits; see README.md, "Making way".
        bell, wakes_at: what the dispatcher sleeps on, and until when.
        real: whether the clock is the machine's, which workers read too.
    """

    def __init__(
        self,
        clock: Clock,
        heaps: dict[str, Any],
        history: int,
        report: Callable[[Run, BaseException, str], None],
    ) -> None:
        self.clock = clock
        self.made = clock.monotonic()
        self.real = clock.timeout(1.0, walls=False) is not None
        self.walls = WallWatch(clock)
        self.jumps = 0
        versions = itertools.count(1)
        self.workers = VersionedTimerHeap(versions=versions, on_drop=self._on_drop, **heaps)
        self.inside = VersionedTimerHeap(versions=versions, on_drop=self._on_drop, **heaps)
        self.history = History(history)
        self.report = report
        self.lock = threading.RLock()
        self.changed = Condition(self.lock)
        self.current: dict[Hashable, TaskHandle[Any]] = {}
        self.older: dict[Hashable, list[TaskHandle[Any]]] = {}
        self.taken: dict[int, TaskHandle[Any]] = {}
        self.deadlines = 0
        self.listeners: list[Callable[[], None]] = []
        self.state = "accepting"
        self.end: End | None = None
        self.closed = Latch()
        self.bell = Bell()
        self.wakes_at = float("inf")
        self.mixed = False
        self._drops: deque[tuple[Due, str]] = deque()
        self._untold: list[Verdict] = []
        # Verdicts that are not told, and when they were made.
        self.telling: dict[Verdict, float] = {}
        self._rng = random.Random()  # noqa: S311 - spreads retries

    # --- looking -------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Raise SchedulerClosed if nothing new is taken."""
        if self.state != "accepting":
            raise SchedulerClosed(
                f"the scheduler is {self.state} and takes nothing new: make a new one"
            )

    @property
    def untold(self) -> bool:
        """Whether a verdict is not told yet."""
        return bool(self.telling)

    def idle(self) -> bool:
        """Whether nothing is pending, dispatched or running, and every end is told."""
        return not (self.current or self.older or self.telling)

    def give_back(self, handle: TaskHandle[Any]) -> None:
        """Put a recalled version back into its place."""
        assert handle.due is not None
        handle.heap.revoke(handle.due)
        handle.due = None
        self.bell.ring()

    def follows_wall(self) -> bool:
        """Whether anything has a calendar time. Lock held."""
        return self.workers.walls + self.inside.walls > 0

    def _missed(self, handle: TaskHandle[Any], now: float) -> DeadlineMissed:
        late = now - (handle.deadline or now)
        return DeadlineMissed(
            f"{handle.describe()} had not started at its deadline, {late:.3f} s ago"
        )

    def _begin(self, handle: TaskHandle[Any]) -> None:
        assert handle.due is not None
        handle.begun = handle.heap.start(handle.due)

    def observe(self, handle: TaskHandle[Any]) -> None:
        """Note that a dispatched version has started, if it has. Lock held."""
        if not handle.begun and handle.run is not None and handle.run.has_begun():
            self._begin(handle)

    def conclude(
        self,
        handle: TaskHandle[Any],
        run: Attempt | ThreadRun | None,
        value: Any,
        error: BaseException | None,
        now: float,
    ) -> None:
        """An attempt is over: the version is, or has another one. `run` is None in pull mode."""
        outcome = _outcome(handle, error)
        if not self._retry(handle, run, error, outcome, now):
            self.finish_with(handle, outcome, now, run, value, error)
        self._look_after()

    def _completed(
        self, handle: TaskHandle[Any], run: Attempt, value: Any, raw: Raw | None, now: float
    ) -> None:
        """An attempt has returned: the common case of `conclude`. A result is unpickled by who asks."""
        assert handle.due is not None
        # Mostly this is the first that is heard of its start, too.
        handle.heap.ran(handle.due)
        self._record(handle, "completed", now, run)
        self.close_handle(handle)
        with COMPLETION:
            # Nobody waits and no callback runs: then no verdict is needed.
            told = handle._finish(value, raw, False)
        if not told:
            self._untold.append(self._verdict(handle, value, None, raw=raw))

    def _lost(self, handle: TaskHandle[Any], problem: Exception) -> None:
        """The tables do not find an id any more: its hash, or what it equals, has changed.

        It is the user's code, and concerns that id alone.
        """
        error = RuntimeError(
            f"{handle.describe()} cannot be found any more: an id must keep its hash and what it equals"
        )
        error.__cause__ = problem
        # Built anew, as the table cannot find what it is to remove.
        self.current = {key: one for key, one in self.current.items() if one is not handle}
        for group in list(self.older.values()):
            if handle in group:
                self.older = {k: [o for o in g if o is not handle] for k, g in self.older.items()}
                self.older = {k: g for k, g in self.older.items() if g}
                break
        if not handle.over:
            handle.over = True
            handle.run = handle.due = handle.job = None
            self.history.add(
                handle.task_id, handle.version, handle.attempt, handle.run_at, None,
                self.clock.monotonic(), None, "failed", "its id has changed",
            )  # fmt: skip
            self._untold.append(self._verdict(handle, None, error))

    def _retry(
        self,
        handle: TaskHandle[Any],
        run: Attempt | ThreadRun | None,
        error: BaseException | None,
        outcome: str,
        now: float,
    ) -> bool:
        policy = handle.policy
        if (
            not handle.begun
            or outcome in {"completed", "cancelled"}
            or handle.attempt > policy.retries
            or not isinstance(error, policy.retry_on)
            or self.state != "accepting"
            or self.current.get(handle.task_id) is not handle
        ):
            return False
        pause = policy.backoff.delay(handle.attempt, self._rng)
        assert handle.due is not None
        if not handle.heap.retry(handle.due, now + pause):
            return False  # replaced, or asked to stop
        handle.failure = error
        handle.why = f"{type(error).__name__}; attempt {handle.attempt + 1} after {pause:.3f} s"
        self._record(handle, outcome, now, run)
        handle.why = ""
        handle.attempt += 1
        handle.begun = False
        handle.run = handle.due = handle.ending = None
        handle.run_at, handle.at = now + pause, None
        self.mixed = True  # it may come before what lies with a worker until its time
        if handle.run_at <= self.wakes_at:
            self.bell.ring()
        return True

    def finish_with(
        self,
        handle: TaskHandle[Any],
        outcome: str,
        now: float,
        run: Attempt | ThreadRun | None,
        value: Any = None,
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
    ) -> None:
        """Make a version that was claimed or ran final."""
        due = handle.due
        assert due is not None
        end: Any = "failed" if outcome == "timed_out" else outcome
        handle.heap.finish(due, end)
        self._on_record(handle, outcome, now, run, value, error, cancelled=cancelled)

    def _on_record(
        self,
        handle: TaskHandle[Any],
        outcome: str,
        now: float,
        run: Attempt | ThreadRun | None,
        value: Any = None,
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
    ) -> None:
        """Record the end of a version, and have it told.

        In this order: once there is a verdict, whoever mends needs no more than to close the handle.
        """
        self._record(handle, outcome, now, run)
        self._untold.append(self._verdict(handle, value, error, cancelled=cancelled))
        self.close_handle(handle)

    def end_version(
        self,
        handle: TaskHandle[Any],
        due: Due,
        value: Any,
        error: BaseException | None,
        now: float,
    ) -> None:
        """Record the end of an attempt that the heap knows of already (it was cut short there)."""
        handle.due = due
        self._on_record(handle, _outcome(handle, error), now, handle.run, value, error)

    def drop(self, handle: TaskHandle[Any], due: Due, outcome: str, now: float) -> None:
        """Record the end of a version that the heap has dropped: it never started, and never will."""
        if handle.why in {"superseded", "kept"}:
            outcome, handle.why = handle.why, ""
        handle.due = due
        if outcome == "missed":
            self._on_record(handle, outcome, now, None, error=self._missed(handle, now))
        elif handle.failure is not None and outcome == "cancelled" and self.state != "accepting":
            # It waited to be tried again, which does not happen any more.
            self._on_record(handle, "failed", now, None, error=handle.failure)
        else:
            handle.prevented = True
            self._on_record(handle, outcome, now, None, cancelled=True)

    def _record(
        self,
        handle: TaskHandle[Any],
        outcome: str,
        now: float,
        run: Attempt | ThreadRun | None,
    ) -> None:
        started: float | None = None
        finished = now
        worker = None
        if run is not None and run.started_ns:
            started = now
            worker = run.worker
            if self.real:
                started = run.started_ns / 1e9
                # Else nobody has measured it: its worker has died, which was noticed now.
                if run._ns > 0:
                    finished = started + run._ns / 1e9
            handle._ns = run._ns
            handle.worker = worker
        elif handle.begun:  # pull mode
            started = handle.taken_at
            handle._ns = int((now - started) * 1e9)
        due = handle.due
        self.history.add(
            handle.task_id,
            handle.version,
            handle.attempt,
            handle.run_at if due is None else due.run_at,
            started,
            finished,
            worker,
            outcome,
            handle.why,
        )

    def close_handle(self, handle: TaskHandle[Any]) -> None:
        """A version is over."""
        handle.over = True
        handle.begun = False
        handle.run = handle.due = handle.ending = handle.failure = None
        handle.job = None
        if handle.deadline is not None:
            self.deadlines -= 1
        self.forget(handle)

    def forget(self, handle: TaskHandle[Any]) -> None:
        """Take a version that is over out of the registers; let go what waited for it."""
        task_id = handle.task_id
        if self.current.get(task_id) is handle:
            del self.current[task_id]
        older = self.older.get(task_id) if self.older else None
        if older is None:
            return
        if handle in older:
            older.remove(handle)
        if not older:
            del self.older[task_id]
            newest = self.current.get(task_id)
            if newest is not None and newest.waits:
                newest.waits = False
                newest.heap.resume(task_id)
                self.mixed = True
                self.bell.ring()

    def tell_waiters(self) -> None:
        """Wake whoever waits for a change, in a thread or in an event loop. Lock held."""
        self.changed.notify_all()
        for wake in tuple(self.listeners):
            wake()

    def _look_after(self) -> None:
        """Something has ended: tell who waits for it. Lock held."""
        self.tell_waiters()
        if self.state != "accepting":
            self.bell.ring()

    def _on_drop(self, due: Due, why: str) -> None:
        self._drops.append((due, why))

    def verdicts(self, now: float) -> list[Verdict]:
        """Record what the heap has dropped, and return what is to be told once the lock is free."""
        if self._drops:
            while self._drops:
                due, why = self._drops[0]
                handle: Any = due.fn
                if not handle.over and handle.verdict is None:
                    self.drop(handle, due, why, now)
                self._drops.popleft()
            self._look_after()
        verdicts, self._untold = self._untold, []
        return verdicts

    def _verdict(
        self,
        handle: TaskHandle[Any],
        value: Any = None,
        error: BaseException | None = None,
        *,
        cancelled: bool = False,
        raw: Raw | None = None,
    ) -> Verdict:
        run = self.history.last()
        made = Verdict(self, run, handle, value, error, cancelled=cancelled, raw=raw)
        self.telling[made] = time.monotonic()
        handle.verdict = made
        return made

    def stuck(self) -> list[Verdict]:
        """Return verdicts whose telling was interrupted (KeyboardInterrupt): nobody else tells them."""
        if not self.telling:
            return []
        now = time.monotonic()
        stuck = [one for one, made in list(self.telling.items()) if made < now - STUCK_S]
        for one in stuck:
            self.telling[one] = now  # not each time while a slow callback runs
        return stuck

    def told(self, verdict: Verdict) -> None:
        """A verdict was told. No lock is needed."""
        self.telling.pop(verdict, None)
        if self.state != "accepting":
            self.bell.ring()

    def status(self, task_id: Hashable) -> TimerStatus | None:
        """Tell what is known of an id. Lock held."""
        handle = self.current.get(task_id)
        if handle is not None:
            self.observe(handle)
        found = [
            status
            for heap in (self.workers, self.inside)
            if (status := heap.status(task_id)) is not None
        ]
        return max(found, key=lambda one: one.version, default=None)


def _outcome(handle: TaskHandle[Any], error: BaseException | None) -> str:
    if error is None:
        return "completed"
    if isinstance(error, CancelledError) and not handle.begun:
        return "cancelled"
    if isinstance(error, TaskTimeout):
        return "timed_out"
    if isinstance(error, TaskCancelled | CancelledError):
        if handle.cancel_requested:
            return "cancelled"
        if isinstance(error, TaskCancelled) and handle.policy.options.timeout is not None:
            return "timed_out"  # it stopped when its limit asked it to
    return "failed"
