"""Items in, outcomes out: the only file of the command that touches the executor.

`Pool` runs items in workers, `Serial` in this process (`-j 0`). Both give outcomes in the order in
which the items end, in batches, with an empty batch several times a second so that their reader can
do what is due. See README.md, "The run".
"""

from __future__ import annotations

import functools
import queue
import threading
import time
import traceback
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mpsched import errors
from mpsched.cli import task
from mpsched.cli.problems import Broken
from mpsched.cli.rows import error_fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from mpsched.cli.args import Options
    from mpsched.cli.inputs import Inputs, Item
    from mpsched.cli.plan import Plan
    from mpsched.cli.reduce import Fold
    from mpsched.cli.task import Answer

__all__ = ["Engine", "Outcome", "Pool", "PoolBroken", "Serial", "Totals"]

WINDOW: Final = 4096  # items submitted and not ended
WINDOW_BYTES: Final = 64 << 20  # of their payloads
GRACE: Final = 0.7  # seconds for what runs when the run is given up; Ctrl-C has two in all
_TICK: Final = 0.1  # seconds
_PAUSE: Final = 0.002  # seconds between two batches
_BATCH: Final = 1024  # outcomes
_QUOTES: Final = '" \n'  # around the text of a remote traceback


class PoolBroken(Broken):
    """The pool failed: a worker could not be prepared, or could not be started again."""


@dataclass(slots=True)
class Outcome:
    """An item, or a fold, that has ended."""

    of: Item | Fold
    kind: str
    """As in `Answer`; error too if no worker could answer."""
    fragment: bytes
    seconds: float | None
    attempts: int
    printed: str | None = None
    answered: bool = True
    """Whether a worker has answered; False if it died or was ended."""


@dataclass(slots=True, frozen=True)
class Totals:
    """What the workers have done."""

    workers: int = 1
    steals: int = 0
    deaths: int = 0


class Engine(Protocol):
    """What the run needs of either. Main thread only, `wake` aside."""

    def outcomes(self, inputs: Inputs) -> Iterator[list[Outcome]]:
        """Run the items; return what has ended, until everything has.

        Raises:
            Broken: An input list cannot be read any more; the pool failed.
        """

    def fold(self, fold: Fold) -> None:
        """Make a fold; its outcome comes as that of an item does."""

    def drain(self) -> None:
        """Start no more; what runs goes on."""

    def abandon(self) -> list[Outcome]:
        """Start no more, end what runs soon; return what has ended meanwhile.

        When it returns nothing of the pool is left. `outcomes` must not be used any more.
        """

    def wake(self) -> None:
        """Let `outcomes` give a batch now, if an empty one. May be called by a signal handler."""

    def loads(self) -> list[float]:
        """Return for each worker the share of time that it was busy since the last call."""

    def totals(self) -> Totals:
        """Return what the workers have done."""

    def close(self) -> None:
        """End the workers. After all outcomes have been read that takes no time."""


