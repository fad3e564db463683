"""What a root knows of the schedule that it comes from: its id there, and its version.

See README.md, "Origin". It travels in the frame of a FLAG_CONTEXT root (table.py), where whoever runs the
root or a child of it can look it up, when somebody asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks.table import FLAG_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mpsched._tasks.table import TaskTable

_PLAIN: Final = frozenset({type(None), bool, int, float})
_MOST: Final = 1000
"""Characters, bytes or bits of what is sent as it is."""


@final
class Origin:
    """Where a root comes from.

    Attributes:
        version: the schedule's version, above 0.
        task_id: the id that it was scheduled under; its label if it is not plain.
        label: how messages name the id.
    """

    __slots__ = ("label", "task_id", "version")

    def __init__(self, version: int, who: tuple[Any] | str) -> None:
        self.version = version
        self.task_id: Any = who if isinstance(who, str) else who[0]
        self.label = who if isinstance(who, str) else f"{who[0]!r:.60}"


def who(task_id: Hashable, label: Callable[[Hashable], str]) -> tuple[Hashable] | str:
    """Return what is sent of an id: `(id,)` if it is of plain values, which no user's code pickles; else its label."""
    return (task_id,) if is_plain(task_id) else label(task_id)


def is_plain(task_id: Any) -> bool:
    """Whether an id is a short value of a plain type, or a tuple of a few such."""
    kind = type(task_id)
    if kind is int:
        return bool(task_id.bit_length() <= _MOST)
    if kind is str or kind is bytes:
        return len(task_id) <= _MOST
    if kind is tuple:
        return len(task_id) <= 8 and all(
            type(one) is not tuple and is_plain(one) for one in task_id
        )
    return kind in _PLAIN


def of(table: TaskTable, handle: int) -> Origin | None:
    """Return where the root of an entry comes from; None if it was submitted, not scheduled."""
    ident = table.ident[handle]
    if not table.meta[handle] & FLAG_CONTEXT:
        return None
    import pickle

    try:
        version, sent = pickle.loads(table.read_frame(handle))[3:5]
        found = Origin(version, sent) if version else None
    except Exception:
        # The root's worker has died under this child of it, and the entry is another's: half a frame.
        return None
    return found if table.ident[handle] == ident else None
