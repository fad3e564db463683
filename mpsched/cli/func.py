"""FUNC: from the text on the command line to a callable, in the command and in its workers.

See README.md, "Calling". A worker gets the `FuncRef` and loads the function by itself, so that
nothing of the user's has to be pickled.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["FuncRef", "find"]

_SHOWN: Final = 12  # names listed beside a wrong one


@dataclass(frozen=True, slots=True)
class FuncRef:
    """Where a function is: in a module, or in a file."""

    text: str
    """As the user wrote it, for messages and the companion."""
    module: str | None
    path: str | None
    """Absolute; None if it is in a module."""
    names: str
    """Dotted: `name` or `Class.method`."""

    def load(self) -> Callable[..., Any]:
        """Import the function. Any process; the second time it costs nothing.

        Raises:
            BaseException: What the module raises while it is imported.
            AttributeError: The module has no such name.
        """
        found: Any = self.load_module()
        for name in self.names.split("."):
            found = getattr(found, name)
        function: Callable[..., Any] = found
        return function

    def load_module(self) -> ModuleType:
        """Import the module or the file, with its folder importable; see `load`."""
        if self.path is not None:
            _importable(os.path.dirname(self.path))
            return _load_file(self.path)
        assert self.module is not None
        _importable(os.getcwd())
        return importlib.import_module(self.module)

    def source_file(self) -> str | None:
        """Return the file that the function's module was loaded from, if it is known."""
        return self.path or getattr(sys.modules.get(self.module or ""), "__file__", None)


def find(text: str) -> tuple[FuncRef, Callable[..., Any]]:
    """Return the function that the user named, loaded in this process.

    Context:
        The command, before anything runs: the module's own code runs here.

    Raises:
        Usage: There is no such file, module or function; it cannot be imported; it cannot be called.
    """
    ref = _reference(text)
    module = _imported(ref)
    found: Any = module
    for name in filter(None, ref.names.split(".")):
        try:
            found = getattr(found, name)
        except AttributeError:
            found = None
            break
    if found is None or found is module:
        raise Usage(_no_such_name(ref, module))
    if not callable(found):
        raise Usage(f"{text}: this is {type(found).__name__} {found!r:.80}, not a function")
    return ref, found


def _reference(text: str) -> FuncRef:
    """Split FUNC, and look whether its file or module is there."""
    place, colon, names = text.rpartition(":")
    if not colon:
        place, names = text, ""
    if place.endswith(".py") or os.sep in place:
        if not os.path.isfile(place):
            raise Usage(f"{text}: there is no file {place!r} (current folder: {os.getcwd()})")
        return FuncRef(text, None, os.path.abspath(place), names)
    if colon:
        return FuncRef(text, place, None, names)
    # A dot for the colon: the longest prefix that is a module.
    _importable(os.getcwd())
    parts = text.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        if _module_exists(module):
            return FuncRef(text, module, None, ".".join(parts[cut:]))
    raise Usage(_no_such_module(text, parts[0]))


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent is missing, or is no package
        return False
    except Exception:
        # A parent package raises while it is imported. It is there: `_imported` shows the failure.
        return True


def _imported(ref: FuncRef) -> ModuleType:
    """Import, and turn whatever the module raises into a message with its traceback."""
    try:
        return ref.load_module()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        wanted = ref.module or ""
        if error.name and (wanted == error.name or wanted.startswith(error.name + ".")):
            raise Usage(_no_such_module(ref.text, error.name)) from None
        raise Usage(_failed_import(ref, error)) from None
    except BaseException as error:  # a module may call sys.exit() at its top level
        raise Usage(_failed_import(ref, error)) from None


def _failed_import(ref: FuncRef, error: BaseException) -> str:
    import traceback

    # The frames of importlib and of this file say nothing to the user.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    hint = ""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        hint = "\nA file that imports relatively belongs to a package: write package.module:name."
    return f"{ref.text} cannot be imported:\n{''.join(lines).rstrip()}{hint}"


def _no_such_module(text: str, missing: str) -> str:
    hint = ""
    stem = missing.replace(".", os.sep) + ".py"
    if os.path.isfile(stem):
        hint = f"; there is a file: {stem}:NAME"
    return f"{text}: no module named {missing!r} (current folder: {os.getcwd()}){hint}"


def _no_such_name(ref: FuncRef, module: ModuleType) -> str:
    place = ref.text.rpartition(":")[0] or (ref.path and os.path.basename(ref.path)) or ref.module
    names = _functions(module)
    wanted = ref.names.split(".")[-1]
    if wanted:
        from difflib import SequenceMatcher

        # Sorting is stable: names equally far away stay in the order of the file.
        names.sort(key=lambda name: -SequenceMatcher(None, name.lower(), wanted.lower()).ratio())
        said = f"{ref.text}: there is no {ref.names!r} in {place}"
    else:
        said = f"{ref.text}: which function? Write {place}:NAME"
    if not names:
        return f"{said}; it defines no public function"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{said}; it has: {', '.join(names[:_SHOWN])}{more}"


def _functions(module: ModuleType) -> list[str]:
    """Return the public callables that the module defines; if none, those that it imports."""
    public = [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value)
    ]
    own = [name for name, value in public if getattr(value, "__module__", None) == module.__name__]
    return own or [name for name, _ in public]


def _importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _load_file(path: str) -> ModuleType:
    """Load a file under its own stem, so that it is one module with what its siblings import."""
    name = os.path.splitext(os.path.basename(path))[0]
    if not _is_free(name, path):
        name += "_py"
    loaded = sys.modules.get(name)
    if loaded is not None and _is_file(loaded, path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its code runs, as the import statement does
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_free(name: str, path: str) -> bool:
    """Whether a file may be the module `name`: taken over, `json` would break its other users.

    The answer must be the same in the command and in all workers, whatever they have imported.
    """
    if name in sys.stdlib_module_names or name in {"__main__", "mpsched"}:
        return False
    loaded = sys.modules.get(name)
    return loaded is None or _is_file(loaded, path)


def _is_file(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(path)
