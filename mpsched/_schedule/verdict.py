"""What is to be told of a version that is over, once no lock is held. See README.md, "Telling"."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._schedule.handle import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._schedule.book import Book
    from mpsched._schedule.handle import TaskHandle
    from mpsched._schedule.history import Run

_NOTE: Final = "scheduled as "


@final
class Verdict:
    """The end of a version: its handle becomes final, its failure is reported. Told once.

    It can be put among the pool's finished futures, so that the pool's own thread tells it.

    Attributes:
        who: the thread that made it, and is to tell it.
    """

    __slots__ = (
        "_book",
        "_cancelled",
        "_error",
        "_handle",
        "_raw",
        "_reported",
        "_run",
        "_settled",
        "_value",
        "who",
    )

    def __init__(
        self,
        book: Book,
        run: Run,
        handle: TaskHandle[Any],
        value: Any,
        error: BaseException | None,
        *,
        cancelled: bool,
        raw: Callable[[], tuple[Any, BaseException | None]] | None = None,
    ) -> None:
        self._book = book
        self._run = run
        self._handle = handle
        self._value = value
        self._error = error
        self._cancelled = cancelled
        self._raw = raw
        self._settled = False
        self._reported = False
        self.who = threading.get_ident()

    def tell(self) -> None:
        """Settle the handle, which runs its callbacks, and report a failure."""
        error, book = self._error, self._book
        outer = telling()
        try:
            inside.telling = book
            if not self._settled:
                if error is not None:
                    note(error, f"{_NOTE}{self._handle.describe()}, attempt {self._run.attempt}")
                # Once more, after an interrupt, it wakes who waits, and nothing else.
                settle(self._handle, self._value, error, raw=self._raw, cancelled=self._cancelled)
                self._settled = True
            if not self._reported:
                self._reported = True
                if error is not None and self._run.outcome != "cancelled":
                    book.report(self._run, error, self._handle.id)
        finally:
            inside.telling = outer
        self._handle.verdict = None
        book.told(self)

    def _settle(self, _value: Any, _raw: Any, *, failed: bool = False) -> None:
        """As the pool's own thread calls a finished future."""
        self.tell()


inside = threading.local()


def telling() -> Book | None:
    """Return whose verdict the calling thread is telling: it is in a callback, or in `on_error`."""
    return getattr(inside, "telling", None)


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception of the user's, which may have notes of its own making."""
    with contextlib.suppress(Exception):
        if any(one.startswith(_NOTE) for one in getattr(error, "__notes__", ())):
            return  # the same object was raised before: it would collect one note for each time
        error.add_note(text)
