"""Memory without a name."""

from __future__ import annotations

import mmap
import os

import pytest

from mpsched._shm.segment import Segment


def test_segment_two_mappings_are_one_memory() -> None:
    """Words and bytes of every process that maps it are the same."""
    mine = Segment.create(100)
    other = Segment(os.dup(mine.fd), mine.size)
    mine.words[3] = 0x0102030405060708
    assert other.words[3] == 0x0102030405060708
    assert bytes(other.bytes[24:32]) == b"\x08\x07\x06\x05\x04\x03\x02\x01"
    other.close()
    mine.close()


@pytest.mark.parametrize("size", [1, mmap.PAGESIZE, mmap.PAGESIZE + 1])
def test_segment_is_whole_pages_and_zero(size: int) -> None:
    """SEGMENT-2: nothing has to be initialised."""
    segment = Segment.create(size)
    assert size <= segment.size < size + mmap.PAGESIZE
    assert segment.size % mmap.PAGESIZE == 0
    assert not any(segment.words)
    segment.close()


def test_segment_close_with_a_view_that_is_still_used() -> None:
    """A thread that reads a counter while the pool ends reads memory, not an error of the mapping."""
    segment = Segment.create(100)
    view = segment.words[0:4]
    segment.close()
    assert view[0] == 0
    view.release()


def test_segment_is_not_inherited_by_programs_that_tasks_start() -> None:
    """The descriptor is closed on exec."""
    segment = Segment.create(1)
    assert not os.get_inheritable(segment.fd)
    segment.close()


def test_segment_is_its_owners_only() -> None:
    """Nobody else may open it by way of /proc."""
    segment = Segment.create(10)
    found = os.fstat(segment.fd)
    assert found.st_mode & 0o777 == 0o600
    assert found.st_uid == os.geteuid()
    segment.close()


def test_segment_without_memory_files_is_a_file_without_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is no memfd, a temporary file that is unlinked at once: nothing is left behind."""
    monkeypatch.delattr(os, "memfd_create")
    segment = Segment.create(10)
    assert os.fstat(segment.fd).st_nlink == 0
    assert os.fstat(segment.fd).st_mode & 0o777 == 0o600
    segment.words[0] = 7
    assert os.pread(segment.fd, 1, 0) == b"\7"
    segment.close()


def test_segment_that_cannot_be_sized_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error while it is made closes what was opened."""

    def full(_fd: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="No space"):
        Segment.create(10)