class Serial:
    """Runs the items in the calling thread, one by one: `breakpoint()` works in FUNC."""

    def __init__(self, plan: Plan, options: Options, running: Callable[[], Any]) -> None:
        """Load FUNC.

        Args:
            plan: What to call and how.
            options: The command line.
            running: Gives a context in which FUNC runs: where Ctrl-C may interrupt it.

        Raises:
            PoolBroken: `--init` raised.
        """
        self._retries = options.retries if options.retry_errors else 0
        self._running = running
        self._folded: list[Outcome] = []
        self._stopped = False
        try:
            with running():
                task.prepare(plan, in_process=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            raise PoolBroken(f"the first call cannot be prepared:\n{text.rstrip()}") from None

    def outcomes(self, inputs: Inputs) -> Iterator[list[Outcome]]:
        """Run the items; return each as it has ended."""
        for item in inputs:
            if self._stopped:
                return
            yield [self._outcome(item)]
        yield []
        while self._folded:
            done, self._folded = self._folded, []
            yield done

    def fold(self, fold: Fold) -> None:
        """Make a fold, now."""
        with self._running():
            answer = task.fold(fold.parts, fold.last)
        self._folded.append(Outcome(fold, answer.kind, answer.fragment, answer.seconds, 1))

    def drain(self) -> None:
        """Start no more."""
        self._stopped = True

    def abandon(self) -> list[Outcome]:
        """Start no more; nothing runs beside the caller."""
        self._stopped = True
        return []

    def wake(self) -> None:
        """Do nothing: between two items there is no waiting."""

    def loads(self) -> list[float]:
        """Return nothing: the one worker is always busy."""
        return []

    def totals(self) -> Totals:
        """Return one worker."""
        return Totals()

    def close(self) -> None:
        """Forget FUNC."""
        task.forget()

    def _outcome(self, item: Item) -> Outcome:
        import bdb

        attempts = 0
        while True:
            attempts += 1
            try:
                with self._running():
                    answer = task.run_item(item.payload, item.target)
            except bdb.BdbQuit:  # the debugger's `quit`
                raise KeyboardInterrupt from None
            if answer.kind != "error" or attempts > self._retries:
                return _answered(item, answer, attempts)


class Pool:
    """Runs the items in workers.

    A thread reads the inputs and submits while the window has room. Done callbacks put what has
    ended into one queue, which the main thread reads.
    """

    def __init__(
        self, plan: Plan, options: Options, make: Callable[..., Any] | None = None
    ) -> None:
        """Make the pool.

        Args:
            plan: What to call and how; every worker gets it once.
            options: The command line.
            make: Makes the executor; for tests.

        Raises:
            Broken: The system has no room for the pool.
        """
        if make is None:
            from mpsched.executor import WorkStealingExecutor

            make = WorkStealingExecutor
        try:
            self._executor = make(
                options.workers,
                initializer=task.prepare,
                initargs=(plan,),
                preload=("mpsched.cli.task",),
            )
        except OSError as error:
            raise Broken(f"the pool cannot be made: {error}") from None
        retry_on: tuple[type[BaseException], ...] = (errors.WorkerDied, errors.TaskTimeout)
        if options.retry_errors:
            retry_on += (task.TryAgain,)
        self._items = self._executor.options(
            timeout=options.timeout, retries=options.retries, retry_on=retry_on
        )
        self._folds = self._executor.options(retries=options.retries)
        self._done: queue.SimpleQueue[tuple[Item | Fold, Future[Answer]] | _Fed | None]
        self._done = queue.SimpleQueue()
        self._room = threading.Condition()
        self._open = 0  # items and folds that have not ended, or whose outcome was not read yet
        self._open_bytes = 0
        self._waiting = False  # the feeder is
        self._stopping = False
        self._taken = 0.0  # when the last batch was
        self._inputs: Inputs | None = None
        self._feeder: threading.Thread | None = None
        self._totals: Totals | None = None
        self._looked = time.monotonic()
        self._busy: list[float] = []

    def outcomes(self, inputs: Inputs) -> Iterator[list[Outcome]]:
        """Run the items; return what has ended."""
        self._inputs = inputs
        self._feeder = threading.Thread(
            target=self._feed, args=(inputs,), name="mpsched-feeder", daemon=True
        )
        self._feeder.start()
        fed = False
        while True:
            outcomes, ended = self._take(_TICK)
            fed = fed or ended
            yield outcomes
            if fed and not self._open:
                return

    def fold(self, fold: Fold) -> None:
        """Submit a fold: beside the window, for it makes room in memory. Nothing while stopping."""
        if self._stopping:  # without its inputs there is no value
            return
        with self._room:
            self._open += 1
        future = self._folds.submit(task.fold, fold.parts, fold.last)
        future.add_done_callback(functools.partial(self._ended, fold))

    def drain(self) -> None:
        """Start no more; what runs goes on."""
        self._stop_feeding()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def abandon(self) -> list[Outcome]:
        """Start no more, end what runs within `GRACE`; return what has ended meanwhile."""
        self._stop_feeding()
        self._totals = self.totals()
        self._executor.close(timeout=GRACE, cancel_pending=True, kill_after=0.0)
        outcomes: list[Outcome] = []
        while not self._done.empty():
            outcomes += self._take(0.0)[0]
        return outcomes

    def wake(self) -> None:
        """Let `outcomes` give a batch now."""
        self._done.put(None)

    def loads(self) -> list[float]:
        """Return for each worker the share of time that it was busy since the last call."""
        now = time.monotonic()
        busy = [worker.busy_seconds for worker in self._executor.stats().workers]
        before = self._busy if len(self._busy) == len(busy) else [0.0] * len(busy)
        seconds = max(now - self._looked, 1e-9)
        self._looked, self._busy = now, busy
        return [
            min(1.0, max(0.0, (end - start) / seconds))
            for start, end in zip(before, busy, strict=True)
        ]

    def totals(self) -> Totals:
        """Return what the workers have done; the counters themselves go with the pool."""
        if self._totals is not None:
            return self._totals
        stats = self._executor.stats()
        return Totals(len(stats.workers), stats.steals, stats.deaths)

    def close(self) -> None:
        """End the workers, at once if something still runs."""
        self._stop_feeding()
        if self._open:
            self._executor.close(timeout=0.0, cancel_pending=True, kill_after=0.0)
        else:
            self._executor.shutdown()

    def _feed(self, inputs: Inputs) -> None:
        """Submit all items; in its own thread."""
        problem: BaseException | None = None
        try:
            for item in inputs:
                if not self._wait_for_room(item):
                    break
                future = self._items.submit(task.run_item, item.payload, item.target)
                future.add_done_callback(functools.partial(self._ended, item))
        except errors.SchedulerClosed as error:
            problem = None if self._stopping else error
        except BaseException as error:  # the main thread raises it
            problem = error
        self._done.put(_Fed(problem))

    def _wait_for_room(self, item: Item) -> bool:
        """Wait until the window has room, and take it; False if the run is stopping."""
        with self._room:
            if self._open >= WINDOW or self._open_bytes + item.size > WINDOW_BYTES:
                # Until it is half empty: woken for each single place, this thread and the main
                # one would take turns at the interpreter lock for each item.
                self._waiting = True
                self._room.wait_for(self._has_room)
                self._waiting = False
            if self._stopping:
                return False
            self._open += 1
            self._open_bytes += item.size
            return True

    def _has_room(self) -> bool:
        """Whether the window is half empty, or nobody needs it any more. `_room` is held."""
        half_empty = self._open <= WINDOW // 2 and self._open_bytes <= WINDOW_BYTES // 2
        return self._stopping or half_empty or not self._open

    def _ended(self, of: Item | Fold, future: Future[Answer]) -> None:
        """Take a future that is done; in whatever thread the pool runs callbacks."""
        self._done.put((of, future))

    def _take(self, seconds: float) -> tuple[list[Outcome], bool]:
        """Wait for something to have ended; return it, and whether the feeder has ended."""
        outcomes: list[Outcome] = []
        fed = False
        if seconds and (early := self._taken + _PAUSE - time.monotonic()) > 0:
            time.sleep(early)  # so that short calls come in batches: each batch is a write
        try:
            entry = self._done.get(timeout=seconds) if seconds else self._done.get_nowait()
            while True:
                if isinstance(entry, _Fed):
                    fed = True
                    if entry.problem is not None:
                        raise entry.problem
                elif entry is not None:
                    outcomes += self._outcome(*entry)
                if len(outcomes) >= _BATCH:
                    break
                entry = self._done.get_nowait()
        except queue.Empty:
            pass
        if outcomes:
            self._taken = time.monotonic()
        return outcomes, fed

    def _outcome(self, of: Item | Fold, future: Future[Answer]) -> list[Outcome]:
        """Return what became of an item: nothing if it never started."""
        with self._room:
            self._open -= 1
            self._open_bytes -= getattr(of, "size", 0)
            if self._waiting and self._has_room():
                self._room.notify()
        try:
            error = future.exception()
        except CancelledError:
            return []
        attempts: int = getattr(future, "attempts", 1)
        if error is None:
            return [_answered(of, future.result(), attempts)]
        if isinstance(error, errors.PoolFailed | errors.SchedulerClosed):
            if self._stopping:  # said already, or the stop's own doing: the item never ran
                return []
            raise PoolBroken(_with_cause(error)) from None
        seconds: float | None = getattr(future, "seconds", None)
        if seconds is None and isinstance(error, errors.TaskTimeout):
            seconds = error.seconds
        cause = "" if error.__cause__ is None else str(error.__cause__).strip(_QUOTES)
        fragment = error_fragment(type(error).__qualname__, str(error), cause, _why(error))
        return [Outcome(of, "error", fragment, seconds, attempts, answered=False)]

    def _stop_feeding(self) -> None:
        with self._room:
            self._stopping = True
            self._room.notify_all()
        if self._inputs is not None:
            self._inputs.stop.set()
        if self._feeder is not None:
            # It may sit in a read of a dead network file system; then it ends with the process.
            self._feeder.join(timeout=0.5)


@dataclass(slots=True)
class _Fed:
    """The feeder has ended; the problem, if there was one."""

    problem: BaseException | None


def _answered(of: Item | Fold, answer: Answer, attempts: int) -> Outcome:
    return Outcome(of, answer.kind, answer.fragment, answer.seconds, attempts, answer.printed)


def _why(error: BaseException) -> str:
    """Return the `why` of an item that no worker could answer for; see README.md, "Rows"."""
    if isinstance(error, errors.TaskTimeout):
        return "timeout"
    if isinstance(error, errors.WorkerDied):
        return "memory" if error.cause == "memory" else "crash"
    if isinstance(error, MemoryError):
        return "memory"
    return "load"


def _with_cause(error: BaseException) -> str:
    """Return an error's message, with the remote traceback that its last cause is."""
    last = error
    while last.__cause__ is not None:
        last = last.__cause__
    return str(error) if last is error else f"{error}\n{str(last).strip(_QUOTES)}"
