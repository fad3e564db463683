"""Payloads in one process: what goes in comes out, and nothing is left."""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import mmap
import os
import pickle
import resource
from typing import TYPE_CHECKING

import pytest

from mpsched._shm import libc, memfile, payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = mmap.PAGESIZE
MIB = 1 << 20


def content(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two neighbouring pages are equal."""
    return bytes((seed + i // PAGE + i) & 255 for i in range(min(size, 70_000))) + bytes(
        max(0, size - 70_000)
    )


def round_trip(buffers: Sequence[payloads.Buffer]) -> list[memoryview]:
    payload = payloads.create(buffers)
    try:
        return payloads.map_private(payload.fd, payload.spans)
    finally:
        payload.close()


SIZES = [
    0,
    1,
    *(around + offset for around in (64, PAGE, payloads.COPIED_BELOW) for offset in (-1, 0, 1)),
]


@pytest.mark.parametrize("size", SIZES)
def test_payloads_every_size_comes_back(size: int) -> None:
    """A buffer of any size, 0 included, comes back byte by byte."""
    data = content(size)
    (view,) = round_trip([data])
    assert view == data
    assert view.nbytes == size


@pytest.mark.parametrize("size", SIZES)
def test_payloads_views_of_every_size_can_be_written(size: int) -> None:
    """A view is writable at every size, the empty one included."""
    (view,) = round_trip([content(size)])
    assert not view.readonly
    view[:] = bytes(size)
    assert view == bytes(size)


def test_payloads_many_buffers_keep_their_order_and_borders() -> None:
    """Neighbours in one file, empty ones among them, do not run into each other."""
    buffers = [content(size, seed) for seed, size in enumerate([63, 0, 64, 65, 0, 4096, 1, 5000])]
    views = round_trip(buffers)
    assert [bytes(view) for view in views] == buffers
    views[2][:] = bytes(64)
    assert [bytes(view) for view in views[:2]] == buffers[:2]
    assert [bytes(view) for view in views[3:]] == buffers[3:]


@pytest.mark.parametrize("sizes", [[1, 2, 3, 100], [payloads.COPIED_BELOW, 1, 77]])
def test_payloads_buffers_start_at_cache_lines(sizes: list[int]) -> None:
    """Each buffer starts at a multiple of 64 bytes in the file and in memory."""
    numpy = pytest.importorskip("numpy")
    payload = payloads.create([bytes(size) for size in sizes])
    assert [offset % 64 for offset, _nbytes in payload.spans] == [0] * len(sizes)
    for view in payloads.map_private(payload.fd, payload.spans):
        assert numpy.frombuffer(view, "u1").ctypes.data % 64 == 0


def test_payloads_all_kinds_of_buffers_are_taken() -> None:
    """Bytes, bytearrays, typed arrays and pickle buffers are taken as the bytes in memory."""
    typed = array.array("d", [1.5, -2.5])
    buffers: list[payloads.Buffer] = [
        b"abc",
        bytearray(b"defg"),
        memoryview(typed),
        pickle.PickleBuffer(typed),
    ]
    raw = typed.tobytes()
    assert [bytes(view) for view in round_trip(buffers)] == [b"abc", b"defg", raw, raw]


def test_payloads_array_in_column_order_is_taken_as_it_lies() -> None:
    """An array that lies column by column is sent in that order, without a copy before."""
    numpy = pytest.importorskip("numpy")
    table = numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3))
    (view,) = round_trip([pickle.PickleBuffer(table)])
    assert bytes(view) == table.tobytes("A")


@pytest.mark.parametrize("stride", [2, -1])
def test_payloads_gappy_buffer_is_refused(stride: int) -> None:
    """A view with gaps, or backwards, is an error and not other bytes than meant."""
    with pytest.raises(BufferError, match="contiguous"):
        payloads.create([memoryview(bytes(10))[::stride]])


def test_payloads_views_outlive_everything_else() -> None:
    """Views stay as they are when the file is closed and others come and go in its place."""
    data = [content(MIB + 1, 1), content(5000, 2)]
    kept = [view for one in data for view in round_trip([one])]
    for seed in range(30):
        round_trip([content(MIB + 1, 3 + seed)])
    gc.collect()
    assert [bytes(view) for view in kept] == data


def test_payloads_part_of_a_view_keeps_the_memory() -> None:
    """What is cut from a view stays valid when the view itself is gone."""
    data = content(2 * MIB)
    part = round_trip([data])[0][100:200]
    gc.collect()
    round_trip([bytes(2 * MIB)])
    assert part == data[100:200]


def test_payloads_written_view_is_invisible_to_others() -> None:
    """Two receivers of one file do not see each other's writes, nor does the sender."""
    data = content(2 * MIB)
    payload = payloads.create([data])
    (one,) = payloads.map_private(payload.fd, payload.spans)
    (two,) = payloads.map_private(payload.fd, payload.spans)
    one[:] = bytes(len(data))
    assert two == data
    assert payload.peek() == data


def test_payloads_file_cannot_be_changed() -> None:
    """Nobody can write the file, or make it shorter under its readers, who would be killed."""
    payload = payloads.create([content(5000)])
    for change in (
        lambda: os.pwrite(payload.fd, b"x", 0),
        lambda: os.ftruncate(payload.fd, 0),
        lambda: mmap.mmap(payload.fd, 5000),
    ):
        with pytest.raises(PermissionError):
            change()


def test_payloads_mappings_hold_no_descriptor() -> None:
    """A thousand arrays that are kept use no descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    views = [round_trip([bytes(size)]) for size in [70_000, 2 * MIB] * 50]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(views) == 100


def test_payloads_mapping_goes_with_its_last_view() -> None:
    """Memory is given back when the last view is gone, and not before."""
    size = 37 * MIB + 5

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum(line.count("mpsched-payload") for line in maps)

    before = mapped()
    payload = payloads.create([bytes(size)])
    (view,) = payloads.map_private(payload.fd, payload.spans)
    part = view[5:10]
    payload.close()
    del view
    assert mapped() == before + 1
    assert part == bytes(5)
    del part
    assert mapped() == before


def test_payloads_frame_that_promises_too_much_is_an_error() -> None:
    """A span beyond the end of the file is a ValueError; a look at it would kill the process."""
    payload = payloads.create([bytes(2 * MIB)])
    for spans in ([(0, 2 * MIB + 1)], [(PAGE * 513, 10)]):
        with pytest.raises(ValueError, match="cannot map"):
            payloads.map_private(payload.fd, spans)


def test_payloads_closed_payload_says_so() -> None:
    """The descriptor of a closed payload is an error; closing again is none."""
    payload = payloads.create([b"abc"])
    fd = payload.fd
    payload.close()
    payload.close()
    with pytest.raises(ValueError, match="closed"):
        _ = payload.fd
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_payloads_forgotten_payload_closes_its_file() -> None:
    """The file of a payload that nobody has any more is closed."""
    payload = payloads.create([b"abc"])
    fd = payload.fd
    del payload
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_payloads_split_puts_large_ones_alone() -> None:
    """Large buffers get files of their own, small neighbours share one, and the order stays."""
    large, small = bytes(payloads.ALONE_FROM), bytes(payloads.ALONE_FROM - 1)
    groups = payloads.split([small, b"", large, large, small, b"a"])
    assert [[memoryview(one).nbytes for one in group] for group in groups] == [
        [len(small), 0],
        [len(large)],
        [len(large)],
        [len(small), 1],
    ]
    assert payloads.split([]) == []


def test_payloads_parcel_gives_the_buffers_in_order() -> None:
    """What `fetch` maps are the buffers of the parcel, in their order, large or small."""
    buffers = [content(size, seed) for seed, size in enumerate([10, MIB, 0, 2 * MIB, 5, 70_000])]
    parcel = payloads.pack(buffers)
    views = payloads.fetch(os.getpid(), parcel.files())
    assert [bytes(view) for view in views] == buffers
    assert parcel.nbytes >= sum(map(len, buffers))
    parcel.close()
    assert parcel.files() == []


# --- when something runs out -------------------------------------------------------------------


@pytest.mark.usefixtures("file_limit")
def test_payloads_memory_exhausted_is_an_error_that_names_the_size() -> None:
    """What cannot be written is an OSError that says how much was asked for; nothing stays open."""
    with pytest.raises(OSError, match=r"cannot get 3,145,733 bytes of shared memory"):
        payloads.create([bytes(3 * MIB + 5)])


@pytest.mark.usefixtures("file_limit")
def test_memfile_shared_memory_exhausted_is_an_error() -> None:
    """Memory to be written through a mapping is reserved before, so that no write is fatal."""
    with pytest.raises(OSError, match="cannot get 3,145,728 bytes of shared memory"):
        memfile.make_zeroed(3 * MIB)


def test_payloads_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine cannot give is refused: the kernel would give, and then kill somebody."""
    monkeypatch.setattr("mpsched._base.memory.available_bytes", lambda: 90 * MIB)
    monkeypatch.setattr(memfile, "_unseen", 0)
    with pytest.raises(OSError, match="104,857,600 bytes of shared memory") as caught:
        memfile.make_zeroed(100 * MIB)
    assert caught.value.errno == errno.ENOMEM
    assert f"{90 * MIB:,} bytes are left" in str(caught.value)


def test_payloads_many_small_ones_are_counted_against_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look at the memory that is left also comes after many small payloads."""
    monkeypatch.setattr("mpsched._base.memory.available_bytes", lambda: 1000)
    monkeypatch.setattr(memfile, "_unseen", 0)

    def make(count: int) -> None:
        for _ in range(count):
            payloads.create([bytes(MIB)])

    make(60)
    with pytest.raises(OSError, match="bytes are left"):
        make(5)


def test_payloads_error_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be filled, or was interrupted, is closed."""
    before = os.listdir("/proc/self/fd")
    for problem in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):

        def fail(*_args: object, problem: BaseException = problem) -> int:
            raise problem

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            with pytest.raises(type(problem)):
                payloads.create([b"abc"])
    assert os.listdir("/proc/self/fd") == before


