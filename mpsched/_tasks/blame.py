"""Which part of an object cannot be pickled, or is too large. See README.md, "Blame".

Imported when something has gone wrong. Whatever it calls of the user's may raise anything.
"""

from __future__ import annotations

import functools
import pickle
import sys
import time
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks.byvalue import Bundle, PartFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 200
_SECONDS: Final = 0.5
"""Most attempts at pickling parts, and the time after which no more is made."""

_FEW: Final = 8
_PACKAGE: Final = str(Path(__file__).parents[1])
_WARNED_MOST: Final = 1000

_warned: dict[tuple[Any, ...], None] = {}


def explain(obj: object, error: BaseException, label: str) -> tuple[str, BaseException]:
    """Return what to say about an object that cannot be pickled, and the error that is the cause.

    Raises:
        KeyboardInterrupt: Ctrl-C while looking.
    """
    where = ""
    if isinstance(error, PartFailed):
        where = f" that {label} refers to"
        obj, label = error.value, error.what
        error = error.__cause__ or error
    cause: BaseException = error
    if isinstance(error.__cause__, RecursionError):  # cloudpickle wraps it
        cause = error.__cause__
    if isinstance(cause, RecursionError):
        return f"{label}{where} is nested too deeply to be pickled", cause
    if isinstance(cause, MemoryError):
        return f"there is no memory to pickle {label}{where}", cause
    path, part, cause = _Search().narrow(label, obj, cause)
    kind = type(part)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return (
        f"{path}{where} cannot be pickled, it is a {name}: {_text(cause)}. Send plain data instead, "
        "and make in the task, or in an initializer, what cannot be sent"
    ), cause


@final
class _Search:
    """Looks for the smallest part that cannot be pickled, for a bounded time."""

    def __init__(self) -> None:
        self._tries = _TRIES
        self._deadline = time.monotonic() + _SECONDS

    def narrow(
        self, path: str, obj: object, error: BaseException
    ) -> tuple[str, object, BaseException]:
        """Return (path, part, error) of the part."""
        while True:
            found = None
            if isinstance(obj, (list, tuple)) and len(obj) > _FEW:
                found = self._in_long(path, obj)
            else:
                for part_path, part in parts_of(obj, path):
                    problem = self._problem(part)
                    if problem is not None:
                        found = part_path, part, problem
                        break
            if found is None:
                return path, obj, error
            path, obj, error = found

    def _in_long(
        self, path: str, items: list[Any] | tuple[Any, ...]
    ) -> tuple[str, object, BaseException] | None:
        start, stop = 0, len(items)
        while stop - start > 1:
            middle = (start + stop) // 2
            if self._problem(list(items[start:middle])) is not None:
                stop = middle
            elif self._tries > 0:
                start = middle
            else:
                return None
        problem = self._problem(items[start])
        return None if problem is None else (f"{path}[{start}]", items[start], problem)

    def _problem(self, obj: object) -> BaseException | None:
        self._tries -= 1
        if self._tries < 0 or time.monotonic() > self._deadline:
            self._tries = 0
            return None
        try:
            size_of(obj)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a `__reduce__` may even call sys.exit
            return error.__cause__ or error if isinstance(error, PartFailed) else error
        return None


def size_of(obj: object) -> int:
    """Return the bytes of an object's pickle, with what it refers to; raises what pickling raises."""
    bundle = Bundle()
    root = bundle.dump(obj)
    bundle.complete()
    return len(root) + sum(len(v) + len(s or b"") for _, v, s in bundle.globals.values())


def parts_of(obj: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, part) of what an object is pickled with."""
    if path == "call" and isinstance(obj, tuple) and len(obj) == 2:
        yield "args", obj[0]
        for key, value in obj[1].items():
            yield str(key), value
    elif isinstance(obj, (list, tuple)):
        for index, value in enumerate(obj):
            yield f"{path}[{index}]", value
    elif isinstance(obj, dict):
        for key, value in list(obj.items()):
            yield f"{path}[{_text_of(key)}]", value
            yield f"key {_text_of(key)} of {path}", key
    elif isinstance(obj, (set, frozenset)):
        for value in obj:
            yield f"an element of {path}", value
    elif isinstance(obj, functools.partial):
        yield f"{path}.func", obj.func
        yield from parts_of(obj.args, f"{path}.args")
        yield from parts_of(obj.keywords, f"{path}.keywords")
    elif isinstance(obj, types.MethodType):
        yield f"{path}.__self__", obj.__self__
    elif isinstance(obj, types.FunctionType):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            try:
                yield f"variable {name!r} of {path}", cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        for index, value in enumerate(obj.__defaults__ or ()):
            yield f"default {index} of {path}", value
    elif not isinstance(obj, (type, types.ModuleType)) and _goes_by_attributes(type(obj)):
        state = getattr(obj, "__dict__", None)
        if isinstance(state, dict):
            for key, value in list(state.items()):
                yield f"{path}.{key}", value


def _goes_by_attributes(kind: type) -> bool:
    """Whether the objects of a class are pickled by their attributes: nothing of its own decides."""
    base = BaseException if issubclass(kind, BaseException) else object
    return all(
        getattr(kind, name) is getattr(base, name)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def warn_large(fn: Any, size: int, bundle: Bundle | None) -> None:
    """Warn once that a callable takes so much with it at each submit, and name the most of it."""
    code = getattr(fn, "__code__", None)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    key = (getattr(fn, "__module__", None), name, getattr(code, "co_firstlineno", None))
    if key in _warned or len(_warned) >= _WARNED_MOST:
        return
    _warned[key] = None
    sizes: list[tuple[int, str, Any]] = []
    if bundle is not None:
        values = {space.id: space.globals for space in bundle.spaces}
        for (ident, global_name), (_, value, state) in bundle.globals.items():
            kind = type(values[ident].get(global_name)).__qualname__
            sizes.append((len(value) + len(state or b""), f"global {global_name!r}", kind))
    for path, part in parts_of(fn, name):
        sizes.append((_size_or_zero(part), path, type(part).__qualname__))
    most = ""
    if sizes:
        part_size, path, kind = max(sizes, key=lambda entry: entry[0])
        most = f": its {path} ({kind}) takes {_megabytes(part_size)}"
    warnings.warn(
        f"function {name!r} takes {_megabytes(size)} with it each time it is submitted{most}. Pass "
        "it as an argument, send it once with share(), or load it in an initializer; what the "
        "function writes to it is lost, unless it is a mpsched.shared_array",
        RuntimeWarning,
        stacklevel=_level_of_user(),
    )


def _size_or_zero(obj: object) -> int:
    try:
        return size_of(obj)
    except (pickle.PicklingError, TypeError, AttributeError):
        return 0  # it is pickled otherwise as part of the whole


def _level_of_user() -> int:
    """Return the `stacklevel` of the first frame outside this package, seen from the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".rstrip(".")
    except Exception:  # its `__str__` is the user's
        return type(error).__name__


def _text_of(key: object) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # its `__repr__` is the user's
        return f"a {type(key).__qualname__}"
