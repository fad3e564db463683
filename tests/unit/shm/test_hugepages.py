"""Large files in huge pages: the same bytes with and without them."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from typing import Any, cast

import pytest

from mpsched._shm import hugepages, libc, mapping, memfile
from mpsched._shm.libc import Libc

MIB = 1 << 20
SIZES = [4 * MIB, 4 * MIB + 1, 7 * MIB - 4097]

pytestmark = pytest.mark.skipif(libc.get() is None, reason="the C library cannot be called")


def no_memory(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(params=["as they come", "none here", "no C library", "refused", "no memory"])
def huge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is of huge pages: whatever the system gives, or less."""
    if request.param == "none here":
        monkeypatch.setattr(hugepages, "page_size", lambda: 0)
        return
    monkeypatch.setattr(hugepages, "page_size", lambda: 2 * MIB)
    if request.param == "no C library":
        monkeypatch.setattr(libc, "get", lambda: None)
    elif request.param == "refused":
        monkeypatch.setattr(Libc, "madvise", lambda *_: False)
    elif request.param == "no memory":
        lay = hugepages.lay

        def lay_without_memory(fd: int, size: int) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "pwrite", no_memory)
                lay(fd, size)

        monkeypatch.setattr(hugepages, "lay", lay_without_memory)


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("size", SIZES)
def test_hugepages_refused_change_nothing(size: int) -> None:
    """A shared block is as long as asked for, zero, reserved as a whole, and shared."""
    fd = memfile.make_zeroed(size)
    try:
        found = os.fstat(fd)
        assert found.st_size == size
        assert found.st_blocks * 512 >= size
        one, other = mapping.map_shared(fd, size), mapping.map_shared(fd, size)
        assert len(one) == size
        assert one == bytes(size)
        for at in (0, 2 * MIB - 1, 2 * MIB, size - 1):
            one[at] = at % 251 + 1
            assert other[at] == at % 251 + 1
            assert os.pread(fd, 1, at) == bytes([at % 251 + 1])
    finally:
        os.close(fd)


@pytest.mark.usefixtures("huge")
@pytest.mark.parametrize("size", SIZES)
def test_hugepages_payloads_are_what_was_sent(size: int) -> None:
    """A payload has its bytes, and what a receiver writes nobody else sees."""
    data = os.urandom(MIB) * (size // MIB) + bytes(size % MIB)
    fd = memfile.make([(0, memoryview(data))], size)
    try:
        view = mapping.map_copy_on_write(fd, size)
        assert view == data
        view[:3] = b"abc"
        assert mapping.map_readonly(fd, size) == data
    finally:
        os.close(fd)


@pytest.mark.usefixtures("file_limit", "huge")
def test_hugepages_do_not_hide_that_memory_is_exhausted() -> None:
    """The error is the same, and names the size; nothing stays open."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="cannot get 4,194,304 bytes of shared memory"):
        memfile.make_zeroed(4 * MIB)
    with pytest.raises(OSError, match="cannot get 4,194,304 bytes of shared memory"):
        memfile.make([(0, memoryview(bytes(4 * MIB)))], 4 * MIB)
    assert os.listdir("/proc/self/fd") == before


class CountingLibc:
    """The C library's functions, which keep account of the address space they take."""

    def __init__(self, *, refuses_files: bool = False) -> None:
        library = libc.get()
        assert library is not None
        self._library = library
        self._refuses_files = refuses_files
        self.mapped = 0

    def mmap(
        self, address: int | None, size: int, prot: int, flags: int, fd: int, offset: int = 0
    ) -> int:
        if self._refuses_files and fd >= 0:
            raise OSError(errno.ENOMEM, "refused")
        if address is None:  # else it replaces what is there
            self.mapped += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return self._library.mmap(address, size, prot, flags, fd, offset)

    def munmap(self, address: int, size: int) -> None:
        self.mapped -= -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._library.munmap(address, size)


@pytest.mark.parametrize("size", [4 * MIB, 4 * MIB + 1, 5 * MIB - mmap.PAGESIZE])
def test_hugepages_mappings_start_where_huge_pages_may(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And take no more address space than their own pages."""
    monkeypatch.setattr(hugepages, "page_size", lambda: 2 * MIB)
    fd = memfile.make_zeroed(size)
    library = CountingLibc()
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        for _ in range(3):
            before = library.mapped
            address = hugepages.map_file(cast("Any", library), fd, size, mmap.MAP_SHARED, prot)
            assert address % (2 * MIB) == 0
            assert library.mapped - before == -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            library.munmap(address, size)
    finally:
        os.close(fd)
    assert library.mapped == 0


def test_hugepages_failed_mapping_leaves_no_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set aside for it is given back."""
    monkeypatch.setattr(hugepages, "page_size", lambda: 2 * MIB)
    library = CountingLibc(refuses_files=True)
    with pytest.raises(OSError, match="refused"):
        hugepages.map_file(cast("Any", library), 0, 4 * MIB, mmap.MAP_SHARED, mmap.PROT_READ)
    assert library.mapped == 0


@pytest.mark.parametrize("text", [None, "", "none", "2097152\n"])
def test_hugepages_size_is_what_the_system_says(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """None where it says nothing, or nothing that can be understood, or elsewhere than in Linux."""
    if text is not None:
        (tmp_path / "size").write_text(text)
    monkeypatch.setattr(hugepages, "_SIZE", str(tmp_path / "size"))
    measure = hugepages.page_size.__wrapped__
    monkeypatch.setattr(sys, "platform", "linux")
    expected = 2 * MIB if text == "2097152\n" else 0
    assert measure() == expected
    monkeypatch.setattr(sys, "platform", "darwin")
    assert measure() == 0


def test_hugepages_lay_without_address_space_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays as it was, and is reserved in small pages."""
    monkeypatch.setattr(hugepages, "page_size", lambda: 2 * MIB)
    monkeypatch.setattr(Libc, "mmap", no_memory)
    fd = memfile.make_zeroed(4 * MIB)
    try:
        assert os.fstat(fd).st_blocks * 512 >= 4 * MIB
    finally:
        os.close(fd)
