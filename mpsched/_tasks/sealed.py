"""Values that travel together and yet apart: the items and the results of a map.

See README.md, "Sealed values". Pickled as one list, values would share what they refer to: a task
that changes its item would change that of its neighbours, and a result would be what its object was
when the last of the block was done. So whatever can be changed is pickled by itself, when it is
taken, or copied; what nobody can change travels as one list, which is much cheaper.
"""

from __future__ import annotations

import itertools
import marshal
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._tasks import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_PLAIN: Final = codec.PLAIN_TYPES
_LOOKED_INTO: Final = frozenset({tuple, list, dict, set})
_TUPLES: Final = frozenset({tuple})
_FEW: Final = 64
"""Elements of a container that is looked into: with more, pickling it takes no longer than the look."""

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
    """Whether all values have exactly a plain type."""
    return set(map(type, values)) <= _PLAIN


def constant(value: Any) -> bool:
    """Whether nobody can change it: it is plain, or a small tuple of such, or of tuples of such."""
    kind = type(value)
    return kind in _PLAIN or (kind is tuple and len(value) <= _FEW and _constants(value))


def _constants(values: Iterable[Any]) -> bool:
    """Whether all are plain, or small tuples of plain."""
    for value in values:
        kind = type(value)
        if kind not in _PLAIN and not (
            kind is tuple and len(value) <= _FEW and _PLAIN.issuperset(map(type, value))
        ):
            return False
    return True


def settle(value: Any) -> Any:
    """Return a value that is not plain as nobody can change it any more, or None.

    Itself if it is constant; a copy of a small list, dict or set of constants; None stands for all
    others, which are to be sealed. Runs nothing of the user's.
    """
    kind = type(value)
    if kind not in _LOOKED_INTO or len(value) > _FEW:
        return None
    # Copied before the look: another thread of the task may be changing it.
    copy = value if kind is tuple else value.copy()
    if not (_PLAIN.issuperset(map(type, copy)) or _constants(copy)):
        return None
    if kind is dict:
        inside = copy.values()
        if not (_PLAIN.issuperset(map(type, inside)) or _constants(inside)):
            return None
    return copy


def pack_constants(values: list[Any]) -> bytes | None:
    """Pack a row of which all values are constant; None if one is not."""
    if NUMBERS.issuperset(map(type, values)):
        return marshal.dumps(values, _MARSHAL)
    types = set(map(type, values))
    if not types <= _PLAIN:
        if types == _TUPLES:
            types = set(map(type, itertools.chain.from_iterable(values)))
            if types <= NUMBERS:
                return marshal.dumps(values, _MARSHAL)
        if not types <= _PLAIN and not all(map(constant, values)):
            return None
    return pickle.dumps((True, values), 5)


def pack_settled(values: list[Any]) -> bytes:
    """Pack a row of which each value is plain, or what `settle` has returned."""
    types = set(map(type, values))
    if types == _TUPLES:
        types = set(map(type, itertools.chain.from_iterable(values)))
    if types <= NUMBERS:
        return marshal.dumps(values, _MARSHAL)
    return pickle.dumps((True, values), 5)


def pack(values: list[Any]) -> Sealed:
    """Pack a row of values, each plain, `Sealed`, or what `settle` has returned."""
    if Sealed not in set(map(type, values)):
        return Sealed(pack_settled(values), [], [])
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
    """Pickle a row whose values are plain, or tuples of plain ones, as the sequence that it is."""
    return pickle.dumps((True, values), 5)


load_numbers: Final[Callable[[bytes], list[Any]]] = marshal.loads
"""Returns the values of a row that was marshalled: its first byte is `MARSHALLED`."""


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

    def harmless(self) -> list[Any] | None:
        """Return the values that `load` gives, all at once, if nothing can go wrong; else None."""
        if self.plain is not None:
            return self.plain
        if self._buffers or any(codec.names_globals(data) for data, _count in self._entries):
            return None
        try:
            return [pickle.loads(data) for data, _count in self._entries]
        except Exception:  # an extension code that only its worker has: the error of that item
            return None

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
