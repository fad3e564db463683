"""The same array to many tasks: copied once, if and only if it is the same."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._shm import comparison, payloads
from mpsched._shm.buffercache import BufferCache, Burst

if TYPE_CHECKING:
    from mpsched._shm.payloads import Parcel

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
ITEMS = MIB // 8


def buffers_of(*objects: Any) -> list[pickle.PickleBuffer]:
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(objects, 5, buffer_callback=buffers.append)
    return buffers


def received(parcel: Parcel) -> list[bytes]:
    return [bytes(view) for view in payloads.fetch(os.getpid(), parcel.files())]


@pytest.fixture
def cache() -> BufferCache:
    return BufferCache()


@pytest.fixture(params=["memcmp", "without the C library", "without NumPy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of comparing."""
    if request.param != "memcmp":
        monkeypatch.setattr(comparison, "_memcmp", lambda: None)
    if request.param == "without NumPy":
        monkeypatch.setattr(comparison, "address_of", lambda _raw: 0)


@pytest.mark.usefixtures("way")
def test_cache_equal_array_is_copied_once(cache: BufferCache) -> None:
    """An array that is sent again and was not changed lies in memory once."""
    array = np.random.default_rng(1).random(ITEMS + 3)
    parcels = [cache.pack(buffers_of(array)) for _ in range(3)]
    assert len({parcel.files()[0][0] for parcel in parcels}) == 1
    assert (cache.copied, cache.reused) == (1, 2)
    assert received(parcels[2]) == [array.tobytes()]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("at", [0, 1, 12345, ITEMS - 1, ITEMS, ITEMS + 2])
def test_cache_changed_array_is_seen_changed(cache: BufferCache, at: int) -> None:
    """A change of one item anywhere between two sends is seen, and the first send keeps its own."""
    array = np.arange(ITEMS + 3, dtype="f8")
    first = cache.pack(buffers_of(array))
    before = array.tobytes()
    array[at] += 1
    second = cache.pack(buffers_of(array))
    assert received(first) == [before]
    assert received(second) == [array.tobytes()]


@pytest.mark.usefixtures("way")
def test_cache_change_of_a_last_odd_byte_is_seen(cache: BufferCache) -> None:
    """The bytes after the last whole word are compared as well."""
    array = np.zeros(MIB + 7, "u1")
    cache.pack(buffers_of(array))
    array[-1 - 64] = 1  # not in the part by which copies are looked up
    assert received(cache.pack(buffers_of(array))) == [array.tobytes()]
    assert cache.copied == 2


@pytest.mark.usefixtures("way")
def test_cache_compares_bytes_and_not_numbers(cache: BufferCache) -> None:
    """NaN is equal to itself here, and 0.0 is not -0.0."""
    array = np.full(ITEMS, np.nan)
    cache.pack(buffers_of(array))
    cache.pack(buffers_of(array))
    assert (cache.copied, cache.reused) == (1, 1)
    zeros = np.zeros(ITEMS)
    cache.pack(buffers_of(zeros))
    zeros[1000] = -0.0
    assert received(cache.pack(buffers_of(zeros))) == [zeros.tobytes()]


def test_cache_new_array_in_the_place_of_a_freed_one_is_not_mistaken(cache: BufferCache) -> None:
    """Arrays made in a loop often get the same id and address; each is sent as it is."""
    places = set()
    for value in range(20):
        array = np.full(ITEMS, value, "f8")
        places.add((id(array), array.ctypes.data))
        assert received(cache.pack(buffers_of(array))) == [array.tobytes()]
        del array
    assert len(places) < 20, "no place was used twice: the test has shown nothing"


def test_cache_two_equal_arrays_share_one_copy_and_stay_two(cache: BufferCache) -> None:
    """Two arrays with the same content have one copy; receivers still write apart."""
    one, two = cache.pack(buffers_of(np.zeros(ITEMS))), cache.pack(buffers_of(np.zeros(ITEMS)))
    assert cache.copied == 1
    (first,), (second,) = (payloads.fetch(os.getpid(), one.files()) for one in (one, two))
    first[0] = 1
    assert second[0] == 0


def test_cache_array_by_columns_is_reused(cache: BufferCache) -> None:
    """An array that lies by columns pickles through a new view each time, and is still known."""
    array = np.asfortranarray(np.random.default_rng(1).random((400, 400)))
    cache.pack(buffers_of(array))
    cache.pack(buffers_of(array))
    assert (cache.copied, cache.reused) == (1, 1)
    assert cache.kept_bytes == array.nbytes


def test_cache_small_buffers_travel_together_and_in_order(cache: BufferCache) -> None:
    """Small buffers are not compared; all arrive in order beside large ones."""
    arrays = [np.full(size, size & 255, "u1") for size in (10, MIB, 20, 30, 2 * MIB, 5)]
    parcel = cache.pack(buffers_of(*arrays))
    assert received(parcel) == [array.tobytes() for array in arrays]
    assert len(parcel.files()) == 5
    assert cache.copied == 2


def test_cache_copy_lives_while_the_array_does(cache: BufferCache) -> None:
    """A copy is kept for the next send while its array lives, and goes with it."""
    array = np.ones(ITEMS)
    view = array[:]
    cache.pack(buffers_of(view))
    assert cache.kept_bytes == array.nbytes
    del array
    cache.pack(buffers_of(view))
    assert cache.reused == 1
    del view
    assert cache.kept_bytes == 0


