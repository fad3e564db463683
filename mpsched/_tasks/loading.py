"""Loading what travels by value: the receiving side. See README.md, "By value".

What `byvalue.py` pickles names only the functions below (and cloudpickle's, for enums), so a worker
that receives functions and classes does not import cloudpickle.
"""

from __future__ import annotations

import functools
import marshal
import pickle
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks import functions, namespaces
from mpsched._tasks.namespaces import (
    ClassEntry,
    ClassRecord,
    GlobalEntry,
    Space,
    SpaceEntry,
    keep,
    record_of,
    space_from,
)
from mpsched.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FUNCTIONS_KEPT: Final = 256
"""By-value functions that stay loaded. Smaller: a program that uses many in turn loads them again
and again. Larger: memory for lambdas that nobody uses any more."""

loads = 0
"""By-value pickles that were loaded so far."""

# --- loading ----------------------------------------------------------------------------------------


@final
class _Load:
    """One by-value pickle that is being loaded."""

    __slots__ = ("applying", "classes", "entries", "made", "spaces")

    def __init__(
        self,
        spaces: Iterable[SpaceEntry],
        entries: Iterable[GlobalEntry],
        classes: dict[str, ClassEntry],
    ) -> None:
        self.spaces = {entry[0]: space_from(SpaceEntry(*entry)) for entry in spaces}
        self.entries = {(entry[0], entry[1]): GlobalEntry(*entry) for entry in entries}
        self.classes = classes
        self.made: dict[tuple[str, str], types.FunctionType] = {}
        self.applying: set[str] = set()

    def assign(self) -> None:
        """Bring classes and globals to what they were when they were sent, as VALUE-2 says."""
        for ident in self.classes:
            if ident in namespaces.registry.classes:
                self.class_by_id(ident, ident)
        for (ident, name), entry in self.entries.items():
            self._assign(self.spaces[ident], name, entry)

    def _assign(self, space: Space, name: str, entry: GlobalEntry) -> None:
        here = space.globals
        if not namespaces.in_worker or entry.token is None:
            # Never touch what the program itself has assigned.
            if name not in here:
                value = self._value(entry)
                here.setdefault(name, value)  # what it refers to may have led back to it
            return
        if name in space.tokens:
            if space.tokens[name] == entry.token:
                return
        elif space.importable and name in here and self._is_kept(entry, here):
            space.tokens[name] = entry.token
            return
        value = self._value(entry)
        if name in space.tokens and space.tokens[name] == entry.token:
            return  # what it refers to led back to it, and has the one that is there now
        here[name] = value
        space.tokens[name] = entry.token

    def global_value(self, ident: str, name: str) -> Any:
        """Return a global in the version that came, assigned already."""
        entry = self.entries.get((ident, name))
        if entry is None:
            raise _dropped("global", name)
        space = self.spaces[ident]
        self._assign(space, name, entry)
        return space.globals[name]

    @staticmethod
    def _is_kept(entry: GlobalEntry, here: dict[str, Any]) -> bool:
        """Whether a module's own value stays when the parent's is first seen.

        It stays if this process has assigned it (an initializer), and if it is equal: then it is
        the very object that the rest of the module refers to.
        """
        if functions.was_assigned(entry.space, entry.name, here):
            return True
        try:
            return pickle.dumps(here[entry.name], 5) == entry.value
        except Exception:  # cannot be compared, so the parent's is taken
            return False

    def _value(self, entry: GlobalEntry) -> Any:
        if entry.state is None:
            return pickle.loads(entry.value)
        return self.function(entry.space, entry.name)

    def function(self, ident: str, name: str) -> Any:
        """Return the function that came as this global, in the version that came."""
        made = self.made.get((ident, name))
        if made is not None:
            return made
        entry = self.entries[ident, name]
        space = self.spaces[ident]
        assert entry.state is not None
        known = space.functions.get(name)
        if known is not None and known[0] == entry.token and entry.token is not None:
            return known[1]
        fn = _function(entry.value, space, name, None)
        # Before its state, which may lead back to it.
        self.made[ident, name] = fn
        set_function(fn, pickle.loads(entry.state))
        space.functions[name] = entry.token, fn
        return fn

    def class_by_id(self, ident: str, name: str) -> type:
        """Return the class, made or brought up to date if need be."""
        entry = self.classes.get(ident)
        cls = namespaces.registry.classes.get(ident)
        if cls is None:
            if entry is None:
                raise _dropped("class", name)
            maker, args = pickle.loads(ClassEntry(*entry).made)
            made = maker(*args)
            cls = namespaces.registry.classes.setdefault(ident, made)
            if cls is made:
                namespaces.registry.records.setdefault(cls, ClassRecord(ident, local=False))
        record = record_of(cls)
        if entry is not None and not record.local:
            self._bring_up_to_date(cls, record, ClassEntry(*entry))
        return cls

    def _bring_up_to_date(self, cls: type, record: ClassRecord, entry: ClassEntry) -> None:
        if record.token == entry.token or record.id in self.applying:
            return
        if record.token is not None and not namespaces.in_worker:
            return
        self.applying.add(record.id)  # its methods lead back to it
        setter, state = pickle.loads(entry.state)
        setter(cls, state)
        record.token = entry.token
        space = self.spaces.get(cls.__module__) or namespaces.registry.spaces.get(cls.__module__)
        if (
            namespaces.in_worker
            and space is not None
            and not space.importable
            and "." not in cls.__qualname__
        ):
            # So that a task can pickle it plainly (into a file, say).
            space.globals.setdefault(cls.__name__, cls)


