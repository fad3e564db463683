"""How ids ended, as long as it is remembered. See README.md, "What is remembered"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mpsched._timers.entry import Entry


@final
class Ends:
    """The last ends: at least `most` ids, at most twice as many.

    Two dicts, of which the older is thrown away when the newer is full: an end costs one store. (One
    dict in order of age would look for its first key among all that were taken from its front.)

    Attributes:
        newer: the last ends; the heap's `cancel` writes here, and calls `turn` when it is full.
        most: how many make it full.
    """

    __slots__ = ("_older", "most", "newer")

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self.newer: dict[Hashable, Entry] = {}
        self._older: dict[Hashable, Entry] = {}

    def put(self, task_id: Hashable, entry: Entry) -> None:
        """Remember the end of the newest version of an id."""
        self.newer[task_id] = entry
        if len(self.newer) >= self.most:
            self.turn()

    def turn(self) -> None:
        """Begin a new dict, and throw away the one before the last."""
        self._older, self.newer = self.newer, {}

    def get(self, task_id: Hashable) -> Entry | None:
        """Return the last end of an id, or None."""
        entry = self.newer.get(task_id)
        return entry if entry is not None else self._older.get(task_id)

    def all(self) -> list[Entry]:
        """Return what is remembered."""
        return [*self.newer.values(), *self._older.values()]

    def __len__(self) -> int:
        return len(self.newer.keys() | self._older.keys())
