"""From the arguments of an executor to the options of a pool: what each may be, and what it means."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final

from mpsched._base import cpus
from mpsched._base.settings import Settings
from mpsched._pool.core import PoolOptions
from mpsched._pool.launch import METHODS
from mpsched.errors import PoolInWorker

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAST_RSS: Final = 1 << 20


def checked(
    max_workers: int | None,
    mp_context: Any,
    initializer: Callable[..., Any] | None,
    initargs: tuple[Any, ...],
    *,
    preload: tuple[str, ...] | list[str],
    max_tasks_per_child: int | None,
    max_rss: int | None,
    max_rss_hard: int | None,
    max_pending: int | None,
    on_full: str,
    aging: float,
    settings: Settings | None,
) -> PoolOptions:
    """Return the options of a pool; `workers` is 0 for one without processes.

    Raises:
        TypeError, ValueError: An argument is out of range; the message says which and why.
    """
    workers = _workers(max_workers)
    method = _method(mp_context)
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer must be callable, not {initializer!r}")
    if not isinstance(initargs, tuple | list):
        raise TypeError(f"initargs must be a tuple of arguments, not {initargs!r}")
    for name, value in (("max_tasks_per_child", max_tasks_per_child), ("max_pending", max_pending)):
        _count(name, value, 1, "an int of at least 1")
    for name, value in (("max_rss", max_rss), ("max_rss_hard", max_rss_hard)):
        _count(name, value, _LEAST_RSS, "a number of bytes, at least 1048576")
    if max_rss is not None and max_rss_hard is not None and max_rss > max_rss_hard:
        raise ValueError(f"max_rss ({max_rss}) must not exceed max_rss_hard ({max_rss_hard})")
    if on_full not in {"wait", "raise"}:
        raise ValueError(f'on_full must be "wait" or "raise", not {on_full!r}')
    if isinstance(preload, str):  # type: ignore[unreachable]
        raise TypeError(f"preload must be a sequence of module names, not {preload!r}")
    if not (isinstance(aging, int | float) and 0 <= aging < math.inf):
        raise ValueError(f"aging must be a finite number of at least 0, not {aging!r}")
    return PoolOptions(
        workers=workers,
        method=method,
        initializer=initializer,
        initargs=tuple(initargs),
        preload=tuple(preload),
        max_tasks=max_tasks_per_child or 0,
        max_rss=max_rss,
        max_rss_hard=max_rss_hard,
        max_pending=max_pending,
        raise_when_full=on_full == "raise",
        aging=aging,
        settings=settings or Settings(),
    )


def _count(name: str, value: int | None, least: int, what: str) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or value < least
    ):
        raise ValueError(f"{name} must be None or {what}, not {value!r}")


def _workers(max_workers: int | None) -> int:
    if max_workers is None:
        return cpus.default_workers()
    if isinstance(max_workers, bool) or not isinstance(max_workers, int):
        raise TypeError(f"max_workers must be an int or None, not {max_workers!r}")
    if not 0 <= max_workers <= 1024:
        raise ValueError(f"max_workers must be from 0 to 1024, not {max_workers}")
    return max_workers


def _method(mp_context: Any) -> str:
    if mp_context is None:
        return "forkserver" if sys.platform == "linux" else "spawn"
    method = mp_context
    if not isinstance(mp_context, str):
        get = getattr(mp_context, "get_start_method", None)
        method = get() if callable(get) else mp_context
    if method not in METHODS:
        raise ValueError(f"mp_context must be one of {', '.join(METHODS)}, not {mp_context!r}")
    return str(method)


def refuse_while_a_worker_starts() -> None:
    """Raise PoolInWorker while a worker imports a module.

    A pool made there would start workers that import it again.
    """
    worker = sys.modules.get("mpsched._worker.boot")
    if worker is None or worker.role() == "parent":
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            raise PoolInWorker(
                "a pool is made while a worker imports a module: put it under "
                "`if __name__ == '__main__':` or into a function of that module"
            )
        following = frame.f_back
        if following is None:
            return
        frame = following
