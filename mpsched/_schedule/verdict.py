"""What is to be told of a version that is over, once no lock is held. See README.md, "Telling"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from mpsched._schedule.handle import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.history import Run


@final
class Verdict:
    """The end of a version: its handle becomes final, its failure is reported. Told once.

    It can be put among the pool's finished futures, so that the pool's own thread tells it.
    """

    __slots__ = ("_cancelled", "_error", "_handle", "_report", "_run", "_told", "_value")

    def __init__(
        self,
        report: Callable[[Run, BaseException | None], None],
        run: Run,
        handle: TaskHandle[Any],
        value: Any,
        error: BaseException | None,
        *,
        cancelled: bool,
    ) -> None:
        self._report = report
        self._run = run
        self._handle = handle
        self._value = value
        self._error = error
        self._cancelled = cancelled
        self._told = False

    def tell(self) -> None:
        """Settle the handle, which runs its callbacks, and report a failure."""
        if self._told:
            return
        self._told = True
        error = self._error
        if error is not None:
            error.add_note(f"scheduled as {self._handle.describe()}, attempt {self._run.attempt}")
        settle(self._handle, self._value, error, cancelled=self._cancelled)
        if error is not None and self._run.outcome != "cancelled":
            self._report(self._run, error)

    def _settle(self, _value: Any, _raw: Any, *, failed: bool = False) -> None:
        """As the pool's own thread calls a finished future."""
        self.tell()
