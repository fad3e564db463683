"""Values that travel together and yet apart: the items and the results of a map.

See README.md, "Sealed values". Pickled as one list, values would share what they refer to: a task
that changes its item would change that of its neighbours, and a result would be what its object was
when the last of the block was done. So whatever can be changed is pickled by itself, when it is
taken; exact plain types travel as one list, which is much cheaper.
"""

from __future__ import annotations

import marshal
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._tasks import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NUMBERS: Final = frozenset({type(None), bool, int, float})
"""Types of which `marshal` makes as little as pickle, in a third of the time when its code is cold."""
# Its version 2 writes no references: nothing in such rows is worth one, and to look for them is dear.
_MARSHAL: Final = 2
MARSHALLED: Final = ord("[")
"""The first byte of a marshalled list; that of a pickle is 0x80."""


class Sealed(NamedTuple):
    """One pickled value: in-band bytes, large buffers, and what must be kept until it is loaded."""

    data: bytes
    buffers: list[pickle.PickleBuffer]
    holds: list[Any]


def all_plain(values: Iterable[Any]) -> bool:
    """Whether all values have exactly a plain type, so that nobody can change them."""
    return set(map(type, values)) <= codec.PLAIN_TYPES


def pack(values: Sequence[Any]) -> Sealed:
    """Pickle a row of values, each plain or `Sealed`."""
    if all_plain(values):
        return Sealed(pickle.dumps((True, values), 5), [], [])
    entries = []
    buffers: list[pickle.PickleBuffer] = []
    holds: list[Any] = []
    for value in values:
        if type(value) is Sealed:
            entries.append((value.data, len(value.buffers)))
            buffers += value.buffers
            holds += value.holds
        else:
            entries.append((pickle.dumps(value, 5), 0))
    return Sealed(pickle.dumps((False, entries), 5), buffers, holds)


def pack_plain(values: Sequence[Any]) -> bytes:
    """Pickle a row whose values are plain, or tuples of plain ones."""
    return pickle.dumps((True, values), 5)


def pack_numbers(values: list[Any]) -> bytes:
    """Marshal a row of which all types are in `NUMBERS`."""
    return marshal.dumps(values, _MARSHAL)


def load_numbers(data: bytes) -> list[Any]:
    """Return the values of a row that `pack_numbers` has made: its first byte is `MARSHALLED`."""
    values: list[Any] = marshal.loads(data)  # noqa: S302 - of our own worker, as all that is unpickled
    return values


@final
class Row:
    """A packed row at its receiver.

    Attributes:
        plain: the values, if they travelled as one list; else None, and `load` gives them singly.
    """

    __slots__ = ("_buffers", "_entries", "_starts", "plain")

    def __init__(self, data: Any, buffers: Sequence[Any] = ()) -> None:
        plain, values = (True, load_numbers(data)) if data[0] == MARSHALLED else pickle.loads(data)
        self.plain: list[Any] | None = values if plain else None
        self._entries: list[tuple[bytes, int]] = [] if plain else values
        self._buffers = buffers
        self._starts: list[int] = []
        if buffers:
            at = 0
            for _data, count in self._entries:
                self._starts.append(at)
                at += count

    def __len__(self) -> int:
        return len(self._entries if self.plain is None else self.plain)

    def load(self, index: int) -> Any:
        """Return one value, unpickled now.

        Raises:
            DecodeError: it cannot be unpickled.
        """
        if self.plain is not None:
            return self.plain[index]
        data, count = self._entries[index]
        if not count:
            return codec.decode(data)
        start = self._starts[index]
        return codec.decode(data, self._buffers[start : start + count])
