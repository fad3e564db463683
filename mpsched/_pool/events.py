"""What happens to a pool, told as it happens: records for callbacks, and lines for the log.

See README.md, "Events". Any thread notes; the pool's own thread logs and calls.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mpsched._pool.task import Task

_LOG = logging.getLogger("mpsched")
_LONGEST: Final = 300
"""Characters of a reason: it is one line."""

KINDS: Final[dict[str, tuple[int, str]]] = {
    "started": (logging.DEBUG, "{who} started"),
    "died": (logging.INFO, "{who} died: {why}"),
    "recycled": (logging.INFO, "{who} makes room for a new one: {why}"),
    "retried": (logging.INFO, "{what} runs again, attempt {attempt}: {why}"),
    "alone": (logging.INFO, "{what} waits to run with no other beside it: {why}"),
    "timed_out": (logging.INFO, "{what} was over its limit in attempt {attempt}: {why}"),
    "poison": (logging.INFO, "{what} has ended its worker in attempt {attempt}, its last: {why}"),
    "pinned": (logging.INFO, "{who} keeps children at home: {why}"),
    "uncompensated": (logging.WARNING, "{why}"),
    "start_failed": (logging.WARNING, "worker {worker} could not be started: {why}"),
    "template_died": (logging.WARNING, "the pool's template process ended: {why}"),
    "max_rss": (logging.WARNING, "{who}: {why}"),
    "failed": (logging.INFO, "the pool failed: {why}"),
}
"""Each kind of event with the level at which it is logged, and its line."""


class PoolEvent(NamedTuple):
    """One thing that happened to a pool; `str()` gives it as one line.

    Attributes:
        kind: "started", "died", "recycled" (a worker); "retried", "alone", "timed_out", "poison" (a
            task); "pinned", "uncompensated" (fork-join); "start_failed", "template_died", "max_rss",
            "failed" (the pool).
        time: seconds since the epoch.
        why: the reason, in one line; empty where the kind says all.
        worker: index of the worker, pid: its process; None where it is about none.
        task_id, name, attempt: of the task; None where it is about none. `name` is that of
            `options(name=...)`.
    """

    kind: str
    time: float
    why: str = ""
    worker: int | None = None
    pid: int | None = None
    task_id: int | None = None
    name: str | None = None
    attempt: int | None = None

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return KINDS[self.kind][1].format(
            who=f"worker {self.worker} (pid {self.pid})",
            what=f"task {self.task_id}{name}",
            worker=self.worker,
            attempt=self.attempt,
            why=self.why,
        )


@final
class Subscription:
    """One callback's tie to the events of a pool; `close()` ends it, as leaving a `with` block does.

    **Context.** Any thread, more than once. A call that has begun is not cut short.
    """

    def __init__(self, events: Events, callback: Callable[[PoolEvent], object]) -> None:
        self._events = events
        self.callback = callback
        self.closed = False

    def close(self) -> None:
        """Begin no further call of the callback."""
        self.closed = True
        self._events.unsubscribe(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@final
class Events:
    """The events of one pool.

    Args:
        wake: has `deliver` called soon. Any thread may be in it.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._subscriptions: list[Subscription] = []  # changed by single operations only
        self._noted: deque[PoolEvent] = deque()

    def subscribe(self, callback: Callable[[PoolEvent], object]) -> Subscription:
        """Call `callback(event)` from now on."""
        made = Subscription(self, callback)
        self._subscriptions.append(made)
        return made

    def unsubscribe(self, subscription: Subscription) -> None:
        """Call it no more."""
        with contextlib.suppress(ValueError):  # closed before
            self._subscriptions.remove(subscription)

    def wanted(self, kind: str) -> bool:
        """Whether anybody listens: only then is a reason worth being put into words."""
        return bool(self._subscriptions) or _LOG.isEnabledFor(KINDS[kind][0])

    def note(
        self,
        kind: str,
        why: str = "",
        *,
        worker: int | None = None,
        pid: int | None = None,
        task: Task | None = None,
    ) -> None:
        """Have an event told. Any thread, under any lock: nothing of the user's runs here."""
        if not self.wanted(kind):
            return
        line = " ".join(why.split())
        if len(line) > _LONGEST:
            line = line[:_LONGEST] + "..."
        about = (None, None, None) if task is None else (task.id, task.options.name, task.attempt)
        self._noted.append(PoolEvent(kind, time.time(), line, worker, pid, *about))
        self._wake()

    def deliver(self) -> None:
        """Log and call. The pool's own thread; a callback may come back in here."""
        noted = self._noted
        while noted:
            event = noted.popleft()
            level = KINDS[event.kind][0]
            if _LOG.isEnabledFor(level):
                _LOG.log(level, "%s", event)
            for one in list(self._subscriptions):
                try:
                    if not one.closed:
                        one.callback(event)
                except BaseException:  # SystemExit concerns nobody in the pool's own thread
                    _LOG.exception("a callback of events() raised for: %s", event)
