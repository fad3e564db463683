"""Did a child change its arguments? And the debug modes. See README.md, "Fork-join", *Values*."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import types
import warnings
from typing import TYPE_CHECKING, Any, Final

from mpsched._tasks import codec
from mpsched._worker import long
from mpsched.errors import ArgumentChanged, EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Prints = tuple[bytes | None, ...]

_SMALL: Final = 4096
"""Pickles of so many bytes are kept, longer ones as a digest."""

_BY_IDENTITY: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)

_VARIABLE: Final = "MPSCHED_DEBUG"

KEYWORDS: Final = 0
"""Number of an argument that was given by keyword; the first positional one is 1."""

_warned: set[str] = set()


def modes() -> frozenset[str]:
    """Return the debug modes that the environment asks for.

    Raises:
        ValueError: It asks for one that there is not.
    """
    text = os.environ.get(_VARIABLE, "")
    wanted = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = wanted - {"copy", "steal"}
    if unknown:
        raise ValueError(
            f"{_VARIABLE}={text!r}: there is no mode {min(unknown)!r}; the modes are 'copy' "
            "and 'steal'"
        )
    return wanted


# --- fingerprints -------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Classes and functions by identity: what they are is not what an argument is."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _BY_IDENTITY):
            return int, (id(obj),)
        return NotImplemented


def prints(args: Sequence[Any], kwargs: Any) -> Prints:
    """Return a fingerprint of each positional argument, and one of all keywords; None: unknown, or fixed.

    Runs the user's `__reduce__`, no lock is held.
    """
    return (*map(_print, args), _print(kwargs) if kwargs else None)


def _print(value: Any) -> bytes | None:
    if type(value) in codec.PLAIN_TYPES:
        return None
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    try:
        _Pickler(stream, 5, buffer_callback=buffers.append).dump(value)
    except Exception:  # what cannot be pickled again, nobody can compare
        return None
    data = stream.getbuffer()
    if not buffers and len(data) <= _SMALL:
        return bytes(data)
    digest = hashlib.blake2b(data, digest_size=32)
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.digest()


def changed(before: Prints, args: Sequence[Any], kwargs: Any) -> int | None:
    """Return the number of the first argument that is not what it was; None if all are."""
    if not any(before):
        return None
    for number, (old, new) in enumerate(zip(before, prints(args, kwargs), strict=True), 1):
        if old is not None and new is not None and old != new:
            return number if number <= len(args) else KEYWORDS
    return None


# --- telling ------------------------------------------------------------------------------------------


def _sentence(fn: Callable[..., Any], number: int, args: Sequence[Any]) -> tuple[str, str]:
    """Return (name of the function, what it did)."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    if (
        getattr(fn, "__module__", "") == "mpsched.parallel"
    ):  # a loop, which is named after its function
        return name, f"{name} changed an item"
    code = getattr(fn, "__code__", None)
    which = "an argument that was given by keyword"
    if number != KEYWORDS:
        which = f"its argument number {number}"
        if code is not None and number <= code.co_argcount:
            which = f"its argument `{code.co_varnames[number - 1]}`"
    return name, f"{name} changed {which}"


_REMEDY: Final = "the change is lost: return it, or use `mpsched.shared_array`"


def warn(fn: Any, x: Any, rest: tuple[Any, ...], number: int) -> None:
    """Warn that a child changed an argument elsewhere; once for each function."""
    function, args, _ = long.call_of(fn, x, rest)
    name, sentence = _sentence(function, number, args)
    key = f"{getattr(function, '__module__', '')}.{name}"
    if key in _warned:
        return
    _warned.add(key)
    warnings.warn(f"{sentence}; {_REMEDY}", RuntimeWarning, stacklevel=2)


# --- MPSCHED_DEBUG=copy -------------------------------------------------------------------------------


def prepare(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call that takes the place of a child's: with a copy of its arguments, made now.

    What cannot be pickled stays as it is: such a child runs with its own arguments always.
    """
    try:
        data, buffers = codec.encode((args, kwargs), threshold=1 << 62, label="call")
    except EncodeError:
        return fn, args, kwargs
    return on_copy, (fn, data, [bytes(buffer.raw()) for buffer in buffers]), {}


def on_copy(fn: Callable[..., Any], data: bytes, buffers: list[bytes]) -> Any:
    """Call `fn` with its copied arguments.

    Raises:
        ArgumentChanged: It changed one of them.
    """
    args, kwargs = codec.decode(data, [bytearray(buffer) for buffer in buffers])
    before = prints(args, kwargs)
    value = fn(*args, **kwargs)
    number = changed(before, args, kwargs)
    if number is not None:
        raise ArgumentChanged(f"{_sentence(fn, number, args)[1]}; {_REMEDY}")
    return value
