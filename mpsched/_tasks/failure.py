"""Exceptions of tasks on their way to the parent. See README.md, "Failures"."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import reprlib
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks import codec
from mpsched.errors import DecodeError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from traceback import TracebackException
    from types import TracebackType

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_TEXT_MOST: Final = 50_000
"""Characters of a traceback text that are kept, half of them from each end."""

_FRAMES_MOST: Final = 300
_FRAMES_SHOWN: Final = 50
"""Of a traceback with more frames than that, so many are shown from each end: each takes a millisecond."""

_NEVER_OUT_OF_BAND: Final = 1 << 62


@final
class RemoteTraceback(Exception):
    """The traceback of a task as the worker saw it; the `__cause__` of the task's exception.

    Its text is all there is: frames do not leave their process.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def encode_exception(exc: BaseException, *, task_id: object, note: str) -> bytes:
    """Pickle an exception with its traceback as text. Never raises.

    It is unpickled here once: one that does not survive that is replaced by a `RemoteError`.

    Context:
        Worker, any thread.

    Args:
        exc: What a task raised: any `BaseException`, with its causes, contexts and groups as text.
        task_id: Whose it is; for the text of a stand-in.
        note: Added to its notes at the other end: the task, its index, its call.
    """
    try:
        text = remote_traceback(exc)
        body, args = _body(exc)
    except BaseException as error:  # the user's methods may raise anything
        text = f"{_class_name(exc)} (its traceback cannot be shown: {_class_name(error)})\n"
        body, args = None, False
    names = (_class_name(exc), short_text(exc, 10_000), _notes(exc))
    return pickle.dumps((body, args, text, note, str(task_id), *names), 5)


def decode_exception(data: bytes | bytearray | memoryview) -> BaseException:
    """Return the exception, a fresh object at each call; its `__cause__` is a `RemoteTraceback`.

    Context:
        Parent, the thread that asks for the result.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        return _decode(data)
    except (
        Exception
    ) as damaged:  # what is in it are plain types, and what is theirs is caught below
        error = DecodeError(
            f"an error came from a worker, and cannot be read ({_class_name(damaged)}: "
            f"{short_text(damaged)})"
        )
        error.__cause__ = damaged
        return error


def _decode(data: bytes | bytearray | memoryview) -> BaseException:
    body, with_args, text, note, task_id, class_name, message, notes = pickle.loads(data)
    why = "it cannot be pickled and unpickled"
    exc: BaseException | None = None
    if body is not None:
        try:
            exc, args = pickle.loads(body)
            if with_args and exc is not None:
                for leaf, own in zip(_leaves(exc), args, strict=True):
                    leaf.args = own
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # unpickling runs the user's code
            why = f"it cannot be unpickled here ({_class_name(error)}: {short_text(error)})"
            exc = None
    if exc is None:
        exc = RemoteError(
            f"task {task_id} raised {class_name}: {message or '(no message)'}\n"
            f"(a stand-in for that exception: {why})",
            class_name=class_name,
            message=message,
        )
        for one in notes:
            exc.add_note(one)
    exc.__cause__ = RemoteTraceback(text)
    if note:
        # The user's own `__notes__` may be no list; the exception itself matters more.
        with contextlib.suppress(TypeError):
            exc.add_note(note)
    return exc


def _body(exc: BaseException) -> tuple[bytes | None, bool]:
    """Return the pickle of (exception, args), None if it does not survive; and if args are needed.

    A class whose `__init__` makes the message from something else gets that message as its argument
    when it is unpickled, and wraps it again; then its `args` are put right afterwards.
    """
    try:
        whole = exc, [one.args for one in _leaves(exc)]
        data, _ = codec.encode_raw(whole, _NEVER_OUT_OF_BAND, going_home=True)
        copy, args = pickle.loads(data)
        if type(copy) is not type(exc):
            return None, False
        return data, _differ([one.args for one in _leaves(copy)], args)
    except BaseException:  # pickling runs the user's code
        return None, False


def _leaves(exc: BaseException) -> list[BaseException]:
    """Return the exception, or those in a group, in order."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for one in exc.exceptions for leaf in _leaves(one)]
    return [exc]


