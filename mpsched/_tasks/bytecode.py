"""What a code object refers to, and its bytes. See README.md, "By value"."""

from __future__ import annotations

import dis
import marshal
import sys
import types
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_GLOBAL_OPS: Final = frozenset(
    {
        "LOAD_GLOBAL",
        "STORE_GLOBAL",
        "DELETE_GLOBAL",
        "LOAD_NAME",  # in the body of a class inside the function
        "LOAD_FROM_DICT_OR_GLOBALS",
    }
)


class _Names(NamedTuple):
    globals: tuple[str, ...]  # in the order of the code, so that pickles are the same each time
    all: frozenset[str]  # attributes too


_names: weakref.WeakKeyDictionary[types.CodeType, _Names] = weakref.WeakKeyDictionary()

# (code -> (number of loaded modules, package names -> submodules)): looking through `sys.modules`
# takes longer than all the rest of pickling a small function.
_submodules: weakref.WeakKeyDictionary[
    types.CodeType, tuple[int, dict[tuple[str, ...], tuple[str, ...]]]
] = weakref.WeakKeyDictionary()


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that the code, and code inside it, looks up as globals (or builtins)."""
    return _names_of(code).globals


def _names_of(code: types.CodeType) -> _Names:
    known = _names.get(code)
    if known is None:
        named: dict[str, None] = {}
        every: set[str] = set()
        for part in _nested(code):
            every.update(part.co_names)
            for instruction in dis.get_instructions(part):
                if instruction.opname in _GLOBAL_OPS:
                    named[instruction.argval] = None
        known = _names[code] = _Names(tuple(named), frozenset(every))
    return known


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def submodules(code: types.CodeType, modules: Iterable[types.ModuleType]) -> tuple[str, ...]:
    """Return loaded submodules that the code can reach as attributes of these modules.

    `import xml.dom` binds only `xml`: a receiver that imports `xml` alone has no `xml.dom`.
    """
    packages = tuple(sorted({m.__name__ for m in modules if hasattr(m, "__path__")}))
    if not packages:
        return ()
    count = len(sys.modules)
    known = _submodules.get(code)
    if known is None or known[0] != count:
        known = _submodules[code] = count, {}
    found = known[1].get(packages)
    if found is None:
        names = _names_of(code).all
        found = known[1][packages] = tuple(
            name
            for name in list(sys.modules)
            for package in packages
            if name.startswith(package + ".")
            and names.issuperset(name[len(package) + 1 :].split("."))
        )
    return found


def marshalled(code: types.CodeType) -> bytes:
    """Return the code's bytes, the same each time.

    Format 2 has no back references, whose presence depends on how many others refer to a constant.
    """
    try:
        return marshal.dumps(code, 2)
    except ValueError:
        return marshal.dumps(code)  # has constants of a kind that format 2 does not know
