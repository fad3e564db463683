"""The result ring: a writer, a reader, and either of them cut short."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as hyp

from mpsched._shm.layout import R_HEAD, R_TAIL, Layout
from mpsched._tasks import records as rec
from tests.support.stores import Stores, View, as_memory

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = 32


class Ring:
    """Both ends of one worker's ring in plain memory.

    Attributes:
        waits: how often the writer found no room.
    """

    def __init__(self, words: int = WORDS, *, start: int = 0) -> None:
        self.layout = Layout.plan(2, entries=2, inbox_slots=2, result_words=words, slab_bytes=8)
        self.data = memoryview(bytearray(self.layout.size_bytes))
        self.words = self.data.cast("Q")
        base = self.layout.result(1)
        self.words[base + R_HEAD] = self.words[base + R_TAIL] = start
        self.stores = Stores()
        self.waits = 0
        self.make_room: Callable[[], None] = self._no_room
        self.writer = self.new_writer()
        self.reader = rec.ResultReader(self.data, self.words, self.layout, 1)

    def new_writer(self) -> rec.ResultWriter:
        """Return what the worker's next process would make."""
        data, words = View(self.data, self.stores), View(self.words, self.stores)
        return rec.ResultWriter(as_memory(data), as_memory(words), self.layout, 1, self._wait)

    def read(self, limit: int = 1 << 20) -> list[rec.Record]:
        """Take records as a leader does and give their room back."""
        found: list[rec.Record] = []
        while len(found) < limit:
            words, head = self.reader.take_plain(limit - len(found))
            some = plain_records(words)
            if not some:
                # One with a payload; together with those behind it, whatever they are.
                some, head = self.reader.take(min(3, limit - len(found)))
            self.reader.advance(head)
            found += some
            if not some:
                break
        return found

    def check(self) -> None:
        """Assert RING-1."""
        base = self.layout.result(1)
        head, tail = self.words[base + R_HEAD], self.words[base + R_TAIL]
        assert head <= tail <= head + self.layout.result_words

    def _wait(self) -> None:
        self.waits += 1
        self.make_room()

    def _no_room(self) -> None:
        raise AssertionError("the writer waits for room that is there")


def plain_records(words: list[int]) -> list[rec.Record]:
    """Return what `take` would make of the words that `take_plain` gives."""
    assert len(words) % rec.HEAD_WORDS == 0
    records: list[rec.Record] = []
    for at in range(0, len(words), rec.HEAD_WORDS):
        ident, about, ns, value = words[at : at + rec.HEAD_WORDS]
        kind = about >> 24
        records.append((ident, about & 0xFFFFFF, kind, ns, rec.plain_value(kind, value), value))
    return records


def payload_of(size: int) -> bytes:
    return bytes(index & 255 for index in range(size))


@pytest.mark.parametrize(
    ("kind", "value", "payload"),
    [
        (rec.R_NONE, 0, None),
        (rec.R_TRUE, 0, True),
        (rec.R_FALSE, 0, False),
        (rec.R_INT, 0, 0),
        (rec.R_INT, -1, -1),
        (rec.R_INT, (1 << 63) - 1, (1 << 63) - 1),
        (rec.R_INT, -(1 << 63), -(1 << 63)),
        (rec.R_FLOAT, 0.5, 0.5),
        (rec.R_FLOAT, -math.inf, -math.inf),
        (rec.R_END, 7, b""),
        (rec.R_SPLIT, 7 | 9 << 32, b""),
    ],
)
def test_records_without_a_payload_keep_their_value(kind: int, value: float, payload: Any) -> None:
    """What four words can say arrives as it was: ints in two's complement, floats exactly."""
    ring = Ring()
    ring.writer.write((1 << 64) - 1, (1 << 24) - 1, kind, (1 << 63) + 5, value)
    ((ident, handle, kind_read, ns, payload_read, word),) = ring.read()
    assert (ident, handle, kind_read, ns) == ((1 << 64) - 1, (1 << 24) - 1, kind, (1 << 63) + 5)
    assert payload_read == payload
    assert type(payload_read) is type(payload)
    if kind > rec.R_FLOAT:
        assert word == value


def test_records_float_that_is_no_number_stays_one() -> None:
    """A NaN is not turned into another value on the way."""
    ring = Ring()
    ring.writer.write(1, 0, rec.R_FLOAT, 0, math.nan)
    assert math.isnan(ring.read()[0][4])


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64])
@pytest.mark.parametrize("start", range(0, WORDS, 5))
def test_records_payload_of_any_size_arrives(size: int, start: int) -> None:
    """Bytes arrive as they were, wherever in the ring they lie."""
    ring = Ring(start=start)
    for _ in range(20):
        ring.writer.write_payload(5, 3, rec.R_BYTES, 2, payload_of(size), 77)
        assert ring.read() == [(5, 3, rec.R_BYTES, 2, payload_of(size), 77)]
        ring.check()


def test_records_come_in_order_and_up_to_a_limit() -> None:
    """A reader takes what it has time for; the rest stays."""
    ring = Ring()
    for ident in (1, 2, 3):
        ring.writer.write(ident, 0, rec.R_NONE, 0)
    assert [record[0] for record in ring.read(2)] == [1, 2]
    assert not ring.reader.empty()
    assert [record[0] for record in ring.read(2)] == [3]
    assert ring.reader.empty()
    assert ring.read() == []