def _differ(some: list[Any], others: list[Any]) -> bool:
    try:
        return bool(some != others)
    except Exception:  # arrays and the like cannot be compared so
        return False


def remote_traceback(exc: BaseException) -> str:
    """Return the formatted traceback of an exception, without the frames of this package above it.

    Raises:
        BaseException: What the user's `__str__` and the like raise.
    """
    from traceback import TracebackException

    shown = TracebackException(
        type(exc), exc, _of_user(exc.__traceback__), compact=True, lookup_lines=False
    )
    _shorten(shown)
    text = "".join(shown.format())
    if len(text) > _TEXT_MOST:
        half = _TEXT_MOST // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
    return text


def _shorten(shown: TracebackException) -> None:
    """Leave out what is in the middle of long tracebacks: the end of a stack has tens of thousands."""
    from traceback import FrameSummary

    todo, seen = [shown], {id(shown)}
    while todo:
        one = todo.pop()
        stack = one.stack
        if len(stack) > _FRAMES_MOST:
            left_out = len(stack) - 2 * _FRAMES_SHOWN
            gap = FrameSummary(
                f"<{left_out:,} frames left out>", 0, "...", lookup_line=False, line=""
            )
            stack[_FRAMES_SHOWN:-_FRAMES_SHOWN] = [gap]
        for other in (one.__cause__, one.__context__, *(one.exceptions or ())):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)


def _of_user(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame on that is not this package's; all, if none is."""
    found = traceback
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found or traceback


def _class_name(exc: BaseException) -> str:
    kind = type(exc)
    name: str = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _notes(exc: BaseException) -> list[str]:
    try:
        return [one for one in getattr(exc, "__notes__", ()) if type(one) is str]
    except BaseException:  # the user's attribute
        return []


def short_text(exc: BaseException, limit: int = 200) -> str:
    """Return `str(exc)`, at most `limit` characters of it. Never raises."""
    try:
        text = str(exc)
    except BaseException as error:  # the user's method
        return f"<its text cannot be had: {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def with_siblings(first: BaseException, others: Iterable[BaseException]) -> BaseException:
    """Hang further failures on the one that is raised for all: `first.siblings`, and a note each.

    Only the first of several failures can be raised at a join. May be called again, with more.
    Never raises; returns `first`.
    """
    known: tuple[BaseException, ...] = getattr(first, "siblings", ())
    more = [one for one in others if one is not first and not any(one is old for old in known)]
    if not more:
        return first
    # The user's class may have no room for attributes, and its `__notes__` may be no list.
    with contextlib.suppress(Exception):
        first.siblings = (*known, *more)  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        for one in more:
            first.add_note(f"also failed: {_class_name(one)}: {short_text(one)}")
    return first


class _Repr(reprlib.Repr):
    """Short representations that look at little of a large object."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 30
        self.maxlong = 30

    def repr_ndarray(self, x: Any, level: int) -> str:  # called by name
        return f"<array {x.dtype} {x.shape}>"

    def repr_DataFrame(self, x: Any, level: int) -> str:  # noqa: N802 - called by name
        return f"<DataFrame {x.shape}>"


def short_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], limit: int = 120) -> str:
    """Return a call as text, such as `f(1, 'abc', key=[1, 2, ...])`.

    At most `limit` characters; looks at no more arguments than fit. Never raises.
    """
    text = f"{name}("
    separator = ""
    try:
        named = itertools.chain(((None, value) for value in args), kwargs.items())
        for key, value in named:
            if len(text) > limit:
                break
            text += separator + ("" if key is None else f"{key}=") + _short(value)
            separator = ", "
    except BaseException:  # a sequence of the user's
        text += separator + "..."
    return text + ")" if len(text) < limit else text[: limit - 2] + "…)"


def _short(value: Any) -> str:
    try:
        return _Repr().repr(value)
    except BaseException as error:  # the user's `__repr__`
        return f"<{type(value).__name__}: no repr, {type(error).__name__}>"
