"""Spawn and join of a private child, the path that nearly every child takes.

See README.md, "Fork-join". Half a microsecond for both, so every line here was measured, and all that is
rare lives in `long` and `away`. Nothing in this module takes a lock.
"""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

from collections import deque
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@final
class Floor:
    """What lies at the left end of the stack: never a child.

    Attributes:
        serial: number of the last child that left the stack there.
    """

    __slots__ = ("serial",)

    def __init__(self, serial: int) -> None:
        self.serial = serial


NOTHING: Final = Floor(-1)
"""Stands for an argument that was not given."""

stack: Final[deque[Any]] = deque([Floor(0)])
"""Private children, newest right; handles that are not private any more; at the left end a Floor."""

push: Final = stack.append
pop: Final = stack.pop

careful: bool = True
"""Whether each spawn goes the long way: no root forks here, or something has to be asked each time."""

forking: bool = False
"""Whether the root that runs has spawned: then its end has to look for what it left open."""

want: memoryview = memoryview(bytearray(1))
"""Not 0: somebody may want work of this worker. In a worker a byte of shared memory."""


def _nobody_asks() -> None:
    """Stand for `answer` where nobody else could take a child."""


answer: Callable[[], None] = _nobody_asks
"""Publish children for those who want some; `publish` puts its own here in a worker."""


def _run_at_once(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
    from mpsched._worker import eager

    return eager.spawn(fn, args, kwargs)


outside: Callable[[Any, tuple[Any, ...], dict[str, Any]], Handle[Any]] = _run_at_once
"""What a spawn does where no task runs, or not in this thread: by default it runs the child at once."""


def in_task() -> bool:
    """Whether the caller is the main thread of a worker, in a task."""
    return long.in_task()


def may_fork() -> bool:
    """Whether the caller is in a task; from here on thieves may ask this worker, by `want`, for work.

    For a loop that reads `want` and spawns only if it is set.
    """
    return long.may_fork()


def _done(value: Any) -> Any:
    """Stand in the function slot of a child that has finished; its value is in the argument slot."""
    return value


def _raise(problem: BaseException) -> NoReturn:
    """Stand in the function slot of a child that has failed, until it has a record."""
    raise problem


class Handle(Generic[T]):
    """A child that was spawned. Only the task that spawned it may join it, in the thread that did.

    It cannot be pickled: a handle means something to the task that has it, and to nobody else.
    """

    # `_fn` is the child's function while it is plain, else `_done` or an `Away`. Whichever it is, calling it
    # with `_x` and `_rest` gives the outcome.
    __slots__ = ("_fn", "_rest", "_x")
    _fn: Any
    _x: Any
    _rest: tuple[Any, ...]

    def join(self) -> T:
        """Wait for the child and return its value; meanwhile this worker runs it, or its kin.

        Asking again gives the same value, or raises the same exception.

        Raises:
            BaseException: What the child raised, or the first of its own children, in the order in
                which they were spawned; `siblings` of it has the others.
            WorkerDied: The worker that ran it is gone.
            RecursionTooDeep: Joins are nested deeper than the stack goes.
        """
        # Calls of `stack.pop` and of `fn` are quicker on 3.11 than those of `pop` and of `self._fn`.
        try:
            top = stack.pop()
            if top is not self:
                push(top)
                return self._join()
            below = stack[-1]
        except IndexError:  # the helper has the floor in its hand
            return self._join()
        fn = self._fn
        try:
            value: T = fn(self._x, *self._rest) if self._rest else fn(self._x)
        except BaseException as problem:
            if type(self._fn) is not away.Away:  # else an outcome that was asked for again
                # First of all: there may be no room on the stack for the call that follows.
                self._fn, self._x, self._rest = _raise, problem, ()
                self._failed(problem, below)
            raise
        self._fn = _done
        self._x = value
        self._rest = ()
        try:
            if stack[-1] is below:
                return value
        except IndexError:  # as above; `leftover` looks with the lock
            pass
        self._leftover(below)
        return value

    def join_in_any_thread(self) -> T:
        """Do what `join` does; takes its place once the program has other threads than the task's own."""
        if long.is_main():
            mine: T = _join(self)
            return mine
        value: T = away.join_in_thread(self)
        return value

    def result(self) -> T:
        """Return what `join` does."""
        return self.join()

    def done(self) -> bool:
        """Whether the child has finished, so that `join` does not have to run or await anything."""
        return away.is_done(self)

    def _join(self) -> T:
        value: T = away.join(self)
        return value

    def _failed(self, problem: BaseException, below: object) -> None:
        away.failed(self, problem, below)

    def _leftover(self, below: object) -> None:
        away.finish(self, below)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a handle cannot leave its worker, so it can be neither an argument of a child nor a "
            "result; join it, and pass its value"
        )

    def __repr__(self) -> str:
        from mpsched._worker import childrepr

        return childrepr.describe(self)


_code: Final = Handle.join.__code__
_join: Final = FunctionType(_code, globals())


def expect_threads() -> None:
    """From now on joins look which thread they are in, as careful spawns do.

    Their code is exchanged, not the method: `Thread(target=handle.join)` has taken that already.
    """
    Handle.join.__code__ = Handle.join_in_any_thread.__code__


def forget_threads() -> None:
    """From now on joins need not look any more."""
    Handle.join.__code__ = _code


class Foreign:
    """What a `ForeignHandle` stands for: a child that is not on this process's stack. To be derived.

    Attributes:
        told: whether its failure was raised at a join.
    """

    __slots__ = ()

    @property
    def told(self) -> bool:
        """Whether its failure was raised at a join; a scope does not raise it again then."""
        return False

    def outcome(self) -> Any:
        """Return the value, or raise the error; waits for it."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether `outcome` would not wait."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Prevent its start, or ask it to stop."""
        raise NotImplementedError


@final
class ForeignHandle(Handle[T]):
    """The handle of a `Foreign`. Any thread may join it: it never touches the stack."""

    __slots__ = ()

    def join(self) -> T:
        """As `Handle.join`."""
        value: T = self._fn.outcome()
        return value

    def done(self) -> bool:
        """As `Handle.done`."""
        return bool(self._fn.done())

    def __repr__(self) -> str:
        return f"<Handle of a child, {'done' if self.done() else 'not done'}>"


def foreign(what: Foreign) -> Handle[Any]:
    """Return the handle of `what`."""
    h: ForeignHandle[Any] = ForeignHandle()
    h._fn, h._x, h._rest = what, NOTHING, ()
    return h


def spawn(fn: Callable[..., T], x: Any = NOTHING, /, *rest: Any, **kwargs: Any) -> Handle[T]:
    """Make a call a child of the running task; it runs at the latest when it is joined.

    From here until the join its arguments belong to the child. If somebody else runs it, it gets a
    copy of them.
    """
    h: Handle[T] = Handle()
    h._fn = fn
    h._x = x
    h._rest = rest
    if kwargs or x is NOTHING or careful:
        return long.spawn(h, kwargs)
    push(h)
    if want[0]:
        answer()
    return h


from mpsched._worker import away, long  # noqa: E402 - they are made of what stands above
