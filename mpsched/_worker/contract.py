"""Did a child change its arguments? And the debug modes. See README.md, "Fork-join", *Values*."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any, Final, final

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

STATE: Final = 1 << 16
"""Number of what the function brings along: the object of a method, a partial's arguments, a closure."""

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

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
        if isinstance(obj, _BY_IDENTITY) and obj is not _Identity:
            return _Identity, (id(obj),)
        return NotImplemented


class _Identity:
    """Stands in a fingerprint for a class or function. Only this class is named there itself."""


def is_bare(fn: Any) -> bool:
    """Whether a callable is a plain function, which brings nothing along."""
    return (
        type(fn) is types.FunctionType
        and fn.__closure__ is None
        and fn.__defaults__ is None
        and fn.__kwdefaults__ is None
    )


def prints(fn: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Prints:
    """Return fingerprints of the function's own state, of each argument, and of all keywords.

    None: what cannot change, or cannot be looked at. Runs the user's `__reduce__`, no lock is held.
    """
    state = _state_of(fn)
    return (
        None if state is None else _print(state),
        *map(_print, args),
        _print(kwargs) if kwargs else None,
    )


def _state_of(fn: Any) -> tuple[Any, ...] | None:
    """Return what a callable brings along: its object, bound arguments, variables that it closes over."""
    if isinstance(fn, types.MethodType):
        return (fn.__self__,)
    if isinstance(fn, functools.partial):
        return (fn.args, fn.keywords, _state_of(fn.func))
    if isinstance(fn, types.FunctionType):
        found: list[Any] = []
        _add_state_of_function(fn, found, set())
        return tuple(found) or None
    if isinstance(fn, _BY_IDENTITY):
        return None
    return (fn,)


def _add_state_of_function(fn: types.FunctionType, found: list[Any], seen: set[int]) -> None:
    """Add what a function closes over, and what the functions among that do."""
    seen.add(id(fn))
    found += (one for one in (fn.__defaults__, fn.__kwdefaults__) if one)
    for cell in fn.__closure__ or ():
        # An empty cell is a variable that was not assigned yet.
        with contextlib.suppress(ValueError):
            content = cell.cell_contents
            if not isinstance(content, types.FunctionType):
                found.append(content)
            elif id(content) not in seen:
                # A decorator's wrapper has the function that it wraps, a recursive one itself.
                _add_state_of_function(content, found, seen)


def _print(value: Any) -> bytes | None:
    kind = type(value)
    if kind in codec.PLAIN_TYPES:
        return None
    arrays = sys.modules.get("mpsched._shm.ndarray")
    if arrays is not None and kind is arrays.SharedArray and value.block is not None:
        # It travels by reference: no value in it is lost. Which memory it is, takes a tenth of a pickle.
        place = value.__array_interface__["data"]
        return repr((place, value.shape, value.strides, hash(value.dtype))).encode()
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    try:
        _Pickler(stream, 5, buffer_callback=buffers.append).dump(value)
    except Exception:  # what cannot be pickled again, nobody can compare
        return None
    data = stream.getbuffer()
    if not buffers and len(data) <= _SMALL:
        return bytes(data)
    import hashlib  # 3 ms of a worker's start, for large arguments only

    digest = hashlib.blake2b(data, digest_size=32)
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.digest()


def changed(before: Prints, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> int | None:
    """Return the number of the first argument that is not what it was, or KEYWORDS or STATE, or None."""
    if not any(before):
        return None
    for number, (old, new) in enumerate(zip(before, prints(fn, args, kwargs), strict=True)):
        if old is not None and new is not None and old != new:
            if not number:
                return STATE
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
    if number == STATE:
        bound = isinstance(fn, types.MethodType)
        what = "the object that it is a method of" if bound else "what it was made with"
        return name, f"{name} changed {what}"
    if number == KEYWORDS:
        return name, f"{name} changed an argument that was given by keyword"
    # Of a decorated function, the names that it was written with.
    code = getattr(getattr(fn, "__wrapped__", fn), "__code__", None)
    # A method's first parameter is its object.
    place = number if isinstance(fn, types.MethodType) else number - 1
    if code is not None and place < code.co_argcount:
        return name, f"{name} changed its argument `{code.co_varnames[place]}`"
    return name, f"{name} changed its argument number {number}"


_REMEDY: Final = "the change is lost: return it, or use `mpsched.shared_array`"


def warn(fn: Any, x: Any, rest: tuple[Any, ...], number: int) -> None:
    """Warn that a child changed an argument elsewhere; once for each function in this process."""
    function, args, _ = long.call_of(fn, x, rest)
    name, sentence = _sentence(function, number, args)
    key = f"{getattr(function, '__module__', '')}.{name}"
    if key in _warned:
        return
    _warned.add(key)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{sentence}; {_REMEDY}", RuntimeWarning, stacklevel=level)


# --- MPSCHED_DEBUG=copy -------------------------------------------------------------------------------


def prepare(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call that takes the place of a child's: with a copy of its arguments, made now.

    What cannot be pickled stays as it is: such a child runs with its own arguments always.
    """
    # A function that brings nothing along is the same one in each copy.
    stateful = _state_of(fn) is not None
    call = (fn if stateful else None, args, kwargs)
    try:
        data, buffers, held = codec.encode_held(call, 1 << 62, label="call")
    except EncodeError:
        return fn, args, kwargs
    return on_copy, (fn, data, [bytes(buffer.raw()) for buffer in buffers], _Held(held)), {}


class _Held:
    """Keeps shared arrays that a copy refers to, where it was made; elsewhere there is nothing in it."""

    def __init__(self, held: object = None) -> None:
        self._held = held

    def __reduce__(self) -> tuple[type[_Held], tuple[()]]:
        return _Held, ()


def on_copy(fn: Callable[..., Any], data: bytes, buffers: list[bytes], held: _Held) -> Any:
    """Call a copied call: a copy of `fn` if it brings something along, and copies of its arguments.

    Raises:
        ArgumentChanged: It changed one of them.
    """
    copy = Copy(fn, data, buffers, held)
    value = copy.fn(*copy.args, **copy.kwargs)
    copy.check()
    return value


@final
class Copy:
    """A copied call, opened: what is called, and a look at it afterwards.

    Attributes:
        fn: the function; `args`, `kwargs`: its arguments.
    """

    __slots__ = ("_before", "args", "fn", "kwargs")

    def __init__(
        self, fn: Callable[..., Any], data: bytes, buffers: list[bytes], _held: _Held
    ) -> None:
        """Open what `prepare` made: the arguments of `on_copy`."""
        copied, self.args, self.kwargs = codec.decode(
            data, [bytearray(buffer) for buffer in buffers]
        )
        self.fn = copied or fn
        self._before = prints(self.fn, self.args, self.kwargs)

    def check(self) -> None:
        """Look at what the call has done to it.

        Raises:
            ArgumentChanged: It changed an argument, or what the function brings along.
        """
        number = changed(self._before, self.fn, self.args, self.kwargs)
        if number is not None:
            raise ArgumentChanged(f"{_sentence(self.fn, number, self.args)[1]}; {_REMEDY}")
