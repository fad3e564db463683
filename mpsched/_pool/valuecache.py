"""By-value functions whose pickle need not be made again. See README.md, "Functions by value".

Pickling a function by value costs tens of microseconds, and a program submits the same one many
times. A pickle is reused only while everything that went into it is the very same immutable object:
the code, the defaults, the closure, and each global that the code names. One whose code names no
globals of its module is published in the function table when it is met for the second time, and
then travels as a number like an importable one.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks import codec, functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._tasks.names import FunctionWriter

_KEPT: Final = 256
"""Functions that are remembered. Smaller: programs that use many in turn pickle them again."""
_MISSING: Final = object()
_CONSTANT: Final = (type(None), bool, int, float, complex, str, bytes, types.ModuleType)
_DEPTH: Final = 4


@final
class _Entry:
    """What went into the pickle of one function, by identity."""

    __slots__ = (
        "absent",
        "blob",
        "cells",
        "code",
        "defaults",
        "globals",
        "keywords",
        "number",
        "plain",
    )

    def __init__(self, fn: types.FunctionType) -> None:
        self.code = fn.__code__
        self.defaults = fn.__defaults__
        self.keywords = fn.__kwdefaults__
        self.cells = tuple(_content(cell) for cell in fn.__closure__ or ())
        space = fn.__globals__
        from mpsched._tasks import bytecode  # and with it `dis`: 2 ms

        names = bytecode.global_names(fn.__code__)
        self.globals = tuple((name, space[name]) for name in names if name in space)
        # Builtins, and what may be defined later.
        self.absent = tuple(name for name in names if name not in space)
        self.plain = not (self.cells or self.globals or self.absent)
        self.blob = b""
        self.number = 0

    def fits(self, fn: types.FunctionType) -> bool:
        """Whether pickling `fn` now would give the same bytes."""
        if (
            fn.__code__ is not self.code
            or fn.__defaults__ is not self.defaults
            or fn.__kwdefaults__ is not self.keywords
            or fn.__dict__
        ):
            return False
        if self.plain:
            return True
        if self.cells:
            for cell, content in zip(fn.__closure__ or (), self.cells, strict=True):
                if _content(cell) is not content:
                    return False
        if self.globals:
            space = fn.__globals__
            for name, value in self.globals:
                if space.get(name, _MISSING) is not value:
                    return False
        if self.absent:
            space = fn.__globals__
            for name in self.absent:
                if name in space:
                    return False
        return True

    def constant(self) -> bool:
        """Whether nothing of it can change without becoming another object."""
        return (
            self.keywords is None
            and all(isinstance(value, _CONSTANT) for value in self.defaults or ())
            and all(isinstance(value, _CONSTANT) for value in self.cells)
            and all(_constant_global(value) for _name, value in self.globals)
        )


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING  # not assigned yet


def _constant_global(value: Any) -> bool:
    # A function of the same module is not constant: what it names in turn may change.
    return isinstance(value, _CONSTANT) or (
        callable(value) and functions.importable_name(value) is not None
    )


@final
class ValueCache:
    """Remembers the latest pickle of each function. Any thread; single operations on one dict."""

    __slots__ = ("_entries", "_writer")

    def __init__(self, writer: FunctionWriter) -> None:
        self._writer = writer
        self._entries: dict[types.FunctionType, _Entry] = {}

    def number(self, fn: Callable[..., Any]) -> int:
        """Return the number of a function that is published and still the same, else 0."""
        if type(fn) is not types.FunctionType:
            return 0
        entry = self._entries.get(fn)
        if entry is None or not entry.fits(fn):
            return 0
        if not entry.number and not entry.globals:
            entry.number = self._writer.publish(entry.blob)
        return entry.number

    def dumps(self, fn: Callable[..., Any]) -> tuple[bytes, list[Any]]:
        """Return `codec.dumps_callable_held(fn)`, made now or before.

        Raises:
            EncodeError: it cannot be pickled.
        """
        if type(fn) is not types.FunctionType:
            return codec.dumps_callable_held(fn)
        entries = self._entries
        entry = entries.get(fn)
        if entry is not None and entry.fits(fn):
            return entry.blob, []
        # Before pickling, so that a change by another thread meanwhile is seen the next time.
        entry = _Entry(fn)
        blob, holds = codec.dumps_callable_held(fn)
        if not holds and len(blob) <= codec.LARGE_FUNCTION_BYTES and entry.constant():
            entry.blob = blob
            entries[fn] = entry
            if len(entries) > _KEPT:
                entries.pop(next(iter(entries)), None)
        else:
            entries.pop(fn, None)
        return blob, holds
