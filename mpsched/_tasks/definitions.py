"""Pickles of functions and classes that have not changed since. See README.md, "Definitions"."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpsched._tasks import namespaces

if TYPE_CHECKING:
    from collections.abc import Hashable

_KEPT: Final = 512
"""Definitions that are kept. Smaller: programs with more of them pickle each anew for every task.
Larger: memory for what the program does not use any more."""

_CONSTANTS: Final = (
    type(None), bool, int, float, complex, str, bytes, type, types.BuiltinFunctionType,
    types.GetSetDescriptorType, types.MemberDescriptorType, type(NotImplemented), type(...),
)  # fmt: skip

# Written by `class`, `@dataclass` and pickle, and by nobody afterwards.
_SETTLED: Final = frozenset(
    {"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__slotnames__"}
)


class Definition(NamedTuple):
    """How a function or class was pickled.

    Attributes:
        parts: all that it is made of; it has not changed if each of them is the same object.
        first, second: the two pickles (`GlobalEntry`, `ClassEntry`).
        token: what tells it from another.
        needs: what a bundle was asked for meanwhile; the same again.
    """

    parts: list[Any]
    first: bytes
    second: bytes
    token: bytes
    needs: list[tuple[Any, ...]]


def find(key: Hashable, parts: list[Any] | None) -> Definition | None:
    """Return the definition under a key if it is still made of these parts."""
    known: Definition | None = namespaces.registry.definitions.get(key)
    if (
        known is None
        or parts is None
        or len(known.parts) != len(parts)
        or not all(map(operator.is_, known.parts, parts))
    ):
        return None
    return known


def keep(key: Hashable, definition: Definition) -> None:
    """Remember a definition, for a while."""
    namespaces.keep(namespaces.registry.definitions, key, definition, _KEPT)


def parts_of_function(fn: types.FunctionType) -> list[Any] | None:
    """Return what the function is made of, None if something of it may change in place."""
    parts: list[Any] = []
    return parts if _add_function(parts, fn, 2) else None


def parts_of_class(cls: type) -> list[Any] | None:
    """Return what the class is made of, None if something of it may change in place."""
    if type(cls) is not type:
        return None  # a metaclass may keep anything anywhere
    parts: list[Any] = [*cls.__bases__]
    for name, value in cls.__dict__.items():
        parts += (name, value)
        if name not in _SETTLED and not _add(parts, value, 3):
            return None
    return parts


def _add(parts: list[Any], value: Any, depth: int) -> bool:
    """Add what a value is made of; False if it may change in place."""
    kind = type(value)
    if kind is types.FunctionType:
        return _add_function(parts, value, depth)
    if issubclass(kind, _CONSTANTS):
        return True
    if not depth:
        return False
    if kind is tuple or kind is frozenset:
        return all(_add(parts, one, depth - 1) for one in value)
    if kind is staticmethod or kind is classmethod:
        return _add(parts, value.__func__, depth - 1)
    if kind is property:
        getters = (value.fget, value.fset, value.fdel)
        parts += (*getters, value.__doc__)
        return all(_add(parts, one, depth - 1) for one in getters)
    if kind is set or kind is list or kind is dict:
        return not value  # empty, it is as good as constant until something is in it
    # The sentinels of dataclasses are equal to themselves only, and have no state.
    return kind.__module__ == "dataclasses" and not getattr(value, "__dict__", None)


def _add_function(parts: list[Any], fn: types.FunctionType, depth: int) -> bool:
    if fn.__kwdefaults__ or not depth:
        return False
    for name, value in vars(fn).items():
        if name != "__wrapped__" or not _add(parts, value, depth - 1):
            return False
    parts += (
        fn,
        fn.__code__,
        fn.__defaults__,
        fn.__name__,
        fn.__qualname__,
        fn.__module__,
        fn.__doc__,
    )
    for cell in fn.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            return False  # not assigned yet
        parts.append(value)
        if not _add(parts, value, depth - 1):
            return False
    return all(_add(parts, value, depth - 1) for value in fn.__defaults__ or ())
