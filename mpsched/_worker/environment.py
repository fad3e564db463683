"""What a worker takes over from the parent as it was when the pool was made; see README.md, "Boot".

`BootSpec` is taken by `snapshot` in the parent, and used for every worker, also for one that is
started an hour later.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

DEFAULT_ENTRY = "mpsched._worker.main:main"

# Numeric libraries start as many threads as there are cores; W workers would start W times as many.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Filter(NamedTuple):
    """One entry of `warnings.filters`, its category named and not imported."""

    action: str
    message: re.Pattern[str] | str | None
    category: tuple[str, str]  # module, qualified name
    module: re.Pattern[str] | str | None
    line: int


class Console(NamedTuple):
    """A handler of the root logger that writes to standard error or output, as `basicConfig` makes it."""

    output: bool  # standard output, not error
    level: int
    text: str | None  # None: without a formatter
    dates: str | None
    style: str


class BootSpec(NamedTuple):
    """All that a worker needs to start. Pickled once by the parent; never changed.

    Attributes:
        parent_pid: the process that made the pool.
        fds: name -> descriptor number; the same number in every worker.
        config: for the entry; opaque here.
        entry: `module:function`, called as `function(spec, index, incarnation)`.
        preload: modules imported before the entry runs.
        flags: command line of the interpreter, such as `-X dev`.
        cwd: None where the parent's directory no longer existed.
        log_level: of the root logger; None where the parent has not set one.
        consoles: the handlers of the root logger that write to a standard stream.
    """

    parent_pid: int
    fds: dict[str, int]
    config: bytes
    entry: str
    preload: tuple[str, ...]
    flags: tuple[str, ...]
    sys_path: tuple[str, ...]
    cwd: str | None
    environ: dict[str, str]
    argv: tuple[str, ...]
    recursion_limit: int
    filters: tuple[Filter, ...]
    warn_options: tuple[str, ...]
    log_level: int | None
    consoles: tuple[Console, ...]


def snapshot(
    *,
    fds: Mapping[str, int] | None = None,
    config: bytes = b"",
    preload: Sequence[str] = (),
    entry: str = DEFAULT_ENTRY,
) -> BootSpec:
    """Take the parent's working environment as it is now. Parent only.

    Raises:
        TypeError: `preload` is one text, or holds something else than module names.
    """
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
        raise TypeError(f"preload must be a sequence of module names, not {preload!r}")
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = None
    entries: list[Any] = sys.path  # a program may have put anything there
    texts = [p for p in entries if isinstance(p, str)]
    return BootSpec(
        parent_pid=os.getpid(),
        fds=dict(fds or {}),
        config=config,
        entry=entry,
        preload=tuple(preload),
        flags=_interpreter_flags(),
        # An empty entry means "the current directory": the worker's may change while tasks run.
        sys_path=tuple(p or cwd or "." for p in texts),
        cwd=cwd,
        environ=_with_thread_variables(os.environ),
        argv=tuple(sys.argv) if hasattr(sys, "argv") else (),
        recursion_limit=sys.getrecursionlimit(),
        filters=_filters(),
        warn_options=tuple(sys.warnoptions),
        log_level=_log_level(),
        consoles=_consoles(),
    )


def apply(spec: BootSpec) -> None:
    """Make this process look like the parent did: path, directory, variables, warnings, logging.

    Raises:
        OSError: The working directory does not exist any more; the message names it.
    """
    sys.path[:] = spec.sys_path
    sys.argv[:] = spec.argv
    os.environ.update({k: v for k, v in spec.environ.items() if os.environ.get(k) != v})
    if spec.cwd is not None:
        os.chdir(spec.cwd)
    sys.setrecursionlimit(spec.recursion_limit)
    sys.warnoptions[:] = spec.warn_options
    warnings.resetwarnings()  # also makes what modules remember of older filters void
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # typeshed: a Sequence
    filters += [
        (f.action, f.message, _category(*f.category), f.module, f.line) for f in spec.filters
    ]
    if spec.log_level is not None or spec.consoles:
        import logging

        root = logging.getLogger()
        if spec.log_level is not None:
            root.setLevel(spec.log_level)
        if not root.handlers:  # a forked process has the parent's own
            for console in spec.consoles:
                root.addHandler(_handler(console))


def _with_thread_variables(environ: Mapping[str, str]) -> dict[str, str]:
    # OMP_NUM_THREADS speaks for all of these libraries, but each of them prefers its own variable:
    # where the user has set the general one, none is added.
    result = dict(environ)
    if "OMP_NUM_THREADS" not in result:
        for name in _THREAD_VARIABLES:
            result.setdefault(name, "1")
    return result


def _interpreter_flags() -> tuple[str, ...]:
    """Return the options under which another interpreter behaves like this one.

    `-W` is not among them: the filters themselves are taken over, and a category that only the
    program's own path can import would be refused at start.
    """
    flags = sys.flags
    letters = "b" * flags.bytes_warning + "O" * flags.optimize + "v" * flags.verbose
    letters += "d" * flags.debug + "S" * flags.no_site
    if sys.dont_write_bytecode:
        letters += "B"
    if flags.isolated:
        letters += "I"
    else:
        letters += "E" * flags.ignore_environment + "s" * flags.no_user_site
        letters += "P" * flags.safe_path
    result = ["-" + letters] if letters else []
    for name, value in sys._xoptions.items():  # noqa: SLF001 - its documented name
        result += ["-X", name if value is True else f"{name}={value}"]
    return tuple(result)


def _filters() -> tuple[Filter, ...]:
    result = []
    action: Any
    message: Any
    for action, message, category, module, line in warnings.filters:
        patterns = all(p is None or isinstance(p, (str, re.Pattern)) for p in (message, module))
        if patterns and isinstance(category, type):
            named = (category.__module__, category.__qualname__)
            result.append(Filter(action, message, named, module, line))
    return tuple(result)


def _log_level() -> int | None:
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    level: int = logging.getLogger().level
    return None if level == logging.WARNING else level


def _consoles() -> tuple[Console, ...]:
    """Return what a worker can write as well as the parent.

    Only what `basicConfig` makes: a handler with filters, with a formatter of the program's own, or for a
    file, a network or a test does something that nobody but the parent should do, or that cannot be told.
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return ()
    found = []
    for handler in logging.getLogger().handlers:
        form = handler.formatter
        plain = type(handler) is logging.StreamHandler and not handler.filters
        if not plain or handler.stream not in (sys.stderr, sys.stdout):
            continue
        output, level = handler.stream is sys.stdout, handler.level
        if form is None:
            found.append(Console(output, level, None, None, "%"))
        elif type(form) is logging.Formatter:
            style = {
                logging.PercentStyle: "%",
                logging.StrFormatStyle: "{",
                logging.StringTemplateStyle: "$",
            }.get(type(form._style))  # noqa: SLF001 - a formatter tells its style in no other way
            if style is not None:
                found.append(Console(output, level, form._fmt, form.datefmt, style))  # noqa: SLF001
    return tuple(found)


def _handler(console: Console) -> logging.Handler:
    import logging

    handler = logging.StreamHandler(sys.stdout if console.output else sys.stderr)
    handler.setLevel(console.level)
    if console.text is not None:
        style: Any = console.style
        handler.setFormatter(logging.Formatter(console.text, console.dates, style))
    return handler


def _category(module: str, name: str) -> type[Warning]:
    """Return the class, or where its module is not imported a stand-in that matches it by name.

    A filter for a category of pandas must not make every worker import pandas before its first
    task, and must hold once a task has imported it. `warnings` asks with `issubclass`.
    """
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Warning):
        return found
    return cast("type[Warning]", _ByName(name, (Warning,), {"wanted": (module, name)}))


class _ByName(type):
    wanted: tuple[str, str]

    def __subclasscheck__(cls, other: type) -> bool:
        return any((c.__module__, c.__qualname__) == cls.wanted for c in other.__mro__)
