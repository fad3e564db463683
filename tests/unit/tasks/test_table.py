"""The task table, as two processes see it."""

from __future__ import annotations

import pytest

from mpsched._shm.layout import Layout
from mpsched._tasks import table as tab
from mpsched._tasks.table import TaskTable

SLAB_BYTES = 512


class Views:
    """One piece of memory and the tables of two processes over it."""

    def __init__(self, inline_bytes: int = 32) -> None:
        self.layout = Layout.plan(
            1,
            entries=8,
            inline_bytes=inline_bytes,
            inbox_slots=2,
            result_words=2,
            slab_bytes=SLAB_BYTES,
        )
        self.data = memoryview(bytearray(self.layout.size_bytes))
        self.parent = TaskTable(self.data, self.data.cast("Q"), self.layout)
        self.worker = TaskTable(self.data, self.data.cast("Q"), self.layout)


@pytest.mark.parametrize("size", [0, 1, 8, 31, 32])
def test_table_inline_frame_arrives_as_a_copy(size: int) -> None:
    """A frame in the entry is read whole, and stays what it was when the entry is used again."""
    views = Views()
    frame = bytes(range(size))
    views.parent.write_frame(3, frame, tab.INLINE)
    read = views.worker.read_frame(3)
    views.parent.write_frame(3, b"x" * 32, tab.INLINE)
    assert read == frame


def test_table_slab_frame_is_a_view_of_its_bytes_only() -> None:
    """A larger frame is not copied; its view does not reach beyond it."""
    views = Views()
    frame = bytes(range(200))
    views.parent.write_frame(0, frame, 256)
    read = views.worker.read_frame(0)
    assert isinstance(read, memoryview)
    assert bytes(read) == frame
    assert views.worker.place[0] == 256


@pytest.mark.parametrize("inline_bytes", [1, 7, 8, 33, 192])
def test_table_frames_do_not_touch_their_neighbours(inline_bytes: int) -> None:
    """Full entries and a full slab side by side, also if their size is no multiple of a word."""
    views = Views(inline_bytes)
    for handle in range(8):
        views.parent.write_frame(handle, bytes([handle + 1]) * inline_bytes, tab.INLINE)
    slab = b"s" * (SLAB_BYTES - 256)
    views.parent.length[7] = inline_bytes  # written by write_frame, and unchanged by the others
    for handle in range(8):
        assert views.worker.read_frame(handle) == bytes([handle + 1]) * inline_bytes
    views.parent.write_frame(5, slab, 256)
    assert bytes(views.worker.read_frame(5)) == slab
    for handle in (0, 4, 6, 7):
        assert views.worker.read_frame(handle) == bytes([handle + 1]) * inline_bytes


@pytest.mark.parametrize("first", [0, 3, 5])
def test_table_burst_of_frames_is_the_same_as_one_by_one(first: int) -> None:
    """Neighbouring frames written in one go are read back singly, each with its own length."""
    views = Views()
    frames = [b"a" * 32, b"", b"ccc"]
    views.parent.length[first : first + 3] = memoryview(bytes(24)).cast("Q")
    views.parent.place[first] = 256
    views.parent.write_frames(first, frames)
    assert [views.worker.read_frame(first + offset) for offset in range(3)] == frames


def test_table_run_key_names_task_and_attempt() -> None:
    """Two attempts of a task, and two tasks in one entry, are different runs."""
    views = Views()
    keys = set()
    for ident in (1, 2, 1 << 40):
        for attempt in (1, 2, 0xFFFF):
            views.parent.ident[4] = ident
            number = 0xFFFFFF << tab.FUNCTION_SHIFT
            views.parent.meta[4] = tab.KIND_CHUNK | tab.FLAG_TIMED | attempt << 8 | number
            keys.add(views.worker.run_key(4))
            assert views.worker.run_key(4) == ident << 16 | attempt
    assert len(keys) == 9


def test_table_meta_fields_do_not_overlap() -> None:
    """Kinds, flags, attempt and function number have bits of their own."""
    kinds = (tab.KIND_ARGS, tab.KIND_PLAIN, tab.KIND_CALL, tab.KIND_VALUE, tab.KIND_CHUNK)
    flags = (tab.FLAG_EXTERNAL, tab.FLAG_TIMED, tab.FLAG_CONTEXT)
    assert all(0 < kind <= tab.KIND_MASK for kind in kinds)
    assert len(set(kinds)) == len(kinds)
    used = tab.KIND_MASK
    for flag in flags:
        assert not used & flag
        used |= flag
    assert used < 1 << tab.ATTEMPT_SHIFT < 1 << (tab.ATTEMPT_SHIFT + 16) <= 1 << tab.FUNCTION_SHIFT
