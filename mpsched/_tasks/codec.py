"""Objects to bytes and back. See README.md, "Codec".

Plain pickle first. What it cannot do, or what another process could not import, goes by value. Every
pickle made here is loaded by plain `pickle.loads` as well.
"""

from __future__ import annotations

import copyreg
import pickle
import re
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from mpsched.errors import DecodeError, EncodeError, ResultEncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpsched._tasks.byvalue import Bundle

    Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer

MAIN_MARK: Final = b"\x8c\x08__main__"
"""How "__main__" stands in a pickle: opcode, length, text."""

PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes})
"""What is certain to arrive: exactly these types, no subclass."""

LARGE_FUNCTION_BYTES: Final = 1 << 20
"""A callable whose pickle is larger is warned about."""

# A pickle of protocol 5 names a global with STACK_GLOBAL, right after its name: fresh (MEMOIZE), or
# again (BINGET, LONG_BINGET). Such bytes may also be data; then a result is checked in vain. The
# opcode stands first, because a single byte is searched for ten times as fast.
_STACK_GLOBAL: Final = b"\x93"
_NAMES_GLOBALS = re.compile(rb"\x93(?:(?<=\x94.)|(?<=h..)|(?<=j.....))", re.DOTALL)

_PLAIN_FAILURES = (pickle.PicklingError, AttributeError, TypeError)


def needs_by_value(data: bytes) -> bool:
    """Whether a plain pickle refers to `__main__`, which no other process has."""
    return MAIN_MARK in data