def test_records_not_given_back_are_seen_again() -> None:
    """RING-3: a reader that is interrupted before `advance` has lost nothing."""
    ring = Ring(start=WORDS - 4)
    ring.writer.write(1, 0, rec.R_INT, 5, 42)
    ring.writer.write_payload(2, 0, rec.R_BYTES, 5, b"abc")
    first, _head = ring.reader.take(10)
    again, head = ring.reader.take(10)
    assert first == again
    assert [record[0] for record in again] == [1, 2]
    ring.reader.advance(head)
    assert ring.reader.empty()


def test_records_full_ring_makes_the_writer_wait() -> None:
    """The writer asks for room, as often as needed, and overwrites nothing."""
    ring = Ring()
    for ident in range(1, WORDS // 4 + 1):
        ring.writer.write(ident, 0, rec.R_NONE, 0)
    read: list[rec.Record] = []

    def drain_at_the_third() -> None:
        if ring.waits == 3:
            read.extend(ring.read(1))

    ring.make_room = drain_at_the_third
    ring.writer.write(99, 0, rec.R_NONE, 0)
    assert ring.waits == 3
    assert [record[0] for record in read + ring.read()] == [*range(1, WORDS // 4 + 1), 99]


def test_records_largest_payload_always_finds_room() -> None:
    """RING-4: with an empty ring, wherever its indices are, `largest` bytes fit."""
    for start in range(WORDS):
        ring = Ring(start=start)
        ring.writer.write_payload(1, 0, rec.R_BYTES, 0, payload_of(ring.writer.largest))
        assert ring.read()[0][4] == payload_of(ring.writer.largest)
        assert ring.waits == 0


def test_records_payload_that_may_never_find_room_is_refused() -> None:
    """A writer that waited for it would wait for ever."""
    ring = Ring()
    with pytest.raises(ValueError, match=f"takes {ring.writer.largest}"):
        ring.writer.write_payload(1, 0, rec.R_BYTES, 0, bytes(ring.writer.largest + 1))
    assert ring.read() == []


def test_records_next_process_goes_on_where_the_last_one_stopped() -> None:
    """Indices are not reset: what was published before is read, then what comes after it."""
    ring = Ring(start=WORDS - 3)
    ring.writer.write(1, 0, rec.R_NONE, 0)
    ring.new_writer().write(2, 0, rec.R_NONE, 0)
    assert [record[0] for record in ring.read()] == [1, 2]
    ring.check()


sizes = hyp.one_of(hyp.none(), hyp.integers(0, WORDS * 2))


@given(
    start=hyp.integers(0, 2 * WORDS),
    writes=hyp.lists(sizes, max_size=40),
    limits=hyp.lists(hyp.integers(0, 3), min_size=1),
)
def test_records_any_sequence_arrives_as_written(
    start: int, writes: list[int | None], limits: list[int]
) -> None:
    """Records of all sizes, read in steps of all sizes, while the ring wraps and fills."""
    ring = Ring(start=start)
    read: list[rec.Record] = []
    ring.make_room = lambda: read.extend(ring.read(1))
    written: list[rec.Record] = []
    for ident, size in enumerate(writes, 1):
        if size is None:
            ring.writer.write(ident, ident, rec.R_INT, 3, ident)
            written.append((ident, ident, rec.R_INT, 3, ident, ident))
        else:
            ring.writer.write_payload(ident, 1, rec.R_BYTES, 3, payload_of(size), ident)
            written.append((ident, 1, rec.R_BYTES, 3, payload_of(size), ident))
        ring.check()
        read += ring.read(limits[ident % len(limits)])
        ring.check()
    assert read + ring.read() == written


@pytest.mark.parametrize("size", [None, 0, 5, 20, 64])
@pytest.mark.parametrize("start", [0, 8, WORDS - 4, WORDS - 2])
def test_records_killed_writer_leaves_whole_records(start: int, size: int | None) -> None:
    """RING-2: a writer that is killed before any store has published its record, or nothing."""

    def write(writer: rec.ResultWriter) -> None:
        if size is None:
            writer.write(2, 0, rec.R_INT, 9, -7)
        else:
            writer.write_payload(2, 0, rec.R_BYTES, 9, payload_of(size), 4)

    def begin() -> Ring:
        ring = Ring(start=start)
        ring.writer.write(1, 0, rec.R_NONE, 0)
        return ring

    ring = begin()
    made = ring.stores.of(lambda: write(ring.writer))
    whole = ring.read()
    assert made >= 5
    for store in range(made + 1):
        ring = begin()
        with ring.stores.killed_before(store):
            write(ring.writer)
        found, _head = ring.reader.take(9)
        assert found == (whole if store == made else whole[:1])
        ring.check()
        # The next process of this worker writes on.
        ring.new_writer().write(3, 0, rec.R_TRUE, 0)
        assert ring.read() == [*found, (3, 0, rec.R_TRUE, 0, True, 0)]
