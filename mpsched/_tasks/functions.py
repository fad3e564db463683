"""Which functions a worker finds by name, and finding them there. See README.md, "Functions"."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mpsched.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

_MAINS = frozenset({"__main__", "__mp_main__"})

# Module name -> (the module, whether another process can import it). The answer belongs to that
# very module: a name may be given to another one.
_importable: dict[str, tuple[ModuleType, bool]] = {}

# Worker: module name -> global name -> id of its value right after the import. Only ids, so that a
# module may drop what it loaded.
_at_import: dict[str, dict[str, int]] = {}


def importable_name(fn: Callable[..., Any]) -> tuple[str, str] | None:
    """Return (module, qualified name) if a worker gets the very same `fn` by importing it.

    Functions, classes, builtins and other callables that carry both names qualify. Lambdas, nested
    functions, everything of `__main__`, bound methods, partials and callable instances do not.

    Context:
        Parent, any thread. Calls no code of the user's but attribute access.
    """
    try:
        module_name: object = fn.__module__
        qualname: object = fn.__qualname__
    except Exception:  # an object's `__getattr__` may raise anything
        return None
    if (
        not isinstance(module_name, str)
        or not isinstance(qualname, str)
        or module_name in _MAINS
        or "<" in qualname
    ):
        return None
    module = sys.modules.get(module_name)
    if module is None:
        return None
    found: Any = module
    try:
        for part in qualname.split("."):
            found = getattr(found, part)
    except AttributeError:
        return None
    if found is not fn or not is_importable(module_name):
        return None
    return module_name, qualname


def is_importable(module_name: str) -> bool:
    """Whether another process with this one's `sys.path` can import the module.

    A module that is still being imported cannot: it would run the same top level again. Nor can one
    that was made by hand, or loaded from a file that is not on the path.
    """
    module = sys.modules.get(module_name)
    if module is None or module_name in _MAINS:
        return False
    known = _importable.get(module_name)
    if known is not None and known[0] is module:
        return known[1]
    spec = getattr(module, "__spec__", None)
    if spec is None or getattr(spec, "_initializing", False):
        return False
    answer = _is_found(module_name, spec)
    _importable[module_name] = module, answer
    return answer


def arrives(module_name: str) -> bool:
    """Whether another process has the module of that name once it has imported what it can.

    Besides what is importable: what an importable package makes itself, and what is being imported.
    """
    parent = module_name.rpartition(".")[0]
    spec = getattr(sys.modules.get(module_name), "__spec__", None)
    return (
        is_importable(module_name)
        or bool(parent and is_importable(parent))
        or getattr(spec, "_initializing", False)
    )


def _is_found(name: str, spec: Any) -> bool:
    """Search for the module as an import would; `importlib.util.find_spec` looks at `sys.modules`."""
    if spec.name != name:
        return True  # an alias such as os.path, put there by the module that it belongs to
    parent, _, _ = name.rpartition(".")
    path = None
    if parent:
        if not is_importable(parent):
            return False
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None:
            return True  # a part of an extension module, there as soon as that is imported
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        try:
            found = find(name, path)
        except Exception:  # a finder of somebody else's
            found = None
        if found is not None:
            # Another file of that name comes first on the path: the import gives another module.
            return bool(found.origin == spec.origin)
    return False


def import_module(name: str) -> ModuleType:
    """Import a module, and remember what its globals were then.

    Context:
        Worker.

    Raises:
        DecodeError: It cannot be imported; `__cause__` is what the import raised, which runs the
            module and so may raise anything.
    """
    module = sys.modules.get(name)
    if module is None:
        try:
            __import__(name)
            module = sys.modules[name]
        except BaseException as error:
            raise DecodeError(
                f"module {name!r} cannot be imported in the worker: {type(error).__name__}: {error}. "
                "A worker has the sys.path, directory and environment that the parent had when the "
                "pool was made"
            ) from error
    if name not in _at_import:
        _at_import[name] = {key: id(value) for key, value in vars(module).items()}
    return module


def resolve(module_name: str, qualname: str) -> Callable[..., Any]:
    """Return what `importable_name` named.

    Context:
        Worker.

    Raises:
        DecodeError: The module cannot be imported, or has no such name.
    """
    found: Any = import_module(module_name)
    try:
        for part in qualname.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise DecodeError(
            f"module {module_name!r} has no {qualname!r} in the worker: it was defined only in the "
            f"parent, or {getattr(sys.modules.get(module_name), '__file__', 'the file')} was changed"
        ) from error
    fn: Callable[..., Any] = found
    return fn


def was_assigned(module_name: str, name: str, namespace: Mapping[str, Any]) -> bool:
    """Whether this process has assigned the global since it imported the module.

    Ids may be used again, so a global that was assigned twice may look untouched; then the parent's
    value is taken, as it is everywhere else.
    """
    before = _at_import.get(module_name)
    return before is not None and before.get(name) != id(namespace.get(name))