def test_payloads_short_writes_and_reads_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call that takes or gives less than asked for is repeated."""
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:1000], at))
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, at: preadv(fd, [view[:777] for view in views], at)
    )
    data = content(10_000)
    assert round_trip([data])[0] == data


def test_payloads_no_address_space_is_an_error() -> None:
    """A receiver without address space gets an OSError that names the size."""
    payload = payloads.create([bytes(64 * MIB)])
    (old, hard) = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + 8 * MIB, hard))
    try:
        with pytest.raises(OSError, match=r"67,108,864 bytes|[Cc]annot allocate memory"):
            payloads.map_private(payload.fd, payload.spans)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (old, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_payloads_wait_with_few_descriptors_when_these_are_scarce() -> None:
    """Five hundred waiting payloads need fewer than forty descriptors."""
    data = [content(size, size) for size in [0, 1, 100, 4096, 5000] * 100]
    before = len(os.listdir("/proc/self/fd"))
    parcels = [payloads.pack([one]) for one in data]
    assert len(os.listdir("/proc/self/fd")) < before + 40
    for parcel, one in zip(parcels, data, strict=True):
        (view,) = payloads.fetch(os.getpid(), parcel.files())
        assert view == one
    del parcels, parcel
    assert len(os.listdir("/proc/self/fd")) == before


def test_payloads_in_a_common_file_are_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file in common, payloads of all sizes arrive, stay apart, and are kept by their views."""
    monkeypatch.setattr(payloads, "_DESCRIPTOR_SHARE", 0)
    many = [
        [content(size, seed) for seed, size in enumerate(sizes)]
        for sizes in [(10, 0, 64), (0,), (MIB - 1,), (MIB + 1, 3), (), (4096,), (2 * MIB, 2 * MIB)]
    ]
    made = [payloads.create_waiting(buffers) for buffers in many]
    assert len({payload.fd for payload in made}) == 1
    views = [payloads.map_private(payload.fd, payload.spans) for payload in made]
    for view in (view for some in views for view in some):
        assert not view.readonly
    assert made[3].peek() == many[3][0]
    views[3][0][:] = bytes(MIB + 1)
    views[3][1][:] = bytes(3)
    many[3] = [bytes(MIB + 1), bytes(3)]
    made.clear()
    assert [[bytes(view) for view in some] for some in views] == many


