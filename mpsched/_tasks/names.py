"""The function table: functions that are importable by name travel as a number.

See README.md, "Function table". Append-only, in the segment, written by the parent: a record of
(offset, bytes) and the text "module NUL qualname" in the function area; or NUL and the pickle of a
function that needs nothing of its module (it travels by value once instead of each time). A number
is valid in every worker, thief or replacement, as soon as a frame carries it, because the record is
stored before the frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from mpsched._shm.words import Damaged
from mpsched._tasks import codec, functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._shm.layout import Layout


@final
class FunctionWriter:
    """The parent's end. Any thread."""

    __slots__ = ("_area", "_bytes", "_layout", "_numbers", "_places", "_table", "_words")

    def __init__(self, data: memoryview, words: memoryview, layout: Layout) -> None:
        self._bytes = data
        self._words = words
        self._layout = layout
        self._table = layout.function_table
        self._area = layout.function_area * 8
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[_Place] = []

    def number(self, fn: Callable[..., Any]) -> int:
        """Return the number of `fn`, publishing it if needed; 0 if it must travel by value."""
        name = functions.importable_name(fn)
        if name is None:
            return 0
        known = self._numbers.get(name)
        if known is not None:
            return known
        number = self._append("\0".join(name).encode())
        if number:
            self._numbers[name] = number
        return number

    def publish(self, blob: bytes) -> int:
        """Return a number for a function pickled by value, 0 if the area is full."""
        return self._append(b"\0" + blob)

    def _append(self, text: bytes) -> int:
        words, places = self._words, self._places
        place = _Place(len(text))
        if not self._fits(place, places):
            return 0  # full: by value is slower and as right
        # The reservation is this one call. Whoever comes before or after it, another thread or a
        # finalizer in this one, gets a place of its own.
        places.append(place)
        before = places[: places.index(place)]
        if not self._fits(place, before):
            return 0
        used = sum(one.size for one in before)
        self._bytes[self._area + used : self._area + used + place.size] = text
        words[self._table + 2 * len(before)] = used
        words[self._table + 2 * len(before) + 1] = place.size
        return len(before) + 1

    def _fits(self, place: _Place, before: list[_Place]) -> bool:
        used = sum(one.size for one in before)
        layout = self._layout
        return len(before) < layout.function_slots and used + place.size <= layout.function_bytes


@final
class _Place:
    """A reserved part of the function area; equal to itself only."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


@final
class FunctionReader(dict[int, "Callable[..., Any]"]):
    """A worker's end: number -> function, imported when first asked for."""

    def __init__(self, data: memoryview, words: memoryview, layout: Layout) -> None:
        super().__init__()
        self._bytes = data
        self._words = words
        self._table = layout.function_table
        self._area = layout.function_area * 8
        self._slots = layout.function_slots
        self._most = layout.function_bytes

    def __missing__(self, number: int) -> Callable[..., Any]:
        if not 0 < number <= self._slots:
            raise Damaged(f"function number {number} of {self._slots}")
        offset = self._words[self._table + 2 * (number - 1)]
        size = self._words[self._table + 2 * (number - 1) + 1]
        if offset + size > self._most:
            raise Damaged(f"function {number} lies at {offset}, {size} bytes of {self._most}")
        at = self._area + offset
        text = bytes(self._bytes[at : at + size])
        if text.startswith(b"\0"):
            fn = codec.loads_callable(text[1:])
        else:
            fn = functions.resolve(*text.decode().split("\0"))
        self[number] = fn
        return fn