def test_cache_copy_lives_while_a_task_has_it(cache: BufferCache) -> None:
    """A task's parcel stays whole when its array is gone, the cache is cleared, or is gone."""
    array = np.ones(ITEMS)
    expected = [array.tobytes()]
    parcel = cache.pack(buffers_of(array))
    del array
    cache.clear()
    del cache
    assert received(parcel) == expected


def test_cache_frees_what_nobody_needs(cache: BufferCache) -> None:
    """When task and array are gone, so is the file; an array that lives alone keeps one."""
    before = len(os.listdir("/proc/self/fd"))
    array = np.ones(ITEMS)
    parcel = cache.pack(buffers_of(array))
    parcel.close()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del array
    assert len(os.listdir("/proc/self/fd")) == before


def test_cache_dropped_cache_frees_its_copies_at_once() -> None:
    """A cache that is forgotten waits for no garbage collection."""
    before = len(os.listdir("/proc/self/fd"))
    array = np.ones(ITEMS)
    cache = BufferCache()
    cache.pack(buffers_of(array)).close()
    gc.disable()
    try:
        del cache
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
    del array


def test_cache_changed_array_leaves_no_old_copies(cache: BufferCache) -> None:
    """An array that is changed and sent a hundred times has one copy, not a hundred."""
    array = np.zeros(ITEMS)
    for value in range(100):
        array[:] = value
        cache.pack(buffers_of(array)).close()
    assert cache.kept_bytes == array.nbytes


def test_cache_keeps_within_its_bounds() -> None:
    """Above its bytes or count, the copy that was used least recently goes first."""
    arrays = [np.full(ITEMS, value, "f8") for value in range(4)]
    cache = BufferCache(kept_bytes=3 * MIB)
    for array in (*arrays[:3], arrays[0], arrays[3]):
        cache.pack(buffers_of(array))
    assert cache.kept_bytes == 3 * MIB
    cache.pack(buffers_of(arrays[0]))
    assert (cache.copied, cache.reused) == (4, 2)
    cache.pack(buffers_of(arrays[1]))
    assert cache.copied == 5
    few = BufferCache(kept_count=2)
    for array in arrays:
        few.pack(buffers_of(array))
    assert few.kept_bytes == 2 * MIB
    none = BufferCache(kept_bytes=0)
    none.pack(buffers_of(arrays[0]))
    assert none.kept_bytes == 0


def test_cache_bytes_are_reused_only_while_a_task_has_them(cache: BufferCache) -> None:
    """Of `bytes` nobody is told when they end: their copy goes with the last task."""
    data = bytes(MIB)
    parcel = cache.pack([data])
    again = cache.pack([data])
    assert cache.reused == 1
    assert cache.kept_bytes == 0
    parcel.close()
    again.close()
    cache.pack([data])
    assert cache.copied == 2


def test_cache_needs_few_descriptors_when_these_are_scarce(few_descriptors: int) -> None:
    """Different arrays for hundreds of waiting tasks do not use up the descriptors."""
    cache = BufferCache()
    arrays = [np.full(ITEMS, value, "f8") for value in range(120)]
    parcels = [cache.pack(buffers_of(array)) for array in arrays]
    assert cache.pack(buffers_of(arrays[100])) is not None
    assert cache.reused == 1, "a copy in a file in common is known as well"
    for parcel, array in zip(parcels, arrays, strict=True):
        assert received(parcel) == [array.tobytes()]
        parcel.close()
    assert few_descriptors


def test_burst_same_array_is_not_looked_at_again(
    cache: BufferCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one burst the same array is taken without a comparison."""
    array = np.ones(ITEMS)
    burst = Burst()
    first = cache.pack(buffers_of(array), burst)
    monkeypatch.setattr(comparison, "equal", None)
    second = cache.pack(buffers_of(array), burst)
    assert first.files() == second.files()
    assert (cache.copied, cache.reused) == (1, 1)


def test_burst_different_arrays_stay_different(cache: BufferCache) -> None:
    """Arrays that are made during a burst cannot take the place of one that it has seen."""
    burst = Burst()
    for value in range(20):
        array = np.full(ITEMS, value, "f8")
        assert received(cache.pack(buffers_of(array), burst)) == [array.tobytes()]
        assert received(cache.pack(buffers_of(array[::-1].copy()), burst)) == [array.tobytes()]
        del array


def test_burst_holds_only_what_it_has_seen_last(cache: BufferCache) -> None:
    """A burst over many arrays does not keep them all to its end."""
    burst = Burst()
    before = len(os.listdir("/proc/self/fd"))
    for value in range(30):
        cache.pack(buffers_of(np.full(ITEMS, value, "f8")), burst).close()
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    del burst
    assert len(os.listdir("/proc/self/fd")) == before


def test_burst_that_is_over_does_not_count(cache: BufferCache) -> None:
    """A change after a burst is seen by the next one."""
    array = np.ones(ITEMS)
    cache.pack(buffers_of(array), Burst())
    array[ITEMS // 2] = 2
    assert received(cache.pack(buffers_of(array), Burst())) == [array.tobytes()]


def test_cache_does_not_import_numpy() -> None:
    """Programs without NumPy do not pay for it."""
    program = (
        "import sys; from mpsched._shm.buffercache import BufferCache\n"
        "c = BufferCache(); a = bytearray(1 << 20); p = c.pack([a]); c.pack([a])\n"
        "assert (c.copied, c.reused) == (1, 1), (c.copied, c.reused)\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