def test_payloads_common_file_is_full_at_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in common takes a bounded number of payloads and bytes, then there is a new one."""
    monkeypatch.setattr(payloads, "_DESCRIPTOR_SHARE", 0)
    monkeypatch.setattr(payloads, "_COMMON_COUNT", 3)
    monkeypatch.setattr(payloads, "_COMMON_BYTES", 10 * PAGE)
    small = [payloads.create_waiting([b"x"]) for _ in range(7)]
    assert [small[0].fd == one.fd for one in small] == [True] * 3 + [False] * 4
    assert small[3].fd == small[5].fd != small[6].fd
    large = [payloads.create_waiting([bytes(11 * PAGE)]) for _ in range(2)]
    assert large[0].fd == small[6].fd != large[1].fd
    fd = small[0].fd
    del small
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


@pytest.mark.usefixtures("few_descriptors")
def test_payloads_without_any_descriptor_are_an_error() -> None:
    """When the program has taken all descriptors, a payload is an error that says so."""
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            for _ in range(1000):
                taken.append(os.dup(0))  # noqa: PERF401 - what it has got before the error counts
        with pytest.raises(
            OSError, match="cannot get 3 bytes of shared memory: Too many"
        ) as caught:
            payloads.pack([b"abc"])
        assert caught.value.errno == errno.EMFILE
    finally:
        for fd in taken:
            os.close(fd)


def test_mapping_without_the_c_library_still_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library cannot be called, views work and hold a descriptor each."""
    monkeypatch.setattr(libc, "get", lambda: None)
    for size in (2 * MIB, 5 * MIB):
        data = content(size)
        (view,) = round_trip([data])
        view[0] ^= 1
        assert view[1:] == data[1:]


@pytest.mark.slow
def test_payloads_over_two_gigabytes() -> None:
    """A buffer over 2 GiB, more than one system call takes, arrives to its last byte."""
    numpy = pytest.importorskip("numpy")
    size = (2 << 30) + 4097
    data = numpy.zeros(size, "u1")
    marks = [0, (1 << 31) - 1, 1 << 31, size - 4096, size - 1]
    data[marks] = [1, 2, 3, 4, 5]
    (view,) = round_trip([pickle.PickleBuffer(data)])
    del data
    found = numpy.frombuffer(view, "u1")
    assert found[marks].tolist() == [1, 2, 3, 4, 5]
    assert numpy.count_nonzero(found) == 5
