"""`Scheduler`: Python calls at their time, in worker processes or in threads of this one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from mpsched._base.cancelresult import CancelResult
from mpsched._base.clock import SystemClock
from mpsched._intask import not_callable
from mpsched._pool import lifecycle
from mpsched._schedule import checks, closing, job as jobs, pull
from mpsched._schedule.closing import Kept, SchedulerReport
from mpsched._schedule.desk import Desk
from mpsched._schedule.dispatcher import ClockJump, Dispatcher
from mpsched._schedule.handle import TaskHandle
from mpsched._schedule.history import Run, peak
from mpsched._schedule.metrics import SchedulerMetrics
from mpsched._schedule.report import Report
from mpsched._timers import instants
from mpsched._timers.backoff import Backoff
from mpsched._timers.due import Due, TimerStatus, Wait
from mpsched.errors import SchedulerClosed
from mpsched.executor import WorkStealingExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType

    from mpsched._base.clock import Clock

__all__ = [
    "Backoff",
    "CancelResult",
    "ClockJump",
    "Due",
    "Kept",
    "Run",
    "Scheduler",
    "SchedulerMetrics",
    "SchedulerReport",
    "TaskHandle",
    "TimerStatus",
    "Wait",
]

T = TypeVar("T")


class Scheduler:
    """Runs Python calls at their time: in worker processes, or in threads of this one.

    At most one version of an id is valid: scheduling an id again replaces what has not started. What is
    due is handed to the workers in order, as much as keeps them busy; what was handed over and has not
    started can still be cancelled, replaced and moved.

    A scheduler that nobody refers to any more goes on: `close` ends it, or leaving its `with` block, or the
    end of the program.

    Args:
        workers: processes; None: one per CPU that this process may use; 0: *pull mode*, without
            processes and threads: the caller loops on `next` and runs the work.
        executor: run jobs on this pool instead. It stays open, and its own order (highest priority
            first, with its `aging`) rules what is due.
        clock: what tells the time; `mpsched.testing.ManualClock` in tests.
        ready_order: what comes first among what is due: "run_at", the earliest, or "priority".
        aging: points of priority that a due job gains per second; only with "priority".
        groups: weights by name, such as `{"web": 3, "batch": 1}`: among what is due, groups take turns,
            each as often as its weight says.
        max_pending: versions that may wait; one more raises PendingLimitReached. That of a given executor
            counts its own submits: what is due is not refused by it, and what waits here is not in it.
        history: records that `history` keeps.
        threads: most threads for jobs with `where="thread"`.
        on_error: called with (run, error) for each failure, miss and timeout, instead of logging it.
        on_event: called with a ClockJump when the wall clock jumps or the machine was suspended.
        mp_context: how workers are started, and the three below: as for `WorkStealingExecutor`.
        initializer: called once in each worker.
        initargs: its arguments.
        preload: modules that the template of the workers imports.

    Raises:
        TypeError, ValueError: an argument is out of range, or two that exclude each other.
        OSError: no descriptor, memory or process is left.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        executor: WorkStealingExecutor | None = None,
        clock: Clock | None = None,
        ready_order: Literal["run_at", "priority"] = "run_at",
        aging: float = 0.0,
        groups: Mapping[str, float] | None = None,
        max_pending: int | None = None,
        history: int = 10_000,
        threads: int = 16,
        on_error: Callable[[Run, BaseException], object] | None = None,
        on_event: Callable[[ClockJump], object] | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        preload: tuple[str, ...] | list[str] = (),
    ) -> None:
        for name, number in (("history", history), ("threads", threads)):
            if instants.whole(name, number) < 1:
                raise ValueError(f"{name} must be at least 1, not {number!r}")
        for name, call in (("on_error", on_error), ("on_event", on_event)):
            if call is not None and not callable(call):
                raise TypeError(f"{name} must be callable or None, not {call!r}")
        heaps = {
            "ready_order": ready_order,
            "aging": aging,
            "groups": groups,
            "max_pending": max_pending,
        }
        own: WorkStealingExecutor | None = None
        if executor is not None:
            checks.executor(executor, WorkStealingExecutor, workers, ready_order, aging, groups)
        elif workers != 0:
            own = executor = WorkStealingExecutor(
                workers, mp_context, initializer, initargs, preload=preload
            )
        elif isinstance(workers, bool):
            raise TypeError(f"workers must be an int or None, not {workers!r}")
        self._on_error = on_error
        self._warned = False
        self._executor = executor  # a pool ends when its executor is dropped
        pool: Any = None if executor is None else executor._pool
        try:
            self._desk = desk = Desk(
                clock=SystemClock() if clock is None else clock,
                pool=pool,
                own=own is not None,
                heaps=heaps,
                history=history,
                threads=threads,
                report=Report(on_error),
            )
            desk.keeps = executor
            if pool is not None:
                Dispatcher(desk, on_event).start()
        except BaseException:
            if own is not None:
                own.shutdown()
            raise

    # --- in ------------------------------------------------------------------------------------------

    def schedule(
        self,
        task_id: Hashable,
        run_at: float | timedelta | datetime | None = None,
        priority: int = 0,
        fn: Callable[..., T] | None = None,
        *,
        after: float | timedelta | None = None,
        at: datetime | None = None,
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        if_exists: Literal["replace", "keep", "error"] = "replace",
        if_running: Literal["let_finish", "cancel", "wait", "error"] = "let_finish",
        where: Literal["worker", "thread"] = "worker",
        deadline: float | timedelta | datetime | None = None,
        group: str | None = None,
        timeout: float | None = None,
        grace: float = 0.0,
        retries: int = 0,
        retry_on: tuple[type[BaseException], ...] | None = None,
        backoff: Backoff | float | None = None,
        name: str | None = None,
        on_cancel: Literal["signal", "kill"] = "signal",
    ) -> TaskHandle[T]:
        """Have `fn(*args, **kwargs)` run at a time. Any thread.

        Arguments for a worker are pickled now, so every attempt sees what they are now.

        Args:
            task_id: any hashable object; an older version of it that has not started never does.
            run_at: a number on the scheduler's clock (`now()`), a timedelta from now, or an aware
                datetime. The past is due now.
            priority: higher is earlier among equals.
            fn: what is called.
            after: seconds from now, or a timedelta; instead of `run_at`.
            at: an aware datetime; instead of `run_at`. It follows the wall clock when that is set.
            args: its arguments.
            kwargs: its keyword arguments.
            if_exists: what becomes of a version that is not over: "replace" it, "keep" it and return
                its handle, or raise an "error".
            if_running: what replacing does when it runs: "let_finish", "cancel" (its signal is set),
                "wait" (the new one starts after its end) or raise an "error".
            where: "worker", a process, or "thread", in this process: for jobs that change its state.
            deadline: like `run_at`; if it has not started by then it fails with DeadlineMissed.
            group: one of the scheduler's groups.
            timeout: seconds a run may take; then its signal is set, and `grace` seconds later its
                worker ended.
            grace: see `timeout`.
            retries: further attempts after a failure that `retry_on` names.
            retry_on: exception classes; by default WorkerDied and TaskTimeout, which a thread knows not.
            backoff: how long a retry waits: seconds, or a Backoff (the default: 1 s, doubled each time
                up to 60 s, spread by 10 %).
            name: shown in messages.
            on_cancel: what cancelling does when it runs: set its signal, or "kill" its worker.

        Returns:
            The handle of this version, a future.

        Raises:
            SchedulerClosed: the scheduler was closed.
            EncodeError: it cannot be sent to a worker; `where="thread"` needs no sending.
            PendingLimitReached: see `max_pending`.
            TypeError, ValueError: an argument is out of range; the message says which and why.
        """
        desk = self._desk
        desk.enter()
        desk.refuse()
        if fn is None:
            raise TypeError(
                "schedule() needs a function: schedule(task_id, run_at, priority, fn), or fn=..."
            )
        if not callable(fn):
            raise TypeError(not_callable(fn))
        if desk.pool is not None:
            checks.function(fn)
        checks.choose("if_exists", if_exists)
        checks.choose("if_running", if_running)
        checks.hashable(task_id)
        args, kwargs = checks.arguments(fn, args, kwargs)
        when = self._when(run_at, after, at)
        if deadline is not None:
            last: float | None = self._deadline(deadline)
        else:
            last = None
        policy = jobs.policy(
            where=where,
            timeout=timeout,
            grace=grace,
            retries=retries,
            retry_on=retry_on,
            backoff=backoff,
            name=name,
            on_cancel=on_cancel,
        )
        if desk.pool is None:
            if timeout is not None or on_cancel != "signal":
                raise ValueError(
                    "with workers=0 the caller runs the work, so timeout= and on_cancel= are his to see to"
                )
            job = jobs.Job(fn, args, kwargs)
        elif where == "thread":
            job = jobs.Job(fn, args, kwargs)
        else:
            job = self._encoded(task_id, fn, args, kwargs or {})
        return desk.schedule(
            task_id,
            when,
            priority,
            job,
            policy,
            deadline=last,
            group=group,
            if_exists=if_exists,
            if_running=if_running,
        )

    def _encoded(
        self,
        task_id: Hashable,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> jobs.Job:
        pool = self._desk.pool
        assert pool is not None
        if pool.refusal is not None:
            raise pool.refused()
        try:
            return jobs.Job.encoded(pool, task_id, fn, args, kwargs)
        except ValueError:
            if pool.refusal is not None:  # it ended just now, and its memory with it
                raise pool.refused() from None
            raise

    def _when(
        self,
        run_at: float | timedelta | datetime | None,
        after: float | timedelta | None,
        at: datetime | None,
    ) -> instants.Instant:
        desk = self._desk
        clock = desk.clock
        now = clock.monotonic()
        when = instants.resolve(run_at, after, at, now=now, wall=clock.wall(), made=desk.made)
        if when.early and not self._warned:
            self._warned = True
            warnings.warn(
                f"run_at={run_at!r} is a time on the scheduler's clock, which shows {now:.3f} now, so it "
                "is long past and due now; for a time from now use after=",
                RuntimeWarning,
                stacklevel=3,
            )
        return when

    def _deadline(self, value: float | timedelta | datetime) -> float:
        clock = self._desk.clock
        now = clock.monotonic()
        try:
            found = instants.resolve(value, now=now, wall=clock.wall(), made=self._desk.made)
        except (TypeError, ValueError) as problem:
            raise type(problem)(f"deadline: {problem}") from None
        if found.early:
            raise ValueError(
                f"deadline={value!r} is a time on the scheduler's clock, which shows {now:.3f} now, so it is "
                "long past: for one from now use a timedelta, or now() plus seconds"
            )
        return found.run_at

    def reschedule(
        self,
        task_id: Hashable,
        run_at: float | timedelta | datetime | None = None,
        *,
        after: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
    ) -> bool:
        """Move a version that has not started to another time, or give it another priority.

        It stays the same version, with the same handle.

        Returns:
            Whether there was one; False if it runs, is over, or is unknown.

        Raises:
            SchedulerClosed: the scheduler was closed.
            TypeError, ValueError: an argument is out of range.
        """
        self._desk.enter()
        when = None
        if priority is None or run_at is not None or after is not None or at is not None:
            when = self._when(run_at, after, at)
        if priority is not None:
            instants.whole("priority", priority)
        return self._desk.reschedule(task_id, when, priority)

    def cancel(self, task_id: Hashable) -> CancelResult:
        """Keep a task from starting, or ask it to stop if it runs. Any thread.

        Returns:
            PREVENTED, the only true one: its function never starts, in no further attempt either.
            REQUESTED: it runs; `current_task().cancelled` is set there. TOO_LATE: it is over. UNKNOWN:
            never scheduled, or long over.
        """
        return self._desk.cancel_version(task_id)

    # --- pull mode -----------------------------------------------------------------------------------

    def next(self, timeout: float | None = 0) -> Due | Wait | None:
        """Take the first task that is due; from now on it runs, in the caller's hands.

        Args:
            timeout: seconds to wait for one; None: no limit. It is woken by whatever is scheduled.

        Returns:
            The task, to be given back by `complete` or `fail`; or Wait(seconds), a hint, while
            anything waits for its time; or None if nothing does.

        Raises:
            RuntimeError: the scheduler has workers, which take the work themselves.
            SchedulerClosed: it was closed, and nothing is left.
        """
        self._pulls("next")
        timeout = checks.seconds("timeout", timeout)
        return pull.take(self._desk, timeout)

    def complete(self, due: Due, result: Any = None) -> None:
        """Say that a task that `next` returned has come to its end, with a result.

        It goes to the handle of that version, also if a newer one has replaced it meanwhile.

        Raises:
            StaleVersion: this attempt was ended before.
        """
        self._pulls("complete")
        pull.end(self._desk, due, result, None)

    def fail(self, due: Due, error: BaseException) -> None:
        """Say that a task that `next` returned has failed; it may be retried.

        Raises:
            StaleVersion: this attempt was ended before.
        """
        self._pulls("fail")
        if not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception, not {error!r:.60}")
        pull.end(self._desk, due, None, error)

    def run_due(self) -> int:
        """Run what is due in the calling thread, one after the other; returns how many.

        For tests of timed code, and for loops of one's own.
        """
        self._pulls("run_due")
        count = 0
        due: Due | Wait | None = None
        try:
            while isinstance(due := self._take_if_open(), Due):
                count += 1
                self._run(due)
        except BaseException:
            if isinstance(due, Due):
                pull.put_back(self._desk, due)  # interrupted outside of the job
            raise
        return count

    def _run(self, due: Due) -> None:
        try:
            result = due.fn(*due.args, **(due.kwargs or {}))
        except BaseException as error:
            self.fail(due, error)
            if not isinstance(error, Exception):
                raise
        else:
            self.complete(due, result)

    def _take_if_open(self) -> Due | Wait | None:
        try:
            return pull.take(self._desk, 0)
        except SchedulerClosed:  # by a job, perhaps
            return None

    def _pulls(self, method: str) -> None:
        if self._desk.pool is not None:
            raise RuntimeError(
                f"{method}() is for Scheduler(workers=0), where the caller runs the work; this one has "
                "workers that take it themselves"
            )

    # --- looking -------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the seconds on the scheduler's monotonic clock, on which `run_at` numbers are."""
        return self._desk.clock.monotonic()

    @property
    def state(self) -> str:
        """One of "accepting", "failed", "closing", "draining" and "closed".

        "failed": its pool cannot go on (`executor.state` says so, too). Jobs for workers raise PoolFailed
        when they are scheduled, and those that were fail with it when they are due; jobs in threads go on.
        """
        return self._desk.state_now()

    def status(self, task_id: Hashable) -> TimerStatus | None:
        """Tell how the newest version of an id stands; None if it is unknown, or long over."""
        self._desk.enter()
        return self._desk.look(task_id)

    def history(self, task_id: Hashable | None = None) -> list[Run]:
        """Return one record per attempt that is over, oldest first; of one id, or of all."""
        return self._desk.history.runs(task_id)

    def metrics(self) -> SchedulerMetrics:
        """Return the state of the scheduler in numbers. Looks at everything that is scheduled."""
        desk = self._desk
        desk.enter()
        with desk.lock, desk.whole:
            now = desk.clock.monotonic()
            handles = list(desk.current.values())
            for handle in handles:
                desk.observe(handle)
            heaps = [desk.workers.metrics(), desk.inside.metrics()]
            counts = dict(desk.history.outcomes)
            lateness = tuple(desk.history.lateness)
            jumps = desk.jumps
            offset = desk.walls.offset
        ready = [
            now - due
            for handle in handles
            if handle.run is None
            and not (handle.begun or handle.waits or handle.over)
            and (due := handle.run_at if handle.at is None else handle.at - offset) <= now
        ]
        entries = sum(one.entries for one in heaps)
        return SchedulerMetrics(
            pending=sum(one.live for one in heaps),
            ready=len(ready),
            dispatched=sum(one.claimed for one in heaps),
            running=sum(one.running for one in heaps),
            oldest_ready=max(ready, default=0.0),
            entries=entries,
            stale_ratio=sum(one.stale for one in heaps) / entries if entries else 0.0,
            rebuilds=sum(one.rebuilds for one in heaps),
            peak_active=peak(desk.history.runs()),
            clock_jumps=jumps,
            outcomes=counts,
            lateness=lateness,
        )

    # --- the end -------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the scheduler is closed, `timeout` seconds at most; True if it is.

        For a program that does nothing else: Ctrl-C ends it, and so does a signal handler that calls
        `close`.
        """
        return self._desk.closed.wait(checks.seconds("timeout", timeout))

    def close(
        self,
        timeout: float | None = None,
        *,
        queued: Literal["run", "keep", "cancel"] = "run",
        kill_after: float | None = None,
        wait: bool = True,
    ) -> SchedulerReport:
        """Take nothing new, stop the timers, finish what is under way, end the workers.

        May be called again, and from any thread at the same time: what the first call says counts, and
        all get the same report. In a done-callback it does not wait.

        Args:
            timeout: seconds until what has not started is cancelled and what runs is asked to stop;
                None: no limit.
            queued: what becomes of what is due and not handed to a worker: "run" it; "cancel" it; "keep"
                it, not run and listed in the report. What lies in the future is kept with "keep",
                else cancelled.
            kill_after: seconds after that until workers of running jobs are ended; None: return and
                report what still runs.
            wait: return when all is over; else it ends by itself.

        Raises:
            RuntimeError: called, with `wait`, by a job in a thread of this scheduler.
        """
        checks.choose("queued", queued)
        timeout = checks.seconds("timeout", timeout)
        kill_after = checks.seconds("kill_after", kill_after)
        return closing.close(self._desk, timeout, queued, kill_after, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None and issubclass(exc_type, KeyboardInterrupt):
            self._end_at_once()
            return
        try:
            # In pull mode nobody would run what is due: the block that did is left.
            self.close(queued="run" if self._desk.pool is not None else "cancel")
        except KeyboardInterrupt:
            self._end_at_once()
            raise

    def _end_at_once(self) -> None:
        """Ctrl-C: nothing new starts, what runs is asked to stop and then ended."""
        self.close(0.0, queued="cancel", kill_after=lifecycle.GRACE_S)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Scheduler stays in the process that made it, and a job in a worker cannot use it: return "
            "what is to be scheduled, or run the job with where='thread'"
        )

    def __repr__(self) -> str:
        width = 0 if self._desk.pool is None else self._desk.pool.width
        return f"<mpsched.Scheduler workers={width} state={self.state}>"
