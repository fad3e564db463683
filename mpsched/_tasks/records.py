"""Result records: what a worker tells the parent, in its own ring, in order.

See README.md, "Result ring". One writer (the worker), one reader (whoever leads in the parent). A
record is four words and a payload padded to words: task id, `handle | kind << 24 | bytes << 32`,
nanoseconds in user code, value. It becomes visible by the store of TAIL, so a worker killed while
it writes leaves nothing, and one killed afterwards loses nothing. Records do not wrap: a zero word
where a task id would be sends the reader to the start of the ring.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._shm.layout import B_TOLD, R_HEAD, R_TAIL, RESULT_HEADER, Layout
from mpsched._shm.words import WEAK, Damaged, fence

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_WORDS: Final = 4

# Kinds of a record that ends its task.
R_NONE: Final = 0
R_TRUE: Final = 1
R_FALSE: Final = 2
R_INT: Final = 3  #     value word, two's complement
R_FLOAT: Final = 4  #   value word, IEEE double
R_BYTES: Final = 5  #   payload
R_STR: Final = 6  #     payload, UTF-8
R_PICKLE: Final = 7  #  payload, a pickle without buffers
R_LARGE: Final = (
    8  #   payload, a pickle of (in band or None, spans); value word = tag of the sent descriptor
)
R_ERROR: Final = 9  #   payload, see failure.py
R_END: Final = 10  #    a chunk is over; payload as R_PART, value word = items run | count << 32
LAST_FINAL: Final = 10
# Kinds of a record after which its task goes on: pieces of a map; value word = start | count << 32.
R_PART: Final = 11  #       payload, a row of values (sealed.py)
R_PART_LARGE: Final = 12  # payload, a pickle of (tag, in band or None, spans)
R_PART_ERROR: Final = 13  # payload, see failure.py; one item
R_SPLIT: Final = 14  #      the chunk ends at `start` now; the rest goes back to the parent
R_READY: Final = 15  #      no task: the worker has run its initializer
R_INIT_ERROR: Final = 16  # no task: it failed; payload, see failure.py

MASK64: Final = (1 << 64) - 1
_WORD: Final = struct.Struct("=Q")
_RECORD: Final = struct.Struct(f"={HEAD_WORDS}Q")
_GAP: Final = (0,) * HEAD_WORDS
_DOUBLE: Final = struct.Struct("=d")
_CONSTANTS: Final = {R_NONE: None, R_TRUE: True, R_FALSE: False}

Record = tuple[int, int, int, int, Any, int]
"""(task id, handle, kind, nanoseconds, payload, value word)"""


def plain_value(kind: int, word: int) -> Any:
    """Return the value of a record without a payload; b"" where the kind has none."""
    if kind == R_INT:
        return word - (1 << 64) if word >> 63 else word
    if kind == R_FLOAT:
        return _DOUBLE.unpack(_WORD.pack(word))[0]
    return _CONSTANTS.get(kind, b"")


@final
class ResultWriter:
    """The worker's end of its result ring. One thread at a time (the worker's write lock).

    Args:
        wait: called with nothing while the ring is full; returns to try again.

    Attributes:
        largest: bytes of the largest payload that it takes; a larger one goes by a payload file.
    """

    __slots__ = (
        "_at",
        "_bytes",
        "_capacity",
        "_data",
        "_doubles",
        "_first_byte",
        "_head",
        "_ring",
        "_room_until",
        "_tail",
        "_wait",
        "_words",
        "largest",
    )

    def __init__(
        self,
        data: memoryview,
        words: memoryview,
        layout: Layout,
        worker: int,
        wait: Callable[[], None],
    ) -> None:
        base = layout.result(worker)
        self._words = words
        self._head = base + R_HEAD
        self._tail = base + R_TAIL
        self._capacity = layout.result_words
        self.largest = self._capacity * 8 // 4
        first = base + RESULT_HEADER
        self._ring = words[first : first + layout.result_words]
        self._first_byte = first * 8
        self._data = data
        self._bytes = data[first * 8 : (first + layout.result_words) * 8]
        self._doubles = self._bytes.cast("d")
        self._wait = wait
        # TAIL, whose only writer this is, and how far it may go as far as we know.
        self._at = int(words[self._tail])
        self._room_until = int(words[self._head]) + layout.result_words

    def write(self, ident: int, handle: int, kind: int, ns: int, value: float = 0) -> None:
        """Append a record without a payload."""
        tail = self._at
        position = tail & (self._capacity - 1)
        after = position + HEAD_WORDS
        if after > self._capacity or tail + HEAD_WORDS > self._room_until:
            position = self._reserve(HEAD_WORDS)
            tail, after = self._at, position + HEAD_WORDS
        ring = self._ring
        ring[position] = ident
        ring[position + 1] = handle | kind << 24
        ring[position + 2] = ns
        if kind == R_FLOAT:
            self._doubles[position + 3] = value
        else:
            ring[position + 3] = int(value) & MASK64
        # crash-point: result.write.words
        self._at = tail + HEAD_WORDS
        if WEAK:
            fence()
        # Pairs with the reader's load of TAIL in ResultReader.take.
        self._words[self._tail] = tail + HEAD_WORDS
        # crash-point: result.write.tail

    def write_payload(
        self, ident: int, handle: int, kind: int, ns: int, payload: bytes, value: int = 0
    ) -> None:
        """Append a record with a payload of at most `largest` bytes.

        Raises:
            ValueError: it is longer, so that it might never find room.
        """
        size = len(payload)
        if size > self.largest:
            raise ValueError(f"a payload of {size} bytes; this ring takes {self.largest}")
        need = HEAD_WORDS + (size + 7 >> 3)
        tail = self._at
        position = tail & (self._capacity - 1)
        if position + need > self._capacity or tail + need > self._room_until:
            position = self._reserve(need)
            tail = self._at
        ring = self._ring
        ring[position] = ident
        ring[position + 1] = handle | kind << 24 | size << 32
        ring[position + 2] = ns
        ring[position + 3] = value
        at = (position + HEAD_WORDS) * 8
        self._bytes[at : at + size] = payload
        # crash-point: result.payload.words
        self._at = tail = tail + need
        if WEAK:
            fence()
        self._words[self._tail] = tail
        # crash-point: result.payload.tail

    def _reserve(self, need: int) -> int:
        """Wait for `need` neighbouring words; return where they start."""
        capacity = self._capacity
        while True:
            tail = self._at
            position: int = tail & (capacity - 1)
            self._room_until = self._words[self._head] + capacity
            room = capacity - position
            if need <= room:
                if tail + need <= self._room_until:
                    return position
            elif tail + room + need <= self._room_until:
                self._ring[position] = 0
                self._at = tail + room
                self._words[self._tail] = tail + room
                continue
            self._wait()


@final
class ResultReader:
    """The parent's end of one worker's result ring. Used under the leader's lock."""

    __slots__ = ("_bytes", "_capacity", "_head", "_ring", "_tail", "_told", "_words", "worker")

    def __init__(self, data: memoryview, words: memoryview, layout: Layout, worker: int) -> None:
        base = layout.result(worker)
        self.worker = worker
        self._words = words
        self._told = layout.block(worker) + B_TOLD
        self._head = base + R_HEAD
        self._tail = base + R_TAIL
        self._capacity = layout.result_words
        first = base + RESULT_HEADER
        self._ring = words[first : first + layout.result_words]
        self._bytes = data[first * 8 : (first + layout.result_words) * 8]

    def close(self) -> None:
        """Let go of the segment, which cannot be unmapped before. The parent, at the pool's end."""
        self._bytes.release()
        self._ring.release()

    def empty(self) -> bool:
        """Whether there is nothing to read; a hint unless a fence came before."""
        return bool(self._words[self._head] == self._words[self._tail])

    def waiting(self) -> int:
        """Return the most records there can be; a hint, as `empty`.

        Raises:
            Damaged: There are fewer than none, or more than there is room for.
        """
        # The reader alone moves HEAD, and a TAIL that is late is a smaller one.
        length: int = self._words[self._tail] - self._words[self._head]
        if not 0 <= length <= self._capacity:
            raise self._damaged(f"{length} words wait in it")
        return (length + HEAD_WORDS - 1) // HEAD_WORDS

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"the result ring of worker {self.worker} is damaged: {what}; it has {self._capacity} words. "
            "Something has written into the shared memory of this pool"
        )

    def told(self) -> bool:
        """Whether something is left of what the worker has told of; a hint, as `empty`."""
        return bool(self._words[self._head] < self._words[self._told])

    def take(self, limit: int) -> tuple[list[Record], int]:
        """Return up to `limit` records in order, and the head behind them for `advance`.

        The payload of a record is its value where the kind says it all (R_NONE to R_FLOAT), else the
        payload bytes.

        Raises:
            Damaged: A record reaches beyond what was published.
        """
        words, data, capacity = self._words, self._bytes, self._capacity
        unpack, last = _RECORD.unpack_from, capacity - HEAD_WORDS
        head, tail = words[self._head], words[self._tail]
        if WEAK:
            fence()  # pairs with the one before the store of TAIL
        found: list[Record] = []
        payload: Any
        while head < tail and len(found) < limit:
            position = head & (capacity - 1)
            if position > last and self._ring[position]:
                raise self._damaged("its last record does not end in it")
            ident, about, ns, value = unpack(data, position << 3) if position <= last else _GAP
            if not ident:
                head += capacity - position
                if head > tail:
                    raise self._damaged("a record without a task")
                continue
            size = about >> 32
            kind = (about >> 24) & 255
            head += HEAD_WORDS
            if size:
                first = (position + HEAD_WORDS) << 3
                payload = bytes(data[first : first + size])
                head += (size + 7) >> 3
            else:
                payload = plain_value(kind, value)
            found.append((ident, about & 0xFFFFFF, kind, ns, payload, value))
        if head > tail:
            raise self._damaged("its last record does not end in it")
        return found, head

    def take_plain(self, limit: int) -> tuple[list[int], int]:
        """Return the words of up to `limit` neighbouring records without a payload, and their end.

        Four words a record: task id, `handle | kind << 24`, nanoseconds, value word. Stops before
        the first record with a payload; empty if that is the first.
        """
        words, capacity = self._words, self._capacity
        head, tail = words[self._head], words[self._tail]
        if WEAK:
            fence()  # pairs with the one before the store of TAIL
        position = head & (capacity - 1)
        if position + 1 < capacity and self._ring[position + 1] >> 32:
            return [], head  # as in a map: do not fetch what follows for nothing
        count = min(limit * HEAD_WORDS, tail - head, (capacity - position) & -HEAD_WORDS)
        found = self._ring[position : position + count].tolist()
        # As long as none before it had a payload, every fourth word starts a record.
        abouts = found[1::HEAD_WORDS]
        if not abouts:
            return [], head
        if max(abouts) >> 32 or not min(found[::HEAD_WORDS]):
            for index, about in enumerate(abouts):
                if about >> 32 or not found[index * HEAD_WORDS]:
                    del found[index * HEAD_WORDS :]
                    break
        else:
            del found[len(abouts) * HEAD_WORDS :]
        return found, head + len(found)

    def advance(self, head: int) -> None:
        """Give the room of the records before `head` back; they were processed.

        Records that were taken but not given back are seen again.
        """
        if WEAK:
            fence()  # what was read, before the writer may overwrite it
        self._words[self._head] = head
