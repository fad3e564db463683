"""Who was elsewhere: a worker that finishes other roots does not run what it is said to run.

See README.md, "Audit". Supervisor only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._shm import layout as lay
from mpsched._tasks import state as st

if TYPE_CHECKING:
    from mpsched._shm.layout import Layout

_TOLD: Final = 2
"""Changes of EXECUTED that prove nothing: one told before the first look saw the work in that worker's
hands, one of roots that were finished before, and told of later by the helper."""
_CLAIMED_AHEAD: Final = 1024
"""More roots than a worker ever claims at once: so many may be run before one that is claimed."""


class Held(NamedTuple):
    """Work, and the state word that says who has it."""

    handle: int
    ident: int
    attempt: int
    word: int


class _Seen(NamedTuple):
    """What a worker had told when it was last looked at, and since it is said to have some work.

    Attributes:
        incarnation: which process of this index.
        executed: its EXECUTED.
        changes: how often that has changed.
        base: what it was after the last change that proves nothing.
    """

    incarnation: int
    executed: int
    changes: int
    base: int


@final
class Alibis:
    """Compares what workers are said to have in hand with how many roots they finish meanwhile.

    A worker runs one root at a time, and a child of another's root only while it has none, or within
    the same. So while it runs one, the number of those that it has finished stands still.
    """

    def __init__(self, words: Any, layout: Layout) -> None:
        self._words = words
        self._blocks = [layout.block(worker) for worker in range(layout.workers)]
        self._counts: list[tuple[int, int]] = []
        self._before: dict[Held, _Seen] = {}
        self._seen: dict[Held, _Seen] = {}

    def begin(self) -> None:
        """Read the counts; before anything is read of what is held: what is finished later is not in them."""
        self._before, self._seen = self._seen, {}
        words = self._words
        self._counts = [
            (words[block + lay.B_INCARNATION], words[block + lay.B_EXECUTED])
            for block in self._blocks
        ]

    def elsewhere(self, held: Held) -> bool:
        """Whether the worker that `held` names has done too much else, at this look and those before.

        To be asked once in each look that sees the work in that worker's hands, not finished.
        """
        incarnation, executed = self._counts[held.word >> 8]
        seen = self._before.get(held)
        if seen is None or seen.incarnation != incarnation:
            seen = _Seen(incarnation, executed, 0, executed)
        elif executed != seen.executed:
            changes = seen.changes + 1
            base = executed if changes <= _TOLD else seen.base
            seen = _Seen(incarnation, executed, changes, base)
        self._seen[held] = seen
        ahead = _CLAIMED_AHEAD if held.word & 255 == st.CLAIMED and held.attempt else 0
        return seen.changes > _TOLD and executed - seen.base > ahead