class _Active(threading.local):
    load: _Load | None = None


_active = _Active()


def open_value(
    spaces: Iterable[SpaceEntry],
    entries: Iterable[GlobalEntry],
    classes: dict[str, ClassEntry],
    root: bytes,
    buffers: Iterable[Any],
) -> Any:
    """Load an object that came by value. Called by unpickling."""
    global loads
    loads += 1
    outer = _active.load
    _active.load = load = _Load(spaces, entries, classes)
    try:
        load.assign()
        return pickle.loads(root, buffers=buffers)
    finally:
        _active.load = outer


def open_callable(
    key: bytes,
    spaces: Iterable[SpaceEntry],
    entries: Iterable[GlobalEntry],
    classes: dict[str, ClassEntry],
    root: bytes,
) -> Any:
    """Load a callable that came by value, or take the one that is loaded. Called by unpickling.

    The globals and classes are brought up to date in either case: tasks of before and after a
    change may come in any order. Only functions without state of their own stay loaded (VALUE-4).
    """
    global loads
    loads += 1
    known = namespaces.registry.loaded.get(key)
    outer = _active.load
    _active.load = load = _Load(spaces, entries, classes)
    try:
        load.assign()
        if known is not None:
            keep(namespaces.registry.loaded, key, known, _FUNCTIONS_KEPT)
            return known
        fn = pickle.loads(root)
    finally:
        _active.load = outer
    if isinstance(fn, types.FunctionType) and _is_stateless(fn):
        keep(namespaces.registry.loaded, key, fn, _FUNCTIONS_KEPT)
    return fn


_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType,
    types.BuiltinFunctionType,
)  # fmt: skip


def _is_stateless(fn: types.FunctionType, depth: int = 4) -> bool:
    """Whether nothing that a call could change lives in the function itself."""
    kept = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values(), *vars(fn).values()]
    for cell in fn.__closure__ or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:
            continue  # not assigned yet
    return all(_is_constant(value, depth) for value in kept)


def _is_constant(value: Any, depth: int) -> bool:
    if isinstance(value, _ATOMS):
        return True
    if depth and isinstance(value, (tuple, frozenset)):
        return all(_is_constant(one, depth - 1) for one in value)
    return bool(depth) and isinstance(value, types.FunctionType) and _is_stateless(value, depth - 1)


# --- what the pickles name --------------------------------------------------------------------------


def _current() -> _Load:
    load = _active.load
    if load is None:
        raise DecodeError("a part of a by-value pickle was loaded without the rest of it")
    return load


def sent_function(ident: str, name: str) -> Any:
    """Return a function that travels as the global `name` of a namespace."""
    return _current().function(ident, name)


def sent_global(ident: str, name: str, _state: object = None) -> Any:
    """Return what travels as the global `name` of a namespace; `_state` is for the token alone."""
    return _current().global_value(ident, name)


def sent_class(ident: str, name: str) -> type:
    """Return a class that travels by value."""
    return _current().class_by_id(ident, name)


