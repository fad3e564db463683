"""`--reduce`: which values are folded with which, and when.

The tree's shape depends on the number of inputs alone, so the answer does not depend on the
number of workers or on timing. See README.md, "`--reduce FUNC`".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FAN_IN", "Fold", "Tree"]

FAN_IN: Final = 8


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold that can be made now: in a worker, from left to right."""

    level: int
    index: int
    parts: tuple[bytes, ...]
    last: bool
    """Whether its result is the answer."""


class Tree:
    """Takes values by position in any order, and says what can be folded. Main thread only.

    Node (0, i) is input i. Node (level, k) folds nodes (level - 1, 8 k) to (level - 1, 8 k + 7), or
    fewer at the end. A node whose inputs have all failed has no value: None. A node with one value
    has that value, without a fold. The top is the first level that has one node.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], dict[int, bytes | None]] = {}
        self._count: int | None = None
        self.is_empty = False
        """Whether it is known that there is no value at all."""

    def add(self, level: int, index: int, value: bytes | None) -> list[Fold]:
        """Take the value of a node; return the folds that it makes possible.

        Args:
            level: 0 for an input; that of the `Fold` for its result.
            index: The input's position; that of the `Fold`.
            value: The pickle; None if the input failed.
        """
        while not self._is_top(level):
            level, index, child = level + 1, index // FAN_IN, index
            self._children.setdefault((level, index), {})[child] = value
            parts = self._complete(level, index)
            if parts is None:
                return []
            if len(parts) > 1:
                return [Fold(level, index, tuple(parts), last=False)]
            value = parts[0] if parts else None
        if value is None:
            self.is_empty = True
            return []
        # The top may have been folded before it was known to be the top: the answer is encoded in
        # a fold of its own, of one value.
        return [Fold(level, index, (value,), last=True)]

    def end(self, count: int) -> list[Fold]:
        """Say how many inputs there were; return the folds that this makes possible."""
        self._count = count
        folds: list[Fold] = []
        for level, index in sorted(self._children):
            if (level, index) not in self._children:
                continue  # `add` has completed it, from below
            parts = self._complete(level, index)
            if parts is None:
                continue
            if len(parts) > 1:
                folds.append(Fold(level, index, tuple(parts), last=False))
            else:
                folds += self.add(level, index, parts[0] if parts else None)
        return folds

    def _is_top(self, level: int) -> bool:
        return self._count is not None and self._size(level) == 1

    def _size(self, level: int) -> int:
        """Return the number of nodes of a level, the number of inputs being known."""
        assert self._count is not None
        return -(-self._count // int(FAN_IN**level))

    def _complete(self, level: int, index: int) -> list[bytes] | None:
        """Return a node's values in order, if all its children have come, and forget them."""
        expected = FAN_IN
        if self._count is not None:
            expected = min(FAN_IN, self._size(level - 1) - FAN_IN * index)
        children = self._children[level, index]
        if len(children) < expected:
            return None
        del self._children[level, index]
        return [value for child in sorted(children) if (value := children[child]) is not None]
