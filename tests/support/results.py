"""Results of every kind, in objects that are used again."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
    """A subclass of tuple."""

    left: int
    right: Any


class Level(enum.IntEnum):
    """A subclass of int."""

    LOW = 0
    HIGH = 1


class Text(str):
    """A subclass of str."""

    __slots__ = ()


_LIST: list[Any] = []
_DICT: dict[Any, Any] = {}
_SET: set[Any] = set()
_NESTED: dict[str, Any] = {"all": _LIST, "names": [_DICT]}
_ORDERED: OrderedDict[str, int] = OrderedDict()
_SMALL = np.zeros(3)
_LARGE = np.zeros(10_000)

KINDS = (
    "number",
    "text",
    "tuple",
    "tuple of tuples",
    "list",
    "dict",
    "set",
    "nested",
    "list in a tuple",
    "named tuple",
    "enumeration",
    "subclass of str",
    "ordered dict",
    "array",
    "large array",
)


def result_of_kind(kind: str, number: int) -> Any:
    """Return what depends on the arguments alone, in an object that changes with the next call."""
    _LIST[:] = range(number % 5)
    _DICT.clear()
    _DICT.update({"__main__": number, (number, "\x93"): None})
    _SET.clear()
    _SET.add(number)
    _ORDERED.clear()
    _ORDERED["a"] = number
    _SMALL[:] = number
    _LARGE[:] = number
    return {
        "number": number,
        "text": f"__main__{number}",
        "tuple": (number, float(number), None),
        "tuple of tuples": (number, ("__main__", (), b"\x93")),
        "list": _LIST,
        "dict": _DICT,
        "set": _SET,
        "nested": _NESTED,
        "list in a tuple": (number, _LIST),
        "named tuple": Pair(number, (number,)),
        "enumeration": Level(number % 2),
        "subclass of str": Text(number),
        "ordered dict": _ORDERED,
        "array": [_SMALL],
        "large array": {"a": _LARGE},
    }[kind]
