"""Classes by value, and objects of kinds that only cloudpickle or this file can pickle. See README.md, "By value".

Imported on first need only: cloudpickle takes 30 ms.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import sys
import threading
import typing
import weakref
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from mpsched._tasks import functions, loading

if TYPE_CHECKING:
    from collections.abc import Callable

_telling: Final = threading.Lock()
"""What cloudpickle is told holds for all threads, and is taken back at once."""

_CLASS_PARTS: Final = 6  # how cloudpickle reduces a class that travels by value


def dispatch_table() -> dict[type, Callable[[Any], Any]]:
    """Return how to reduce objects by their exact type: what `copyreg`, cloudpickle, and we know."""
    return {**cloudpickle.Pickler.dispatch_table, **_REDUCERS}


def reduce_class(cls: type) -> Any:
    """Return how cloudpickle pickles a class; by value: (maker, args, state, .., .., setter)."""
    reduced = cloudpickle.Pickler.reducer_override(None, cls)  # which looks at the class alone
    module = cls.__module__
    if reduced is NotImplemented and module in sys.modules and not functions.arrives(module):
        # cloudpickle takes whatever is in `sys.modules` for importable, unless it is told.
        with _telling:
            cloudpickle.register_pickle_by_value(sys.modules[module])
            try:
                reduced = cloudpickle.Pickler.reducer_override(None, cls)
            finally:
                cloudpickle.unregister_pickle_by_value(sys.modules[module])
    return reduced


def is_by_value(reduced: Any) -> bool:
    """Whether that is a class by value."""
    return isinstance(reduced, tuple) and len(reduced) == _CLASS_PARTS


def parts_of_class(cls: type) -> tuple[Any, Any]:
    """Return what makes a class, and what gives it its attributes: (function, arguments) each."""
    maker, args, state, _, _, setter = reduce_class(cls)
    if not issubclass(cls, enum.Enum):
        # What cloudpickle makes has no slots, and needs cloudpickle in the worker.
        kind, name, bases, namespace, *_ = args
        if "__slots__" in cls.__dict__:
            namespace["__slots__"] = cls.__dict__["__slots__"]
        if cls.__qualname__ != name:
            namespace["__qualname__"] = cls.__qualname__
        if typing.NamedTuple in bases:  # would make a named tuple without fields
            namespace["__orig_bases__"], bases = bases, cls.__bases__
        maker, args = loading.make_class, (kind, name, bases, namespace)
        setter, state = loading.set_class, state[0]
    return (maker, args), (setter, state)


# --- reducers of what neither pickle nor cloudpickle knows ------------------------------------------


def _by_name(obj: Any) -> str | None:
    """Return the name of an object that is found by import, as a reducer returns it."""
    name: str | None = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    module = getattr(obj, "__module__", None)
    if name is None or module is None or not functions.is_importable(module):
        return None
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is obj else None


def _reduce_cached(obj: Any) -> Any:
    keys = obj.cache_parameters()
    return _by_name(obj) or (loading.cached, (obj.__wrapped__, keys["maxsize"], keys["typed"]))


def _reduce_typing(obj: Any) -> Any:
    return _by_name(obj) or (type(obj), (obj.__name__,))


def _reduce_new_type(obj: Any) -> Any:
    return _by_name(obj) or (type(obj), (obj.__name__, obj.__supertype__))


def _reduce_alias(obj: Any) -> Any:
    return _by_name(obj) or (type(obj), (obj.__name__, obj.__value__))


def _reduce_struct(obj: struct.Struct) -> Any:
    return type(obj), (obj.format,)


def _reduce_weak_dict(obj: Any) -> Any:
    return type(obj), (dict(obj),)


def _reduce_cached_property(obj: Any) -> Any:
    return loading.cached_property, (obj.func, obj.attrname)


def _reducers() -> dict[type, Callable[[Any], Any]]:
    table: dict[type, Callable[[Any], Any]] = {
        type(functools.lru_cache(_by_name)): _reduce_cached,
        functools.cached_property: _reduce_cached_property,
        struct.Struct: _reduce_struct,
        typing.NewType: _reduce_new_type,
        typing.ParamSpec: _reduce_typing,
        typing.TypeVarTuple: _reduce_typing,
        weakref.WeakKeyDictionary: _reduce_weak_dict,
        weakref.WeakValueDictionary: _reduce_weak_dict,
    }
    if hasattr(typing, "TypeAliasType"):
        table[typing.TypeAliasType] = _reduce_alias
    # Sentinels of dataclasses, compared by identity.
    for name in (
        "MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR"
    ):  # fmt: skip
        if hasattr(dataclasses, name):
            table[type(getattr(dataclasses, name))] = _reduce_sentinel
    return table


def _reduce_sentinel(obj: Any) -> Any:
    for name, value in vars(dataclasses).items():
        if value is obj:
            return name
    # A copy, as other libraries make them that have pickled a class: back to what it stands for.
    for name, value in vars(dataclasses).items():
        if type(value) is type(obj) and getattr(value, "name", "") == getattr(obj, "name", ""):
            return loading.module_global, ("dataclasses", name)
    return object.__reduce_ex__(obj, 5)


_REDUCERS: Final = _reducers()
