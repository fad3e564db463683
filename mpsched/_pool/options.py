"""What `ex.options(...)` takes: every key, its default and its reach."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, NamedTuple

from mpsched._base import keywords
from mpsched.errors import TaskTimeout, WorkerDied


class Options(NamedTuple):
    """How one task is to be run. Everything applies to `submit` and `run`, and per item to `map`.

    Attributes:
        priority: higher runs first among what waits in the parent; default 0.
        timeout: seconds a run may take, from its start; then its signal is set and, `grace` seconds
            later, its worker ended. None: no limit.
        grace: seconds between the signal and the end of the worker; default 0.
        retries: further attempts after a failure that `retry_on` names; default 0.
        retry_on: exception classes; by default deaths of the worker and killing time limits.
        name: shown in errors and logs instead of the function's name.
        on_cancel: what cancelling the awaitable of a running task does: "signal" sets
            `current_task().cancelled`, "kill" ends its worker.
        rng: seed; each task (in `map`: each item) gets its own `current_task().rng`, which depends on
            the seed and on its number in this options object (its index) only.
        blocking: it mostly waits, so the pool runs a spare worker meanwhile, as for a task that is one
            block of `mpsched.blocking()`.
    """

    priority: int = 0
    timeout: float | None = None
    grace: float = 0.0
    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = (WorkerDied, TaskTimeout)
    name: str | None = None
    on_cancel: Literal["signal", "kill"] = "signal"
    rng: int | None = None
    blocking: bool = False

    def checked(self) -> Options:
        """Return these options with `retry_on` as a tuple.

        Raises:
            TypeError, ValueError: One of them is out of range; the message names it.
        """
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority must be an int, not {self.priority!r}")
        if self.timeout is not None:
            self._seconds("timeout", self.timeout)
            if self.timeout == 0:
                raise ValueError("timeout must be above 0 seconds; None means no limit")
        self._seconds("grace", self.grace)
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ValueError(f"retries must be an int of at least 0, not {self.retries!r}")
        classes = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        for one in classes:
            if not (isinstance(one, type) and issubclass(one, BaseException)):
                raise TypeError(f"retry_on must hold exception classes, not {one!r}")
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name must be a str or None, not {self.name!r}")
        if self.on_cancel not in {"signal", "kill"}:
            raise ValueError(f'on_cancel must be "signal" or "kill", not {self.on_cancel!r}')
        if self.rng is not None and (isinstance(self.rng, bool) or not isinstance(self.rng, int)):
            raise TypeError(f"rng must be an int seed or None, not {self.rng!r}")
        if not isinstance(self.blocking, bool):
            raise TypeError(f"blocking must be a bool, not {self.blocking!r}")
        return self._replace(retry_on=classes)

    @staticmethod
    def _seconds(name: str, value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number of seconds, not {value!r}")
        if math.isnan(value) or value < 0 or math.isinf(value):
            raise ValueError(
                f"{name} must be a finite number of seconds of at least 0, not {value!r}"
            )

    @property
    def single(self) -> bool:
        """Whether each item of a map must be a root of its own."""
        return self.timeout is not None or self.retries > 0 or self.rng is not None or self.blocking


DEFAULT: Final = Options()
KEYS: Final = Options._fields


_OF_MAP: Final = {
    name: f"it is an argument of the map itself: map(fn, items, {name}=...)"
    for name in ("chunksize", "buffersize", "ordered", "return_exceptions", "progress")
}
OF_OPTIONS: Final = {
    name: f"it is an option: ex.options({name}=...).map(fn, items)"
    for name in KEYS
    if name != "timeout"
}
"""What a map may be given by mistake, and how it is written."""


def changed(base: Options, changes: dict[str, Any]) -> Options:
    """Return `base` with `changes`; an unknown key is a TypeError that names the nearest one."""
    for key in changes:
        if key not in KEYS:
            raise keywords.unknown("options() got an unknown option", key, KEYS, _OF_MAP)
    return base._replace(**changes).checked()
