"""The function table: functions that are importable by name travel as a number.

See README.md, "Function table". Append-only, in the segment, written by the parent: a record of
(offset, bytes) and the text "module NUL qualname" in the function area; or NUL and the pickle of a
function that needs nothing of its module (it travels by value once instead of each time). A number
is valid in every worker, thief or replacement, as soon as a frame carries it, because the record is
stored before the frame.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, final

from mpsched._shm.layout import H_FUNCTION_BYTES, H_FUNCTIONS, Layout
from mpsched._tasks import codec, functions

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class FunctionWriter:
    """The parent's end. Any thread."""

    __slots__ = ("_area", "_bytes", "_layout", "_lock", "_numbers", "_table", "_words")

    def __init__(self, data: memoryview, words: memoryview, layout: Layout) -> None:
        self._bytes = data
        self._words = words
        self._layout = layout
        self._table = layout.function_table
        self._area = layout.function_area * 8
        self._numbers: dict[tuple[str, str], int] = {}
        self._lock = threading.RLock()  # re-entrant: a finalizer may submit

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
        words, layout, size = self._words, self._layout, len(text)
        with self._lock:
            # First reserved, then written: whoever comes in between gets a place of his own.
            count, used = words[H_FUNCTIONS], words[H_FUNCTION_BYTES]
            if count >= layout.function_slots or used + size > layout.function_bytes:
                return 0  # full: by value is slower and as right
            words[H_FUNCTION_BYTES] = used + size
            words[H_FUNCTIONS] = count + 1
        self._bytes[self._area + used : self._area + used + size] = text
        words[self._table + 2 * count] = used
        words[self._table + 2 * count + 1] = size
        return int(count + 1)


@final
class FunctionReader(dict[int, "Callable[..., Any]"]):
    """A worker's end: number -> function, imported when first asked for."""

    def __init__(self, data: memoryview, words: memoryview, layout: Layout) -> None:
        super().__init__()
        self._bytes = data
        self._words = words
        self._table = layout.function_table
        self._area = layout.function_area * 8

    def __missing__(self, number: int) -> Callable[..., Any]:
        at = self._area + self._words[self._table + 2 * (number - 1)]
        size = self._words[self._table + 2 * (number - 1) + 1]
        text = bytes(self._bytes[at : at + size])
        if text.startswith(b"\0"):
            fn = codec.loads_callable(text[1:])
        else:
            fn = functions.resolve(*text.decode().split("\0"))
        self[number] = fn
        return fn
