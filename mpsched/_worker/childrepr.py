"""What a child's handle says of itself; loaded by the first `repr`."""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mpsched._worker import away, long
from mpsched._worker.hot import _done

if TYPE_CHECKING:
    from mpsched._worker.hot import Handle

_PHASES: Final = {
    away.THREADED: "running",
    away.PUBLISHING: "waiting",
    away.PUBLISHED: "given to another worker",
    away.PINNED: "waiting; it cannot be pickled",
    away.INLINE: "running",
    away.FETCHED: "done",
    away.DONE: "done",
    away.FAILED: "failed",
}


def describe(handle: Handle[Any]) -> str:
    """Return the `repr` of a handle: whose call it is, and what has become of it."""
    record = handle._fn
    if type(record) is away.Away:
        return f"<Handle of {_name_of(record.fn, record.x, record.rest)}, {_PHASES[record.kind]}>"
    phase = "done" if record is _done else "waiting"
    return f"<Handle of {_name_of(record, handle._x, handle._rest)}, {phase}>"


def _name_of(fn: Any, x: Any, rest: tuple[Any, ...]) -> str:
    if fn is None or fn is _done:
        return "a child"
    fn, _, _ = long.call_of(fn, x, rest)
    return getattr(fn, "__qualname__", type(fn).__qualname__)
