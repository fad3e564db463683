"""What becomes of failures: `on_error` is called, else they are logged. See README.md, "Telling"."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._schedule.history import Run

_LOG = logging.getLogger("mpsched")


@final
class Report:
    """What becomes of failures: `on_error` is called, else they are logged."""

    def __init__(self, on_error: Callable[[Run, BaseException], object] | None) -> None:
        self._on_error = on_error

    def __call__(self, run: Run, error: BaseException, label: str) -> None:
        if self._on_error is None:
            _LOG.error(
                "task %s, version %s, attempt %s: %s",
                label,
                run.version,
                run.attempt,
                run.outcome,
                exc_info=error,
            )
            return
        try:
            self._on_error(run, error)
        except BaseException:
            # In the pool's own thread there is nobody whom SystemExit could concern.
            _LOG.exception("on_error raised, for task %s", label)
