"""Children where no task runs: each is called at its spawn. See README.md, "Without a worker".

For a program without a pool, for `max_workers=0`, and for threads that a task has started. Results
and errors are those of a worker: the error is raised at the join, and what nobody joins is the
failure of the one that spawned it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, final

from mpsched._tasks.failure import with_siblings
from mpsched._worker import contract, depth, hot, long

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mpsched._worker.hot import Handle


class _Now(threading.local):
    """What runs in this thread.

    Attributes:
        unread: failed children, which nobody has joined yet, of the child that runs here; None if
            none does.
        level: how many children are nested in each other.
    """

    unread: list[Eager] | None = None
    level = 0


_now = _Now()


@final
class Eager(hot.Foreign):
    """A child that has run at its spawn.

    Attributes:
        value: what it returned.
        error: what it raised, or what it left open had raised; else None.
        text: its name, if its failure is to be logged when nobody reads it.
    """

    __slots__ = ("_told", "_traceback", "_unread", "error", "text", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._told = False
        self._unread: list[Eager] | None = None
        self.text = ""

    def failed(self, error: BaseException, unread: list[Eager] | None) -> None:
        """Keep an error for the join; `unread` is where the parent looks for it, if it has one."""
        self.error = error
        # Without our own frame, which refers to this object.
        self._traceback = error.__traceback__.tb_next if error.__traceback__ else None
        error.__traceback__ = self._traceback
        self._unread = unread
        if unread is not None:
            unread.append(self)

    @property
    def told(self) -> bool:
        """Whether its failure was raised at a join."""
        return self._told

    def outcome(self) -> Any:
        """Return the value or raise the error; the same each time."""
        if self.error is None:
            return self.value
        self._told = True
        return self._raise()

    def read(self) -> BaseException:
        """Return the error of a child that failed; from now on it counts as joined."""
        error, unread = self.error, self._unread
        assert error is not None
        self.text = ""
        self._unread = None
        if unread is not None and self in unread:
            unread.remove(self)
        return error

    def _raise(self) -> Any:
        # Each raise would make the traceback longer.
        raise self.read().with_traceback(self._traceback)

    def done(self) -> bool:
        """It has run at its spawn."""
        return True

    def cancel(self) -> None:
        """Too late: it has run at its spawn."""

    def __del__(self) -> None:
        if self.text:
            import logging

            logging.getLogger("mpsched").error(
                "%s failed and nobody joined it", self.text, exc_info=self.error
            )


def spawn(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
    """Call a child now; its outcome is for the join.

    Raises:
        KeyboardInterrupt: of the user at the keyboard; this is his thread.
    """
    child = Eager()
    before = _now.unread
    mine: list[Eager] = []
    _now.unread = mine
    _now.level = level = _now.level + 1
    # The limits are the main thread's; other threads have their own small stacks.
    deep = before is None and threading.current_thread() is threading.main_thread()
    if deep:
        depth.raise_limits()
    try:
        try:
            # One argument without a C frame in between.
            if len(args) == 1 and not kwargs:
                child.value = fn(args[0])
            else:
                child.value = fn(*args, **kwargs)
        finally:
            _now.unread, _now.level = before, level - 1
            if deep:
                depth.restore()
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        error = problem
        if level >= depth.MANY and type(problem) is RecursionError:
            # No room to say so? Then the RecursionError of that comes to the next level.
            error = depth.too_deep(problem, level)
        child.failed(error, before)
        with_siblings(error, [one.read() for one in tuple(mine)])
    else:
        if mine:
            errors = [one.read() for one in tuple(mine)]
            child.failed(with_siblings(errors[0], errors[1:]), before)
    if child.error is not None and before is None:
        fn, args, _ = long.call_of(fn, args[0], args[1:]) if args else (fn, args, kwargs)
        fn = args[0] if fn is contract.on_copy else fn
        child.text = f"child {getattr(fn, '__qualname__', type(fn).__qualname__)}"
    return hot.foreign(child)