def encode(
    obj: Any, *, threshold: int, label: str = "args"
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle an object, by value where that is needed.

    Context:
        Any thread, no lock held: the user's `__reduce__` runs here.

    Args:
        obj: What to pickle.
        threshold: Buffers with at least so many bytes stay out of band.
        label: What `obj` is called in an error; "call" for a pair (args, kwargs).

    Returns:
        The pickle, and its out-of-band buffers in order.

    Raises:
        EncodeError: It cannot be pickled; the text says which part of it, `__cause__` why.
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        return encode_raw(obj, threshold)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a `__reduce__` may even call sys.exit
        problem, cause = _explain(EncodeError, obj, error, label)
        raise problem from cause


def encode_held(
    obj: Any, threshold: int, *, label: str = "call"
) -> tuple[bytes, list[pickle.PickleBuffer], list[Any]]:
    """As `encode`, and return what must be kept until the receiver has loaded it (shared arrays).

    Raises:
        EncodeError, KeyboardInterrupt: As `encode`.
    """
    references = sys.modules.get("mpsched._shm.references")
    if references is None:  # nobody has made anything that travels by reference
        return *encode(obj, threshold=threshold, label=label), []
    with references.collect() as held:
        data, buffers = encode(obj, threshold=threshold, label=label)
    return data, buffers, held


def encode_result(
    obj: Any, threshold: int, *, label: str = "result"
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle a result so that the parent can be expected to unpickle it.

    What is more than plain data is unpickled here once, where an exception, an exit or a crash
    costs only this task.

    Context:
        Worker.

    Raises:
        ResultEncodeError: It cannot be pickled, or not be unpickled again; `__cause__` says why.
    """
    if type(obj) in PLAIN_TYPES:
        return pickle.dumps(obj, 5), []
    try:
        data, buffers = encode_raw(obj, threshold, going_home=True)
    except BaseException as error:  # a `__reduce__` may even call sys.exit
        problem, cause = _explain(ResultEncodeError, obj, error, label)
        raise problem from cause
    if (_STACK_GLOBAL in data or copyreg._extension_registry) and names_globals(data):  # type: ignore[attr-defined]  # noqa: SLF001
        _check(data, buffers, label)
    return data, buffers


def names_globals(data: bytes) -> bool:
    """Whether code of somebody else may run when a pickle is loaded.

    False for nothing but builtin containers of plain values; seldom True for data that look alike.
    """
    # Most pickles do not even have the byte, and the code of expressions is cold.
    if _STACK_GLOBAL in data and _NAMES_GLOBALS.search(data):
        return True
    # Extension codes stand for globals as well; hardly any program has some.
    return bool(copyreg._extension_registry)  # type: ignore[attr-defined]  # noqa: SLF001


def decode(data: Buffer, buffers: Iterable[Buffer] = ()) -> Any:
    """Unpickle what was encoded.

    Raises:
        DecodeError: It cannot be unpickled; `__cause__` says why.
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        return pickle.loads(data, buffers=buffers)
    except (DecodeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise DecodeError(undecodable(error)) from error


def decode_result(data: Buffer, buffers: Iterable[Buffer] = ()) -> tuple[Any, BaseException | None]:
    """Unpickle a result: (value, None), or (None, the `DecodeError` that tells why not).

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        return decode(data, buffers), None
    except DecodeError as error:
        return None, error


def dumps_callable(fn: Callable[..., Any]) -> bytes:
    """Pickle a callable that has no number (`functions.importable_name`).

    A pickle over 1 MiB is warned about, once for each function.

    Context:
        Parent or worker, any thread, no lock held.

    Raises:
        EncodeError: It cannot be pickled.
        KeyboardInterrupt: Ctrl-C.
    """
    bundle = None
    try:
        data = None
        if type(fn) is not types.FunctionType:
            data = _plain_or_none(fn)
        if data is None:
            bundle = _bundle(going_home=False)
            root = bundle.dump(fn)
            bundle.complete()
            data = bundle.pack_callable(root)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a `__reduce__` may even call sys.exit
        problem, cause = _explain(EncodeError, fn, error, _name_of(fn))
        raise problem from cause
    if len(data) > LARGE_FUNCTION_BYTES:
        from mpsched._tasks import blame

        blame.warn_large(fn, len(data), bundle)
    return data


def dumps_callable_held(fn: Callable[..., Any]) -> tuple[bytes, list[Any]]:
    """As `dumps_callable`, and return what must be kept until nobody loads it (shared arrays)."""
    references = sys.modules.get("mpsched._shm.references")
    if references is None:
        return dumps_callable(fn), []
    with references.collect() as held:
        data = dumps_callable(fn)
    return data, held


def loads_callable(data: Buffer) -> Callable[..., Any]:
    """Load what `dumps_callable` made; a stateless function is loaded once while it is in use.

    Context:
        Worker, before each use: it also brings the globals to what they were when it was pickled.

    Raises:
        DecodeError: It cannot be unpickled.
    """
    fn: Callable[..., Any] = decode(data)
    return fn


def loads_so_far() -> int:
    """Return how many by-value pickles this process has loaded: each may change what others see."""
    from mpsched._tasks import loading

    return loading.loads


def enter_worker() -> None:
    """Say that this process is a worker. Once, before it decodes anything."""
    from mpsched._tasks import namespaces

    namespaces.enter_worker()


# --- how --------------------------------------------------------------------------------------------


def encode_raw(
    obj: Any, threshold: int, going_home: bool = False
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """As `encode`, but raise what pickling raises. `going_home`: from a worker to the parent."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(obj, 5, buffer_callback=buffers.append)
        if buffers and not all(buffer.raw().nbytes >= threshold for buffer in buffers):
            data, buffers = _with_small_in_band(obj, threshold)
        if MAIN_MARK not in data:
            return data, buffers
    except _PLAIN_FAILURES:
        pass  # more can be pickled by value; if not this, the second error is the better one
    buffers = []
    bundle = _bundle(going_home=going_home)
    root = bundle.dump(obj, _keeper(buffers, threshold))
    bundle.complete()
    return bundle.pack_value(root, buffers), buffers


def _with_small_in_band(obj: Any, threshold: int) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(obj, 5, buffer_callback=_keeper(buffers, threshold))
    return data, buffers


def _keeper(
    buffers: list[pickle.PickleBuffer], threshold: int
) -> Callable[[pickle.PickleBuffer], bool]:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < threshold:
            return True  # in band
        buffers.append(buffer)
        return False

    return keep


def _bundle(*, going_home: bool) -> Bundle:
    from mpsched._tasks.byvalue import Bundle

    return Bundle(going_home=going_home)


def _plain_or_none(obj: Any) -> bytes | None:
    try:
        data = pickle.dumps(obj, 5)
    except _PLAIN_FAILURES:
        return None
    return None if MAIN_MARK in data else data


def _check(data: bytes, buffers: Sequence[pickle.PickleBuffer], label: str) -> None:
    try:
        try:
            # Read-only: what unpickling writes must not get into the bytes that are sent.
            pickle.loads(data, buffers=[buffer.raw().toreadonly() for buffer in buffers])
        except Exception:
            if not buffers:
                raise
            pickle.loads(data, buffers=[bytearray(buffer.raw()) for buffer in buffers])
    except BaseException as error:
        raise ResultEncodeError(
            f"the {label} was pickled but cannot be unpickled: {_brief(error)}"
        ) from error


def _explain(
    kind: type[EncodeError | ResultEncodeError], obj: Any, error: BaseException, label: str
) -> tuple[EncodeError | ResultEncodeError, BaseException]:
    from mpsched._tasks import blame

    text, cause = blame.explain(obj, error, label)
    return kind(text), cause


def undecodable(error: BaseException) -> str:
    """Return the end of a sentence that tells why something could not be unpickled."""
    text = f"cannot be unpickled: {_brief(error)}"
    if isinstance(error, ImportError):
        text += (
            "; a worker has the sys.path, directory and environment that the parent had when the "
            "pool was made"
        )
    return text


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its `__str__` is the user's
        return type(error).__name__


def _name_of(fn: Any) -> str:
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else type(fn).__qualname__
