"""What a process knows of the namespaces and classes of functions that travel by value.

See README.md, "By value". Both sides share it: `byvalue.py` sends, `loading.py` receives.
"""

from __future__ import annotations

import builtins
import itertools
import os
import sys
import types
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._tasks import functions

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mpsched._tasks.definitions import Definition

_CLASSES_KEPT: Final = 512
"""Classes by value that stay alive though nobody in this process refers to them."""

_ANONYMOUS_KEPT: Final = 16
"""Namespaces of no module (a console's dict) that stay alive though nobody refers to them. Smaller:
programs with many of them lose what an initializer set there. Larger: memory that a program dropped."""


class GlobalEntry(NamedTuple):
    """One global that travels: of a namespace, in a version, pickled.

    Attributes:
        space: id of its namespace.
        token: the version of the value in the parent; None for what a worker assigned itself.
        value: pickle of the value; for a function its marshalled code.
        state: pickle of the function's state; None if the value is no function of that name.
    """

    space: str
    name: str
    token: bytes | None
    value: bytes
    state: bytes | None


class ClassEntry(NamedTuple):
    """One class that travels: `made` is a pickle of (maker, arguments), `state` of (setter, state)."""

    token: bytes
    made: bytes
    state: bytes


class SpaceEntry(NamedTuple):
    """What a namespace is made of where it does not exist yet."""

    id: str
    name: str | None  # its `__name__`
    package: str | None
    importable: bool


@final
class Space:
    """The globals of functions that travel by value: a module's own, or of a dict without one.

    Attributes:
        id: the same in every process of a pool.
        tokens: version last received of each global; worker only.
        functions: by-value functions last received, by name, with their version.
        module: whose dict `globals` is; None for a dict of no module.
    """

    __slots__ = ("functions", "globals", "id", "importable", "module", "tokens")

    def __init__(
        self,
        ident: str,
        namespace: dict[str, Any],
        module: types.ModuleType | None = None,
        *,
        importable: bool = False,
    ) -> None:
        self.id = ident
        self.globals = namespace
        self.module = module
        self.importable = importable
        self.tokens: dict[str, bytes | None] = {}
        self.functions: dict[str, tuple[bytes | None, types.FunctionType]] = {}


@final
class ClassRecord:
    """What this process knows of a class that travels by value."""

    __slots__ = ("id", "local", "token")

    def __init__(self, ident: str, *, local: bool) -> None:
        self.id = ident
        self.local = local  # defined by this process: what comes back never changes it
        self.token: bytes | None = None  # version of the state last received


@final
class _Registry:
    """All that one process knows; a forked child starts with none of it."""

    def __init__(self) -> None:
        self.process = os.urandom(6).hex()
        self.counter = itertools.count()
        self.spaces: dict[str, Space] = {}  # of modules: as many as the program has
        self.anonymous: OrderedDict[str, Space] = OrderedDict()
        self.classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
        self.records: weakref.WeakKeyDictionary[type, ClassRecord] = weakref.WeakKeyDictionary()
        self.recent: OrderedDict[str, type] = OrderedDict()
        self.loaded: OrderedDict[bytes, types.FunctionType] = OrderedDict()
        self.definitions: OrderedDict[Hashable, Definition] = OrderedDict()  # definitions.py

    def fresh_id(self) -> str:
        return f"{self.process}.{next(self.counter)}"


registry = _Registry()
in_worker = False


def _forget() -> None:
    global registry, in_worker
    registry = _Registry()
    in_worker = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def enter_worker() -> None:
    """Say that this process is a worker: what the parent sends becomes its globals (VALUE-2).

    Context:
        Worker, once, before it loads anything.
    """
    global in_worker
    in_worker = True


# --- namespaces and classes, for both sides ---------------------------------------------------------


def space_of(namespace: dict[str, Any]) -> Space:
    """Return the space of a function's `__globals__`, known or new."""
    name = namespace.get("__name__")
    if isinstance(name, str):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__dict__", None) is namespace:
            return _of_module(module, name, functions.is_importable(name))
    # A dict of no module: a console's, of `exec`, of a module that only this process has. It cannot
    # be referred to weakly; so it is kept for a while, and so is its id.
    for space in list(registry.anonymous.values()):
        if space.globals is namespace:
            return space
    space = Space(f"{name or ''}#{registry.fresh_id()}", namespace)
    keep(registry.anonymous, space.id, space, _ANONYMOUS_KEPT)
    return space


def _of_module(module: types.ModuleType, name: str, importable: bool) -> Space:
    space = registry.spaces.get(name)
    if space is None or space.globals is not vars(module) or space.importable != importable:
        space = registry.spaces[name] = Space(name, vars(module), module, importable=importable)
    return space


def space_from(entry: SpaceEntry) -> Space:
    """Return the space that the sender names, made if it is not there.

    Raises:
        DecodeError: It is that of a module that cannot be imported here.
    """
    if entry.importable:
        return _of_module(functions.import_module(entry.id), entry.id, importable=True)
    module = sys.modules.get(entry.id)
    if module is not None:
        vars(module).setdefault("__builtins__", builtins)
        if in_worker and entry.package and not vars(module).get("__package__"):
            vars(module)["__package__"] = entry.package  # `python -m`: for imports relative to it
        return _of_module(module, entry.id, importable=False)
    known = registry.anonymous.get(entry.id) or registry.spaces.get(entry.id)
    if known is None:
        # Not in `sys.modules`: an import would find a module that is not whole.
        module = types.ModuleType(entry.name or "")
        module.__package__ = entry.package
        # Imports in C (pickle's) look it up in the globals of the frame that they are called from.
        vars(module)["__builtins__"] = builtins
        known = Space(entry.id, vars(module), module)
        if "#" in entry.id:
            keep(registry.anonymous, entry.id, known, _ANONYMOUS_KEPT)
        else:
            registry.spaces[entry.id] = known
    return known


def record_of(cls: type) -> ClassRecord:
    """Return the record of a class that travels by value; one that is new was defined here."""
    record = registry.records.get(cls)
    if record is None:
        record = ClassRecord(registry.fresh_id(), local=True)
        record = registry.records.setdefault(cls, record)
        registry.classes[record.id] = cls
    keep(registry.recent, record.id, cls, _CLASSES_KEPT)
    return record


def keep(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Put it last, and forget the first if there are too many. Any thread."""
    kept[key] = value
    try:
        kept.move_to_end(key)
        while len(kept) > most:
            kept.popitem(last=False)
    except KeyError:
        pass  # another thread was faster; nothing is kept too long
