"""What a caller gave, before anything is done with it: refused with the value and a way out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mpsched._timers.instants import finite

if TYPE_CHECKING:
    from collections.abc import Callable

_COROUTINE: Final = 0x80
"""The flag of code that was written with `async def` (inspect.CO_COROUTINE)."""

_CHOICES: Final = {
    "if_exists": ("replace", "keep", "error"),
    "if_running": ("let_finish", "cancel", "wait", "error"),
    "queued": ("run", "keep", "cancel"),
}


def choose(name: str, value: object) -> None:
    """Refuse what is none of the words that an argument may be."""
    if value not in _CHOICES[name]:
        known = ", ".join(repr(one) for one in _CHOICES[name])
        raise ValueError(f"{name} must be one of {known}, not {value!r}")


def function(fn: Any) -> None:
    """Refuse a coroutine function: whoever calls it only gets a coroutine, which nobody runs."""
    called = fn
    while isinstance(called, functools.partial):
        called = called.func
    code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
    if code is not None and code.co_flags & _COROUTINE:
        raise TypeError(
            f"{fn!r:.80} is a coroutine function, which would make a coroutine that nobody runs: schedule "
            "a plain function, which may call asyncio.run(...)"
        )


def seconds(name: str, value: float | None) -> float | None:
    """Return a number of seconds to wait, at least 0; None: no limit."""
    return None if value is None else max(0.0, finite(name, value))


def hashable(task_id: object) -> None:
    """Refuse an id that no table can have."""
    try:
        hash(task_id)
    except TypeError as problem:
        raise TypeError(f"task_id must be hashable: {problem}") from None


def arguments(
    fn: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
    """Return the arguments of a call as a tuple and a dict.

    Raises:
        TypeError: they are none.
    """
    if type(args) is not tuple:
        if not isinstance(args, tuple | list):
            name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
            raise TypeError(
                f"args must be a tuple of the arguments of {name}, not {args!r:.60}; for one argument "
                "args=(x,)"
            )
        args = tuple(args)
    if kwargs is None:
        return args, None
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise TypeError(f"kwargs must be a dict from names to values, not {kwargs!r:.60}")
    return args, dict(kwargs)


def executor(
    given: Any,
    kind: type,
    workers: int | None,
    ready_order: str,
    aging: float,
    groups: Mapping[str, float] | None,
) -> None:
    """Refuse an executor that a scheduler cannot run on, and what it decides itself."""
    if workers is not None:
        raise ValueError("give either workers or executor, which has its own")
    pool: Any = getattr(given, "_pool", None)
    if not isinstance(given, kind):
        raise TypeError(f"executor must be a WorkStealingExecutor, not {given!r:.60}")
    if not pool.width:
        raise ValueError(
            "executor has no workers (max_workers=0): use Scheduler(workers=0) and run_due(), or jobs "
            "with where='thread'"
        )
    if ready_order != "run_at" or aging or groups:
        raise ValueError(
            "a given executor has its own order (highest priority first, with its own aging), so "
            "ready_order, aging and groups are for a Scheduler with workers of its own"
        )
    if pool.refusal is not None:
        raise pool.refused()
