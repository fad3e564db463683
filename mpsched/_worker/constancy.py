"""Can a function's pickle by value be used again? See README.md, "Fork-join", *Functions by value*."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

from mpsched._tasks import codec, functions

if TYPE_CHECKING:
    from types import CodeType

    Found = tuple[dict[str, Any], str, object]

_MISSING: Final = object()

_FIXED_TYPES: Final = frozenset(
    {
        *codec.PLAIN_TYPES,
        complex,
        range,
        type(...),
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.ModuleType,
    }
)
_FIXED_NAMES: Final = frozenset(
    {("_struct", "Struct"), ("re", "Pattern"), ("decimal", "Decimal"), ("fractions", "Fraction")}
)
"""Types whose objects nobody can change, not imported here."""

_MOST: Final = 200


class Watched:
    """All that a function reads by name, as it was: unchanged while each name has the same object.

    Only for what cannot change in any other way: other objects make `of` say None.
    """

    __slots__ = ("_found",)

    def __init__(self, found: list[Found]) -> None:
        self._found = found

    @classmethod
    def of(cls, fn: object) -> Watched | None:
        """Look at a function and at those that it calls; None if something in it may change unseen."""
        found: list[Found] = []
        seen: set[int] = set()
        todo = [fn]
        while todo:
            one = todo.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            if (
                type(one) is not types.FunctionType
                or one.__closure__
                or one.__kwdefaults__
                or one.__dict__
                or not all(_is_fixed(value) for value in one.__defaults__ or ())
            ):
                return None
            namespace = one.__globals__
            for name in _names(one.__code__):
                value = namespace.get(name, _MISSING)
                found.append((namespace, name, value))
                if value is _MISSING or _is_fixed(value):
                    continue
                if type(value) is not types.FunctionType or len(found) > _MOST:
                    return None
                if functions.importable_name(value) is None:
                    todo.append(value)
        return cls(found)

    def holds(self) -> bool:
        """Whether each name still has the object that it had."""
        return all(namespace.get(name, _MISSING) is value for namespace, name, value in self._found)


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code, and code within it, may look up, attributes among them."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _is_fixed(value: Any) -> bool:
    kind = type(value)
    if kind in _FIXED_TYPES or (kind.__module__, kind.__qualname__) in _FIXED_NAMES:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(_is_fixed, value))
    return isinstance(value, type) and functions.importable_name(value) is not None