def home_function(ident: str, name: str) -> Any:
    """Return a function that this process has sent, and that comes back."""
    space = namespaces.registry.anonymous.get(ident) or namespaces.registry.spaces.get(ident)
    namespace = vars(sys.modules[ident]) if space is None else space.globals
    try:
        return namespace[name]
    except KeyError:
        raise _dropped("function", name) from None


def home_class(ident: str, name: str) -> type:
    """Return a class that this process has sent, and that comes back, maybe as an instance."""
    cls = namespaces.registry.classes.get(ident)
    if cls is None:
        raise _dropped("class", name)
    return cls


def _dropped(kind: str, name: str) -> DecodeError:
    return DecodeError(
        f"{kind} {name!r} has come back, but does not exist any more: the program has dropped it "
        "since it sent it. Keep a reference to it until the results are there"
    )


def sent_module(ident: str, name: str) -> types.ModuleType:
    """Return a module that travels by value, or the receiver's own of that name."""
    module = _current().spaces[ident].module
    return subimport(name) if module is None else module


def make_function(
    code: bytes, ident: str, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    """Make a function without its state, which may refer to it."""
    return _function(code, _current().spaces[ident], name, closure)


def _function(
    code: bytes, space: Space, name: str, closure: tuple[types.CellType, ...] | None
) -> types.FunctionType:
    made = marshal.loads(code)  # noqa: S302 - it is as much ours as the pickle that it came in
    return types.FunctionType(made, space.globals, name, None, closure)


def set_function(fn: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its state: cells, defaults, attributes, and modules that it relies on."""
    cells, defaults, kwdefaults, attributes, special, modules = state
    for cell, contents in zip(fn.__closure__ or (), cells or (), strict=True):
        if contents:
            cell.cell_contents = contents[0]
    fn.__defaults__ = defaults
    fn.__kwdefaults__ = kwdefaults
    if attributes:
        vars(fn).update(attributes)
    for key, value in special.items():
        setattr(fn, key, value)
    for name in modules:
        subimport(name)


def make_class(kind: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    """Make a class without its attributes, which may refer to it; all but its slots."""

    def make() -> type:
        return types.new_class(name, bases, {"metaclass": kind}, lambda ns: ns.update(namespace))

    try:
        return make()
    except Exception:
        # `__init_subclass__` may want arguments of the `class` statement, which nobody has kept.
        # What it did is in the state of the classes that travel.
        mro = [cls for base in bases for cls in getattr(base, "__mro__", ())]
        hooked: Any = next((cls for cls in mro if "__init_subclass__" in vars(cls)), object)
        if hooked is object:
            raise
        hook = vars(hooked)["__init_subclass__"]
        hooked.__init_subclass__ = classmethod(lambda _: None)
        try:
            return make()
        finally:
            hooked.__init_subclass__ = hook


def set_class(cls: type, attributes: dict[str, Any]) -> None:
    """Give a class its attributes."""
    registered = attributes.pop("_abc_impl", ())  # of an abstract base class
    for name, value in attributes.items():
        setattr(cls, name, value)
    if "__firstlineno__" in attributes:
        # Python 3.13 drops it whenever another attribute is assigned.
        setattr(cls, "__firstlineno__", attributes["__firstlineno__"])  # noqa: B010
    for subclass in registered:
        cls.register(subclass)  # type: ignore[attr-defined]  # an ABCMeta has it


def make_cell(*contents: Any) -> types.CellType:
    """Make a cell, empty or not."""
    return types.CellType(*contents)


def set_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    """Fill a cell that is not the closure of a function that travels with it."""
    for value in contents:
        cell.cell_contents = value


def subimport(name: str) -> types.ModuleType:
    """Import a module."""
    __import__(name)
    return sys.modules[name]


def module_global(module: str, name: str) -> Any:
    """Return what a module of this process has: what cannot be pickled is not the parent's."""
    return getattr(functions.import_module(module), name)


def builtin_type(name: str) -> Any:
    """Return one of the types that only `types` names."""
    return getattr(types, name)


def cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:  # pickled
    """Make a function with `functools.lru_cache`, its cache empty."""
    return functools.lru_cache(maxsize, typed)(fn)


def cached_property(fn: Callable[..., Any], name: str | None) -> Any:
    """Make a `functools.cached_property`, whose lock (before 3.12) cannot be pickled."""
    made = functools.cached_property(fn)
    if name is not None:
        made.attrname = name
    return made
