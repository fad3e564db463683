"""What `schedule` returns: the future of one version. See README.md, "Handles"."""

from __future__ import annotations

from concurrent.futures._base import CANCELLED_AND_NOTIFIED
from typing import TYPE_CHECKING, Any, TypeVar, final

from mpsched._pool.future import Future

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    from mpsched._schedule.attempt import Attempt, ThreadRun
    from mpsched._schedule.desk import Desk
    from mpsched._schedule.job import Job, Policy
    from mpsched._schedule.verdict import Verdict
    from mpsched._timers.due import Due
    from mpsched._timers.heap import VersionedTimerHeap

T = TypeVar("T")


@final
class TaskHandle(Future[T]):
    """The outcome of one version of a scheduled task. Made by `schedule` only.

    A `concurrent.futures.Future`, which can be awaited too. If the version never starts, because it was
    cancelled, replaced or its scheduler closed, it is cancelled: `result()` raises CancelledError.

    Attributes:
        task_id: the id it was scheduled under; id: how messages name it.
        version: which version of that id.
        cancel_requested: whether it was asked to stop while it ran.
        attempt: number of the attempt that waits, runs or was the last, from 1.
    """

    # What the desk keeps here, under its lock. Read where an instance has not been given its own.
    attempt = 1
    cancel_requested = False
    begun = False  # an attempt runs
    recalling = 0  # the thread that is taking it back from the pool
    over = False  # final for the desk; its future is, or is about to be
    waits = False  # paused until older versions have ended (`if_running="wait"`)
    run: Attempt | ThreadRun | None = None  # it is claimed, or runs
    due: Due | None = None  # what the heap gave out for `run`
    future = None  # what a task of the pool has; the base class clears it
    version: int = 0
    run_at = 0.0
    at: float | None = None
    deadline: float | None = None
    why = ""
    taken_at = 0.0  # when the caller took it (pull mode)
    ending: tuple[Any, BaseException | None] | None = None  # how the caller's run ended (pull mode)
    failure: BaseException | None = None  # of the attempt before, while it waits for the next
    verdict: Verdict | None = None  # its end, once that is on record
    prevented = False  # it never started, and never will

    def __init__(
        self, desk: Desk, task_id: Hashable, heap: VersionedTimerHeap, job: Job, policy: Policy
    ) -> None:
        # Not super().__init__(): a handle is its own task, and its desk stands for the pool.
        self._pool = desk  # type: ignore[assignment]
        self.task_id = task_id
        self.id = label(task_id)
        self.heap = heap
        self.job: Job | None = job
        self.policy = policy

    @property
    def _task(self) -> Any:  # type: ignore[override]
        return self

    @property
    def attempts(self) -> int:
        """Attempts that were started."""
        return self.attempt if self.done() or self.begun else self.attempt - 1

    def describe(self) -> str:
        """Return "task 'report', version 3" for messages."""
        name = self.policy.options.name
        return f"task {self.id}, version {self.version}" + (f" {name!r}" if name else "")

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        return f"<mpsched.TaskHandle of {self.describe()}: {self._state.lower()}>"


def label(task_id: Hashable) -> str:
    """Return a short repr of an id. It is the user's code, so it is made once, and may fail."""
    try:
        text = repr(task_id)
    except Exception:
        return f"<{type(task_id).__qualname__} whose repr() raises>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def settle(
    handle: TaskHandle[Any],
    value: Any,
    error: BaseException | None,
    *,
    raw: Callable[[], tuple[Any, BaseException | None]] | None = None,
    cancelled: bool = False,
) -> None:
    """Make a handle final and run its callbacks; no lock is held.

    `raw` gives the result when somebody asks for it.
    """
    if cancelled:
        handle._settle(None, None, state=CANCELLED_AND_NOTIFIED)
        return
    # Whoever ended it reports the failure: that nobody read it is no news.
    handle._dropped = True
    if error is not None:
        handle._settle(None, lambda: (None, error), failed=True)
    else:
        handle._settle(value, raw)
