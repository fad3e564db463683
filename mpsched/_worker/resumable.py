"""Tasks that suspend instead of nesting. See README.md, "Resumable"."""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from mpsched._worker import away, contract, hot, long, streams
from mpsched._worker.away import INLINE, Away
from mpsched._worker.context import Stream, current_task
from mpsched._worker.hot import NOTHING, Handle
from mpsched.errors import ArgumentChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

P = ParamSpec("P")
T = TypeVar("T")

_MARK: Final = "_mpsched_resumable"

_CO_GENERATOR: Final = 0x20
"""The flag of a code object that `inspect.CO_GENERATOR` is."""


def resumable(fn: Callable[P, Generator[Handle[Any], Any, T]]) -> Callable[P, T]:
    """Make a generator function a task whose joins suspend it, so that depth costs heap, not stack.

    In it `value = yield handle` stands for `value = handle.join()`. A child that is resumable as well is
    not called within its parent, but while its parent is suspended. So a million may be nested.

    Raises:
        TypeError: `fn` is no generator function.
    """
    # Not by `inspect`, which would cost each worker some milliseconds at its first spawn.
    if not getattr(getattr(fn, "__code__", None), "co_flags", 0) & _CO_GENERATOR:
        raise TypeError(
            f"@mpsched.resumable is for a generator function, one with `yield handle` in it; "
            f"{getattr(fn, '__qualname__', fn)!r} has no yield"
        )

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        value: T = _drive(fn(*args, **kwargs))
        return value

    setattr(run, _MARK, fn)
    return run


class _Suspended:
    """A generator that waits for the one above it, or the one that runs.

    Attributes:
        record: of the child that it is; None for the outermost one.
        below: the newest entry of the stack when it began.
        copy: its call, if that is one with copied arguments, which are looked at when it has ended.
        stream: its random stream, in a root whose children have streams of their own.
    """

    __slots__ = ("below", "copy", "generator", "record", "stream")

    def __init__(
        self,
        generator: Generator[Any, Any, Any],
        record: Away | None,
        below: object,
        copy: contract.Copy | None = None,
        stream: Stream | None = None,
    ) -> None:
        self.generator = generator
        self.record = record
        self.below = below
        self.copy = copy
        self.stream = stream


def _drive(first: Generator[Any, Any, Any]) -> Any:
    """Run a generator to its end, with all that it waits for; return its value or raise its error."""
    # The outermost one's children are finished by whoever has called it, as any task's are.
    nest = [_Suspended(first, None, None)]
    task = streams.seeded(current_task())
    if task is not None:
        nest[0].stream = task._stream
    value: Any = None
    problem: BaseException | None = None
    while True:
        top = nest[-1]
        if task is not None and top.stream is not None:
            task._stream = top.stream
        try:
            if problem is None:
                wanted = top.generator.send(value)
            else:
                error, problem = problem, None
                try:
                    wanted = top.generator.throw(error)
                finally:
                    del error
        except StopIteration as end:
            nest.pop()
            if top.record is None:
                return end.value
            value, problem = _ended(top, end.value, None)
            continue
        except BaseException as raised:
            nest.pop()
            if top.record is None:
                raise
            value, problem = _ended(top, None, raised)
            continue
        value = None
        entered = None
        try:
            entered = _enter(wanted)
            if entered is None:
                value = wanted.join()
        except BaseException as raised:
            problem = raised
        if entered is not None:
            nest.append(entered)


def _ended(
    top: _Suspended, value: Any, problem: BaseException | None
) -> tuple[Any, BaseException | None]:
    """Finish what a nested generator has left open; return (value, error) for the one below it."""
    record = top.record
    assert record is not None
    record.told = True
    if problem is None and top.copy is not None:
        try:
            top.copy.check()
        except ArgumentChanged as error:
            problem = error
    if problem is None:
        failures = away.leftover(top.below)
        if not failures:
            record.succeed(value)
            return value, None
        problem = away.first_of(failures)
    else:
        problem = away.ended_by(problem, top.below)
    record.fail(problem)
    record.close()
    return None, problem


def _enter(wanted: Any) -> _Suspended | None:
    """Return what runs next if `wanted` is an unstarted resumable child; None if it is to be joined."""
    if not isinstance(wanted, Handle):
        raise TypeError(
            f"a resumable function yields handles of its children (from mpsched.spawn), not {wanted!r}"
        )
    with away.fork_lock:
        plain = wanted._fn
        record = plain if type(plain) is Away else None
        if record is not None and record.kind not in {away.PUBLISHING, away.PINNED}:
            return None
        fn, x, rest = (
            (plain, wanted._x, wanted._rest)
            if record is None
            else (record.fn, record.x, record.rest)
        )
        function, args, kwargs = long.call_of(fn, x, rest)
        stream = Stream(x[0]) if fn is streams.in_stream else None
        copied = function is contract.on_copy
        made = getattr(args[0] if copied else function, _MARK, None)
        if made is None:
            return None
        if record is None:
            record = wanted._fn = Away(INLINE, fn, x, rest)
            wanted._x, wanted._rest = NOTHING, ()
            if hot.stack[-1] is wanted:
                hot.pop()
        else:
            record.kind = INLINE
    below = away.newest()
    try:
        copy = None
        if copied:  # its arguments are unpickled, so no lock is held
            copy = contract.Copy(*args)
            function, args, kwargs = copy.fn, copy.args, copy.kwargs
        if isinstance(function, types.MethodType):
            args = (function.__self__, *args)
        made = getattr(function, _MARK)
        return _Suspended(made(*args, **kwargs), record, below, copy, stream)
    except BaseException as problem:  # arguments that do not fit
        record.told = True
        record.fail(problem)
        record.close()
        raise
