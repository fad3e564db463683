"""Functions and classes that travel by value: the sending side. See README.md, "By value".

Imported on first need only. A by-value pickle is an ordinary pickle; what loads it is in `loading.py`.
Functions, and what most of them name, are pickled here; the first object of another kind brings `broad.py`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks import definitions, functions, loading, namespaces, order, sentinels
from mpsched._tasks.bytecode import global_names, marshalled, submodules
from mpsched._tasks.definitions import Definition

try:
    from _blake2 import blake2b  # `hashlib` loads OpenSSL first
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from mpsched._tasks.namespaces import ClassRecord, Space

_Key = tuple[str, str] | str
"""A part of a bundle: (namespace id, name) of a global, or the id of a class."""

_SHORT: Final = 40  # bytes of a pickle that is its own digest


class PartFailed(pickle.PicklingError):
    """What an object needs cannot be pickled: `what` names the global or class, `value` is it."""

    def __init__(self, what: str, value: object) -> None:
        super().__init__(what)
        self.what = what
        self.value = value


@final
class _Call:
    """Pickles as a call."""

    __slots__ = ("_args", "_fn")

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self._fn = fn
        self._args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._fn, self._args


@final
class Bundle:
    """One by-value pickle in the making: an object, and each global and class that it needs.

    Every global is pickled by itself, so that the receiver can tell which have changed. What one of
    them needs is added in turn, until nothing is missing.

    Context:
        One thread. `complete` runs the user's code (`__reduce__`).

    Attributes:
        globals: (namespace id, name) -> (token, value, state), as in `GlobalEntry`.
    """

    def __init__(self, *, going_home: bool = False) -> None:
        """`going_home`: the receiver is the parent, which needs nothing back that it has sent."""
        self.going_home = going_home
        self.globals: dict[tuple[str, str], tuple[bytes | None, bytes, bytes | None]] = {}
        self._spaces: dict[str, Space] = {}
        self._classes: dict[str, tuple[bytes, bytes, bytes]] = {}
        self._asked: set[_Key] = set()
        self._noted: list[tuple[Any, ...]] | None = None  # what a definition needs
        self._todo: deque[tuple[_Key, Callable[..., None], tuple[Any, ...]]] = deque()
        self._needs: dict[_Key, list[_Key]] = {}  # what each part needs
        self._needs_now: list[_Key] | None = None  # of the part that is being pickled
        self._runs_code = False  # loading a part may call functions that others are part of
        self._file = io.BytesIO()
        self._pickler = _Pickler(self._file, self)

    @property
    def spaces(self) -> Iterable[Space]:
        """The namespaces that the receiver needs."""
        return self._spaces.values()

    def dump(self, obj: Any, keep: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
        """Pickle one object of the bundle; `keep` as `buffer_callback`. Raises what pickling raises."""
        if type(obj) in sentinels.ATOMS:
            return pickle.dumps(obj, 5)
        if keep is not None:
            _broaden()  # a value may be anything, and what was kept cannot be taken back
            with io.BytesIO() as file:
                _Pickler(file, self, keep).save(obj)
                return file.getvalue()
        try:
            return self._dump(obj)
        except _Unknown:
            # Once in a process. What was noted until there is noted again, which changes nothing.
            _broaden()
            self._pickler = _Pickler(self._file, self)
            return self._dump(obj)

    def _dump(self, obj: Any) -> bytes:
        file = self._file
        file.seek(0)
        file.truncate()
        self._pickler.save(obj)
        return file.getvalue()

    def complete(self) -> None:
        """Pickle what the dumped objects need.

        Raises:
            PartFailed: Something of it cannot be pickled; `__cause__` says why.
        """
        while self._todo:
            key, add, args = self._todo.popleft()
            self._needs_now = self._needs[key] = []
            add(*args)
        self._needs_now = None
        if self._runs_code or self._classes:
            parts = self.globals
            ordered: list[Any] = order.needed_first(parts, self._needs)
            self.globals = {key: parts[key] for key in ordered if key in parts}

    def pack_value(self, root: bytes, buffers: list[pickle.PickleBuffer]) -> bytes:
        """Return the pickle of a value, whose out-of-band buffers are `buffers`, in this order."""
        if not self._spaces and not self._classes:
            return root  # only cloudpickle was needed
        call = _Call(loading.open_value, *self._parts(), root, buffers)
        return pickle.dumps(call, 5, buffer_callback=lambda _: None)

    def pack_callable(self, root: bytes) -> bytes:
        """Return the pickle of a callable, with a key that stands for all of its content."""
        parts = [root]
        for (ident, name), (token, value, state) in self.globals.items():
            parts += [ident.encode(), name.encode(), token or _digest(value, state or b"")]
        for ident, entry in self._classes.items():
            parts += [ident.encode(), entry[0]]
        call = _Call(loading.open_callable, _digest(*parts), *self._parts(), root)
        return pickle.dumps(call, 5)

    def _parts(self) -> tuple[Any, Any, Any]:
        spaces = tuple(
            (s.id, s.globals.get("__name__"), s.globals.get("__package__"), s.importable)
            for s in self._spaces.values()
        )
        return spaces, tuple((*key, *entry) for key, entry in self.globals.items()), self._classes

    # --- what an object needs -----------------------------------------------------------------------

    def need_space(self, space: Space) -> None:
        """The receiver needs this namespace."""
        if self._noted is not None:
            self._noted.append((Bundle.need_space, space))
        self._spaces[space.id] = space

    def need_globals_of(self, fn: types.FunctionType, space: Space) -> None:
        """The receiver needs the globals that a function names."""
        for name in global_names(fn.__code__):
            if name in space.globals:
                self.need_global(space, name)

    def need_global(self, space: Space, name: str) -> None:
        """The receiver needs one global, unless it is at home there."""
        if self._noted is not None:
            self._noted.append((Bundle.need_global, space, name))
        key = (space.id, name)
        if self._needs_now is not None:
            self._needs_now.append(key)
        if key in self._asked:
            return
        self._asked.add(key)
        if not (self.going_home and (space.importable or name in space.tokens)):
            self._todo.append((key, self._add_global, (space, name)))

    def need_class(self, cls: type, record: ClassRecord) -> None:
        """The receiver needs one class."""
        if self._noted is not None:
            self._noted.append((Bundle.need_class, cls, record))
        if self._needs_now is not None:
            self._needs_now.append(record.id)
        if record.id not in self._asked:
            self._asked.add(record.id)
            self._todo.append((record.id, self._add_class, (cls, record)))

    def home_of(self, value: object) -> tuple[Space, str] | None:
        """Return the global that this very object is, of a namespace that the receiver needs."""
        for space in self._spaces.values():
            for name, one in list(space.globals.items()):  # other threads may add some
                if one is value:
                    return space, name
        return None

    def as_global(self, value: Any) -> Any:
        """Return what pickles as the global that a sentinel is, or the value itself (VALUE-9)."""
        if self.going_home or type(value) in sentinels.ATOMS:
            return value
        state = sentinels.state_of(value)
        home = None if state is None else self.home_of(value)
        if home is None:
            return value
        space, name = home
        self.need_global(space, name)
        # With its state, so that who refers to it has another token when it has.
        return _Call(loading.sent_global, space.id, name, state)

    def _definition(
        self, key: Hashable, parts: list[Any] | None, dump: Callable[[], tuple[bytes, bytes]]
    ) -> tuple[bytes, bytes, bytes]:
        """Return (first, second, token) of a function or class, from memory if it is unchanged."""
        known = definitions.find(key, parts)
        if known is None:
            self._noted = []
            try:
                first, second = dump()
            finally:
                noted, self._noted = self._noted, None
            token = _digest(first, second)
            # What belongs to a dict of no module would keep that alive.
            if parts is not None and not any("#" in ident for ident in self._spaces):
                definitions.keep(key, Definition(parts, first, second, token, noted))
            return first, second, token
        for need, *args in known.needs:
            need(self, *args)
        return known.first, known.second, known.token

    def _add_global(self, space: Space, name: str) -> None:
        try:
            value = space.globals[name]
        except KeyError:
            return  # another thread has deleted it; the function finds none either
        state = None
        try:
            if is_sent_as_global(value, space, name):
                key, parts = (space.id, name), definitions.parts_of_function(value)
                data, state, token = self._definition(
                    key, parts, lambda: self._dump_function(value, space)
                )
            else:
                data = self._dump_global(space, name, value)
                token = _version(data)
                self._runs_code |= bool(self._needs_now)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PartFailed(f"global {name!r}", value) from error
        # The parent's version travels on from a worker; what that has assigned itself has none.
        sent = space.tokens.get(name) if namespaces.in_worker else token
        self.globals[space.id, name] = sent, data, state

    def _dump_function(self, fn: types.FunctionType, space: Space) -> tuple[bytes, bytes]:
        self.need_globals_of(fn, space)
        return marshalled(fn.__code__), self.dump(_function_state(fn, self))

    def _dump_global(self, space: Space, name: str, value: Any) -> bytes:
        if not space.importable:
            if type(value) is object and self.home_of(value) == (space, name):
                return self.dump(_Call(object))
            return self.dump(value)
        # What is nothing but its identity (a sentinel, a lock) is that of the module over there.
        if type(value) is not object:
            try:
                return self.dump(value)
            except Exception:  # whatever its `__reduce__` says, the module itself can be imported
                pass
        return self.dump(_Call(loading.module_global, space.id, name))

    def _add_class(self, cls: type, record: ClassRecord) -> None:
        try:
            made, state, token = self._definition(
                record.id, definitions.parts_of_class(cls), lambda: self._dump_class(cls)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PartFailed(f"class {cls.__qualname__!r}", cls) from error
        self._classes[record.id] = (not record.local and record.token) or token, made, state

    def _dump_class(self, cls: type) -> tuple[bytes, bytes]:
        made, state = _broaden().parts_of_class(cls)
        return self.dump(made), self.dump(state)


def is_sent_as_global(value: Any, space: Space, name: str) -> bool:
    """Whether a global is a function that everybody refers to by the name it has there.

    Not one with a closure: that must exist before the function does.
    """
    return (
        type(value) is types.FunctionType
        and value.__closure__ is None
        and value.__globals__ is space.globals
        and value.__name__ == name
        and not space.importable
    )


def _version(value: bytes) -> bytes:
    """Return what tells two values of a global apart."""
    return b"=" + value if len(value) < _SHORT else _digest(value)


def _digest(*parts: bytes) -> bytes:
    sizes = repr([len(part) for part in parts]).encode()  # where one ends and the next begins
    return blake2b(b"".join((sizes, *parts)), digest_size=16).digest()


def _function_state(fn: types.FunctionType, bundle: Bundle) -> tuple[Any, ...]:
    """Return what `loading.set_function` takes."""
    code = fn.__code__
    special: dict[str, Any] = {}
    if fn.__qualname__ != code.co_qualname:
        special["__qualname__"] = fn.__qualname__
    if fn.__module__ != fn.__globals__.get("__name__"):
        special["__module__"] = fn.__module__
    if fn.__doc__ != (code.co_consts[0] if code.co_consts else None):
        special["__doc__"] = fn.__doc__
    if fn.__annotations__:
        special["__annotations__"] = fn.__annotations__
    if getattr(fn, "__type_params__", ()):
        special["__type_params__"] = fn.__type_params__  # type: ignore[attr-defined]  # 3.12
    as_global = bundle.as_global
    defaults, kwdefaults, cells = fn.__defaults__, fn.__kwdefaults__, None
    if defaults:
        defaults = tuple([as_global(value) for value in defaults])
    if kwdefaults:
        kwdefaults = {name: as_global(value) for name, value in kwdefaults.items()}
    values: list[Any] = []
    if fn.__closure__ is not None:
        cells = tuple(_contents(cell) for cell in fn.__closure__)
        values += [value for contents in cells for value in contents]
        cells = tuple([tuple([as_global(value) for value in contents]) for contents in cells])
    values += [fn.__globals__.get(name) for name in global_names(code)]
    modules = submodules(code, [v for v in values if type(v) is types.ModuleType])
    return cells, defaults, kwdefaults, vars(fn) or None, special, modules


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()  # not assigned yet


_OURS: Final = vars(loading)
_NAMED_TYPES: Final = {v: k for k, v in vars(types).items() if isinstance(v, type)}


class _Unknown(BaseException):
    """Something was met whose kind only `broad.py` may know."""


_PLAIN_KINDS: Final = frozenset(
    {
        *(_Call, complex, range, slice, bytearray, types.BuiltinFunctionType),
        *(type(...), type(NotImplemented)),
    }
)
"""Kinds that plain pickling, which asks for each object, does as well as it can be done."""

_broad: Any = None


def _broaden() -> Any:
    """Have the pickler know all kinds from now on; returns `broad`, which takes 30 ms to import."""
    global _broad
    if _broad is None:
        from mpsched._tasks import broad

        _broad = broad
    return _broad


class _Pickler(pickle.Pickler):
    """The pickler of one object of a bundle. As broad as it was made: see `Bundle.dump`."""

    _registered = -1

    def __init__(
        self,
        file: io.BytesIO,
        bundle: Bundle,
        keep: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None:
        self._broad = _broad
        if _broad is not None and _Pickler._registered != len(copyreg.dispatch_table):
            # One plain dict: the C pickler asks it for every object, and a ChainMap is slow.
            _Pickler._registered = len(copyreg.dispatch_table)
            _Pickler.dispatch_table = _broad.dispatch_table()
        super().__init__(file, 5, buffer_callback=keep)
        self._bundle = bundle
        self._closures: set[int] = set()

    def save(self, obj: Any) -> None:
        """Write one pickle, which refers to none before it."""
        self.clear_memo()
        self._closures.clear()
        pickle.Pickler.dump(self, obj)

    def reducer_override(self, obj: Any) -> Any:
        """Say how to pickle functions, cells, modules and classes. Called by the C pickler."""
        kind = type(obj)
        if kind is types.FunctionType:
            return self._reduce_function(obj)
        if kind is types.CellType:
            if id(obj) in self._closures:
                return loading.make_cell, ()  # filled with its function
            return loading.make_cell, (), _contents(obj), None, None, loading.set_cell
        if kind is types.ModuleType:
            return self._reduce_module(obj)
        if issubclass(kind, type):
            return self._reduce_class(obj)
        if kind is object:
            return self._reduce_bare(obj)
        if self._broad is None and kind not in _PLAIN_KINDS:
            raise _Unknown
        return NotImplemented

    def _reduce_bare(self, obj: object) -> Any:
        bundle = self._bundle
        home = None if bundle.going_home else bundle.home_of(obj)
        if home is None:
            return NotImplemented
        space, name = home
        bundle.need_global(space, name)
        return loading.sent_global, (space.id, name)

    def _reduce_function(self, fn: types.FunctionType) -> Any:
        if fn.__globals__ is _OURS or functions.importable_name(fn) is not None:
            return NotImplemented
        bundle, name = self._bundle, fn.__name__
        space = namespaces.space_of(fn.__globals__)
        if bundle.going_home:
            known = space.functions.get(name)
            if known is not None and known[1] is fn:
                return loading.home_function, (space.id, name)
        bundle.need_space(space)
        if (
            space.globals.get(name) is fn
            and is_sent_as_global(fn, space, name)
            # A worker that has made this name its own must not send it as the parent's.
            and not (bundle.going_home and name in space.tokens)
        ):
            bundle.need_global(space, name)
            return loading.sent_function, (space.id, name)
        bundle.need_globals_of(fn, space)
        self._closures.update(map(id, fn.__closure__ or ()))
        made = (marshalled(fn.__code__), space.id, name, fn.__closure__)
        return (
            loading.make_function, made, _function_state(fn, bundle), None, None, loading.set_function
        )  # fmt: skip

    def _reduce_module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if name == "__main__" or (sys.modules.get(name) is module and functions.arrives(name)):
            return loading.subimport, (name,)
        # Made or loaded by hand, or not in `sys.modules`: it travels as a namespace, all of it.
        space = namespaces.space_of(vars(module))
        space.module = module
        self._bundle.need_space(space)
        for key in vars(module):
            if not (key.startswith("__") and key.endswith("__")):
                self._bundle.need_global(space, key)
        return loading.sent_module, (space.id, name)

    def _reduce_class(self, cls: type) -> Any:
        if functions.importable_name(cls) is not None:
            return NotImplemented
        if cls in _NAMED_TYPES:
            return loading.builtin_type, (_NAMED_TYPES[cls],)
        if self._bundle.going_home:
            known = namespaces.registry.records.get(cls)
            if known is not None and not known.local:
                return loading.home_class, (known.id, cls.__qualname__)
        if self._broad is None:
            raise _Unknown
        if cls not in namespaces.registry.records:
            reduced = self._broad.reduce_class(cls)
            if not self._broad.is_by_value(reduced):
                return reduced
        record = namespaces.record_of(cls)
        self._bundle.need_class(cls, record)
        return loading.sent_class, (record.id, cls.__qualname__)
