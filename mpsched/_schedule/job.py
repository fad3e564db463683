"""What a version runs, taken when it was scheduled. See README.md, "Jobs"."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

from mpsched._pool.calls import after_version, before_version
from mpsched._pool.options import DEFAULT, Options
from mpsched._pool.task import Task
from mpsched._schedule.handle import label
from mpsched._tasks import codec, origin, table as tab
from mpsched._timers.backoff import Backoff
from mpsched.errors import EncodeError, TaskTimeout, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mpsched._pool.core import Pool

Place = Literal["worker", "thread"]

_PLAIN: Final = codec.PLAIN_TYPES
_MARSHAL_VERSION: Final = 2  # as core.py
_SHORT: Final = 16384
_USUAL: Final = before_version(DEFAULT)


class Policy(NamedTuple):
    """How the attempts of a version are run.

    Attributes:
        options: what the pool is told: limit, grace, name, what a cancel does.
        retries: further attempts after a failure that `retry_on` names.
        retry_on: exception classes.
        backoff: how long each of them waits.
        where: "worker", or "thread" of this process.
    """

    options: Options
    retries: int
    retry_on: tuple[type[BaseException], ...]
    backoff: Backoff
    where: Place


_BACKOFF: Final = Backoff()
_RETRY_ON: Final = (WorkerDied, TaskTimeout)
USUAL: Final[dict[str, Policy]] = {
    where: Policy(DEFAULT, 0, _RETRY_ON, _BACKOFF, where) for where in ("worker", "thread")
}
"""The policy of most jobs, by place."""


def policy(
    *,
    where: Place,
    timeout: float | None,
    grace: float,
    retries: int,
    retry_on: tuple[type[BaseException], ...] | None,
    backoff: Backoff | float | None,
    name: str | None,
    on_cancel: Literal["signal", "kill"],
) -> Policy:
    """Check how a job is to be run, and say it in one object.

    Raises:
        TypeError, ValueError: one of them is out of range; the message names it.
    """
    usual = USUAL.get(where)
    if usual is None:
        raise ValueError(f'where must be "worker" or "thread", not {where!r}')
    changed = (timeout, retry_on, backoff, name) != (None, None, None, None) or retries or grace
    if not changed and on_cancel == "signal":
        return usual
    options = Options(
        timeout=timeout,
        grace=grace,
        retries=retries,
        retry_on=_RETRY_ON if retry_on is None else retry_on,
        name=name,
        on_cancel=on_cancel,
    ).checked()
    if where == "thread" and (timeout is not None or on_cancel == "kill"):
        raise ValueError(
            "a thread cannot be ended, so a job with where='thread' has neither timeout= nor "
            "on_cancel='kill': it can look at current_task().cancelled, or run in a worker"
        )
    if where == "thread" and retries and retry_on is None:
        raise ValueError(
            f"retries={retries!r} with where='thread' needs retry_on=: a thread has neither of what is "
            "retried by default, the death of a worker and a timeout"
        )
    if backoff is None:
        backoff = _BACKOFF
    elif not isinstance(backoff, Backoff):
        backoff = Backoff(first=backoff, factor=1.0, most=backoff)
    # The pool itself tries once: whether and when there is another attempt is decided here.
    return Policy(options._replace(retries=0), options.retries, options.retry_on, backoff, where)


@final
class Job:
    """A function and its arguments: as they are, or encoded for a worker.

    Attributes:
        fn, args, kwargs: the call; None in a job for a worker.
    """

    __slots__ = ("_holds", "_meta", "_rest", "args", "fn", "kwargs")

    def __init__(
        self,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self._meta = 0
        self._rest = b""  # of the frame, behind the version
        self._holds: Any = None

    @classmethod
    def encoded(
        cls,
        pool: Pool,
        task_id: Hashable,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
    ) -> Job:
        """Pickle a call now, so that every attempt sees the arguments of now. User code runs here.

        Raises:
            EncodeError: it cannot be sent to a worker; the message names what, and the remedy.
        """
        job = cls(None)
        who = origin.who(task_id, label)
        number = 0 if kwargs else pool.calls.known_number(fn)
        if number and _PLAIN.issuperset(map(type, args)):
            # As in Pool.submit: plain values at a fifth of the price.
            frame = marshal.dumps(args, _MARSHAL_VERSION)
            if len(frame) < _SHORT:
                job._meta = tab.KIND_PLAIN | number << tab.FUNCTION_SHIFT
                job._rest = after_version(who, frame)
                return job
        try:
            task = pool.calls.call(fn, args, kwargs or {}, DEFAULT)
        except EncodeError as problem:
            raise EncodeError(
                f"task {task_id!r:.60} cannot be sent to a worker process: {problem}; "
                "schedule(..., where='thread') runs it in a thread of this process, where it can use "
                "and change the program's own objects"
            ) from (problem.__cause__ or problem)
        job._meta, job._holds = task.meta, task.holds
        job._rest = after_version(who, task.frame)
        return job

    def task(self, pool: Pool, version: int, attempt: int, options: Options) -> Task:
        """Make the pool's task of one attempt; a new one each time, so that records never mix."""
        usual = options.timeout is None and not options.blocking
        head = _USUAL if usual else before_version(options)
        task = Task(
            pool.calls.next_id(),
            # TIMED: the worker notes when it starts.
            self._meta | tab.FLAG_TIMED | tab.FLAG_CONTEXT,
            head + version.to_bytes(8, "little") + self._rest,
            options,
        )
        if self._holds is not None:
            task.holds = self._holds
        if attempt != 1:
            task.attempt = attempt
        return task
