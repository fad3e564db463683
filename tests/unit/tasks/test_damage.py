"""Result rings, entries and frames that something has overwritten: errors, no loop, no memory without end."""

from __future__ import annotations

import contextlib
import random
import resource
from typing import Any

import pytest

from mpsched._shm.layout import R_HEAD, R_TAIL, RESULT_HEADER, Layout
from mpsched._shm.words import Damaged
from mpsched._tasks import codec, failure, records as rec
from mpsched._tasks.names import FunctionReader, FunctionWriter
from mpsched._tasks.sealed import Row, pack
from mpsched._tasks.table import TaskTable
from mpsched.errors import DecodeError, MpschedError
from tests.support.damage import damage, damaged, ends

WORDS = 64
ROUNDS = 1500


def segment() -> tuple[Layout, memoryview, memoryview]:
    """Return a small segment in plain memory."""
    layout = Layout.plan(
        2,
        entries=4,
        inbox_slots=2,
        ring_slots=2,
        children=2,
        child_bytes=64,
        result_words=WORDS,
        slab_bytes=256,
        function_bytes=256,
        function_slots=4,
    )
    data = memoryview(bytearray(layout.size_bytes))
    return layout, data, data.cast("Q")


def drain(reader: rec.ResultReader) -> int:
    """Read as a leader does; returns how many records that were."""
    total, left = 0, reader.waiting()
    while left > 0:
        words, head = reader.take_plain(min(left, 512))
        count = len(words) // rec.HEAD_WORDS
        if not words:
            records, head = reader.take(min(left, 512))
            count = len(records)
            assert all(len(r[4]) <= WORDS * 8 for r in records if isinstance(r[4], bytes))
            if not records:
                reader.advance(head)
                break
        reader.advance(head)
        left -= count
        total += count
    return total


@pytest.mark.parametrize("seed", range(4))
def test_damage_of_a_result_ring_is_an_error_or_ends(seed: int) -> None:
    """Whatever its words say, a leader comes to an end, and reads no more than the ring."""
    dice = random.Random(seed)
    errors: list[Damaged] = []
    with ends():
        for _ in range(ROUNDS):
            layout, data, words = segment()
            base = layout.result(1)
            words[base + R_HEAD] = words[base + R_TAIL] = dice.randrange(200) * rec.HEAD_WORDS
            writer = rec.ResultWriter(data, words, layout, 1, lambda: None)
            reader = rec.ResultReader(data, words, layout, 1)
            for ident in range(1, dice.randint(2, 6)):
                if dice.random() < 0.5:
                    writer.write(ident, 1, rec.R_INT, 5, ident)
                else:
                    writer.write_payload(ident, 1, rec.R_BYTES, 5, bytes(dice.randint(1, 40)))
            places = [base + R_HEAD, base + R_TAIL]
            places += range(base + RESULT_HEADER, base + RESULT_HEADER + WORDS)
            damage(words, places, dice)
            try:
                assert drain(reader) <= WORDS
                # What is left is what a leader would look at again, and again.
                assert reader.empty() or reader.waiting()
            except Damaged as error:
                errors.append(error)
    assert len(errors) > ROUNDS // 20
    assert all("result ring of worker 1" in str(error) for error in errors)


@pytest.mark.parametrize("seed", range(2))
def test_damage_of_an_entry_reads_nothing_outside_the_segment(seed: int) -> None:
    """PLACE and LENGTH may say anything: what is read is a part of the segment, or nothing."""
    dice = random.Random(seed)
    layout, data, words = segment()
    table = TaskTable(data, words, layout)
    child = layout.children_of(1)[0]
    for _ in range(ROUNDS):
        for field in (table.length, table.place, table.meta):
            for handle in (1, child):
                field[handle] = damaged(field[handle], dice)
        assert len(table.read_frame(1)) <= layout.size_bytes
        assert len(table.read_child(child)) <= layout.child_bytes


@pytest.mark.parametrize("seed", range(2))
def test_damage_of_the_function_table_is_an_error(seed: int) -> None:
    """A number, a place or a size that is none: an error that says so, or another function's name."""
    dice = random.Random(seed)
    found = 0
    for _ in range(300):
        layout, data, words = segment()
        number = FunctionWriter(data, words, layout).number(len)
        assert FunctionReader(data, words, layout)[number] is len
        damage(words, range(layout.function_table, layout.function_table + 2), dice)
        try:
            FunctionReader(data, words, layout)[damaged(number, dice)]
        except Damaged:
            found += 1
        except (ValueError, TypeError, ImportError, AttributeError, DecodeError):
            pass  # the name of no module; who runs the root says DecodeError
    assert found > 100


def flipped(data: bytes, dice: random.Random) -> bytes:
    """Return bytes with one to four of them changed, or cut off."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed[: dice.choice([len(changed), dice.randrange(len(changed))])])


@pytest.mark.parametrize("seed", range(2))
def test_damage_of_a_frame_is_a_decode_error(seed: int) -> None:
    """Values, rows and errors whose bytes are not what was written: they decode to something, or say so."""
    dice = random.Random(seed)
    value: Any = ([1, 2.5, "three", (4, b"five")], {"six": 7})
    plain, _ = codec.encode(value, threshold=1 << 20)
    row = pack([value, value]).data
    error = failure.encode_exception(ValueError("eight"), task_id=9, note="ten")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    found = 0
    # A pickle may name a place in its memo; a far one would take all memory there is.
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), hard))
    try:
        with ends():
            for _ in range(ROUNDS):
                try:
                    codec.decode(flipped(plain, dice))
                except DecodeError:
                    found += 1
                _, problem = codec.decode_result(flipped(plain, dice), ())
                assert problem is None or isinstance(problem, MpschedError), problem
                assert isinstance(failure.decode_exception(flipped(error, dice)), BaseException)
                # The runner makes a DecodeError of whatever it is.
                with contextlib.suppress(Exception):
                    Row(flipped(row, dice)).load(0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert found > ROUNDS // 4
