"""Shared arrays and shared objects in one process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mpsched import arrays
from mpsched._shm import references
from mpsched.arrays import Shared, collect_references, shared_array, shared_copy
from mpsched.errors import EncodeError

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def again(value: Any) -> Any:
    """The value, pickled and unpickled in this process."""
    return pickle.loads(pickle.dumps(value, 5))


def is_shared(array: Any) -> bool:
    """Whether the array travels by reference: then writes to what arrives are seen."""
    if not array.size:
        return False
    there = again(array)
    return bool(np.shares_memory(array, there))


# --- making ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"), [(3, (3,)), ((2, 3), (2, 3)), ([4], (4,)), ((), ()), (np.int64(2), (2,))]
)
def test_shared_array_has_the_shape_that_was_asked_for(shape: Any, expected: Any) -> None:
    """A shape is a number or a sequence of numbers, as for `numpy.zeros`, and all is zero."""
    array = shared_array(shape)
    assert array.shape == expected
    assert array.dtype == np.float64
    assert not array.any()


@pytest.mark.parametrize("shape", [0, (0, 3), (2, 0)])
def test_shared_array_without_items_works(shape: Any) -> None:
    """An array without items can be made and sent."""
    array = shared_array(shape, "i4")
    there = again(array)
    assert there.shape == array.shape
    assert there.dtype == array.dtype


def test_shared_array_is_filled() -> None:
    """`fill` is a value for all items, or what fits the shape."""
    assert np.isnan(shared_array((2, 2), "f4", fill=np.nan)).all()
    assert shared_array((2, 3), int, fill=[1, 2, 3]).tolist() == [[1, 2, 3], [1, 2, 3]]


def test_shared_array_structured_types_work() -> None:
    """Types with fields, texts and dates travel."""
    dtype = np.dtype([("name", "U5"), ("when", "M8[D]"), ("grid", "f4", (2, 2))])
    array = shared_array(2, dtype)
    array["name"] = ["ab", "cde"]
    there = again(array)
    assert there.dtype == dtype
    assert there["name"].tolist() == ["ab", "cde"]
    there["grid"][1] = 7
    assert array["grid"][1].tolist() == [[7, 7], [7, 7]]


@pytest.mark.parametrize("dtype", [object, [("a", "O")]])
def test_shared_array_of_objects_is_refused(dtype: Any) -> None:
    """Python objects live in one process: a TypeError, not a crash in another."""
    with pytest.raises(TypeError, match="Python objects"):
        shared_array(2, dtype)


def test_shared_array_negative_side_is_refused() -> None:
    """A negative side is a ValueError that shows the shape."""
    with pytest.raises(ValueError, match=r"\(2, -1\)"):
        shared_array((2, -1))


def test_shared_array_too_large_for_memory_is_an_error() -> None:
    """More than the machine has is an OSError that names the size, at once."""
    with pytest.raises(OSError, match="cannot get 1,152,921,504,606,846,976 bytes"):
        shared_array(1 << 60, "u1")


def test_shared_copy_has_the_values_and_its_own_memory() -> None:
    """A shared copy has shape, type, values and order of its source, and no memory in common."""
    for source in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))):
        array = shared_copy(source)
        assert array.tolist() == source.tolist()
        assert array.dtype == source.dtype
        assert array.flags.f_contiguous == source.flags.f_contiguous
        assert not np.shares_memory(array, source)
        assert is_shared(array)
    assert shared_copy([1, 2]).tolist() == [1, 2]
    assert shared_copy(3.5).shape == ()


def test_shared_array_without_numpy_names_the_extra() -> None:
    """Without NumPy the error says what to install; importing the module works."""
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from mpsched.arrays import shared_array\n"
        "try: shared_array(3)\n"
        "except ImportError as e: print(e, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "shared arrays need NumPy: pip install 'mpsched[numpy]'", done.stderr


# --- what goes by reference --------------------------------------------------------------------


def test_shared_array_is_the_same_memory_after_a_round_trip() -> None:
    """What arrives in the process that has the array is the same memory, both ways."""
    array = shared_array(4)
    there = again(array)
    there[1] = 5
    array[2] = 6
    assert array.tolist() == there.tolist() == [0, 5, 6, 0]


VIEWS: dict[str, Any] = {
    "slice": lambda a: a[1:3],
    "step": lambda a: a[::2, 1::2],
    "backwards": lambda a: a[::-1, ::-1],
    "row": lambda a: a[2],
    "transposed": lambda a: a.T,
    "reshaped": lambda a: a.reshape(2, -1),
    "other type": lambda a: a.view("u1"),
    "diagonal": lambda a: a.diagonal(),
    "one item": lambda a: a[1:2, 1:2].reshape(()),
    "repeated": lambda a: np.broadcast_to(a[1], (3, 6), subok=True),
    "view of a view": lambda a: again(a[1:])[1:],
}


@pytest.mark.parametrize("name", VIEWS)
def test_shared_array_views_go_by_reference(name: str) -> None:
    """Every kind of view arrives as the same items in the same memory."""
    array = shared_copy(np.arange(24.0).reshape(4, 6))
    view = VIEWS[name](array)
    there = again(view)
    assert there.shape == view.shape
    assert there.strides == view.strides
    assert there.dtype == view.dtype
    assert there.flags.writeable == view.flags.writeable
    assert there.tolist() == view.tolist()
    array *= 2
    assert there.tolist() == view.tolist()
    assert np.shares_memory(there, array)


RESULTS: dict[str, Any] = {
    "sum of arrays": lambda a: a + a,
    "function": np.sqrt,
    "copy": lambda a: a.copy(),
    "picked by a list": lambda a: a[[0, 1]],
    "picked by a mask": lambda a: a[a > 3],
    "sorted": np.sort,
    "concatenated": lambda a: np.concatenate([a, a]),
    "like": np.zeros_like,
    "deep copy": copy.deepcopy,
    "plain": np.asarray,
    "other type": lambda a: a.astype("f4"),
    "matrix product": lambda a: a @ a.T,
}


@pytest.mark.parametrize("name", RESULTS)
def test_shared_array_results_go_by_value(name: str) -> None:
    """What is computed from a shared array, and a plain array made of it, travels by value."""
    array = shared_copy(np.arange(24.0).reshape(4, 6))
    result = RESULTS[name](array)
    there = again(result)
    assert type(there) is np.ndarray
    assert there.tolist() == result.tolist()
    assert not np.shares_memory(there, result)


def test_shared_array_reductions_are_numbers() -> None:
    """Sums and single items are numbers and not arrays without dimensions."""
    array = shared_copy([1.0, 2.0, 3.0])
    for number in (array.sum(), array.mean(), array[1], array.max(), np.add.reduce(array)):
        assert isinstance(number, np.float64)
    assert type(array.sum(keepdims=True)) is np.ndarray


def test_shared_array_changes_in_place_stay_shared() -> None:
    """`+=`, `out=`, `sort()` and `fill` write the shared memory."""
    array = shared_copy([3.0, 1.0, 2.0])
    there = again(array)
    array += 1
    np.multiply(array, 2, out=array)
    array.sort()
    assert there.tolist() == [4, 6, 8]
    assert is_shared(array)


def test_shared_array_read_only_view_arrives_read_only() -> None:
    """A view that may not be written may not be written there either."""
    array = shared_array(3)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        again(array)[0] = 1


def test_shared_array_reference_is_small() -> None:
    """The pickle of a large shared array is a few hundred bytes."""
    assert len(pickle.dumps(shared_array((1000, 1000)), 5)) < 600


def test_shared_array_all_protocols_work() -> None:
    """A reference can be made with every protocol that NumPy supports."""
    array = shared_array(2)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert np.shares_memory(pickle.loads(pickle.dumps(array, protocol)), array)


# --- lifetimes ---------------------------------------------------------------------------------


def shared_files() -> int:
    """How many files of shared memory this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "mpsched-" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("mpsched-" in line for line in maps)


def test_shared_array_is_freed_with_its_last_view() -> None:
    """Descriptor and memory live as long as the array or a view of it, and no longer."""
    before = shared_files(), mapped()
    array = shared_array(1000)
    view = array[10:20]
    del array
    assert is_shared(view)
    assert (shared_files(), mapped()) == (before[0] + 1, before[1] + 1)
    del view
    assert (shared_files(), mapped()) == before


def test_shared_array_plain_view_keeps_the_memory_valid() -> None:
    """A plain array over shared memory stays valid when the shared array is gone."""
    array = shared_array(1000, fill=3)
    plain = np.asarray(array)[5:9]
    del array
    gc.collect()
    assert plain.tolist() == [3, 3, 3, 3]


def test_shared_array_reference_to_a_freed_array_says_what_to_do() -> None:
    """Unpickling a reference to freed memory is an error that names process and remedy."""
    data = pickle.dumps(shared_array(3), 5)
    with pytest.raises(FileNotFoundError, match=rf"process {os.getpid()} has freed it. Keep"):
        pickle.loads(data)


def test_shared_array_reference_is_never_another_array() -> None:
    """A new array in the place of a freed one is not taken for it."""
    for _ in range(20):
        array = shared_array(3)
        data = pickle.dumps(array, 5)
        del array
        other = shared_array(3)
        with pytest.raises(FileNotFoundError):
            pickle.loads(data)
        del other


def test_collected_references_keep_the_memory() -> None:
    """What was pickled inside `collect_references` can be unpickled while the list is kept."""
    before = shared_files()
    array = shared_array(3, fill=7)
    with collect_references() as held:
        data = pickle.dumps([array, array[1:], array], 5)
    del array
    assert len(held) == 1
    assert [one.tolist() for one in pickle.loads(data)] == [[7] * 3, [7] * 2, [7] * 3]
    del held
    assert shared_files() == before


def test_collected_references_nest() -> None:
    """An outer block sees what an inner one collects; each has only what is pickled inside."""
    one, two = shared_array(1), shared_array(1)
    with collect_references() as outer:
        pickle.dumps(one)
        with collect_references() as inner:
            pickle.dumps(two)
    pickle.dumps(shared_array(1))
    assert [len(outer), len(inner)] == [2, 1]
    assert outer[1] is inner[0]


def test_collected_references_end_with_an_error() -> None:
    """A pickling that fails leaves nothing that goes on collecting."""
    with pytest.raises(TypeError), collect_references() as held:
        pickle.dumps([shared_array(1), threading.Lock()])
    assert len(held) == 1
    pickle.dumps(shared_array(1))
    assert len(held) == 1


def test_collected_references_are_those_of_one_thread() -> None:
    """What another thread pickles meanwhile is not collected."""
    array = shared_array(1)
    with collect_references() as held:
        thread = threading.Thread(target=pickle.dumps, args=(array,))
        thread.start()
        thread.join()
    assert held == []


def test_carried_descriptors_make_freed_arrays_arrive() -> None:
    """A reference whose array is gone is found among descriptors that came with it."""
    before = shared_files()
    array = shared_array(3, fill=5)
    with collect_references() as held:
        data = pickle.dumps(array, 5)
    carried = arrays.Carried([fd for one in held for fd in one.descriptors()])
    del array, held
    with carried.used():
        there, same = pickle.loads(data), pickle.loads(data)
    carried.close()
    carried.close()
    assert there.tolist() == [5, 5, 5]
    assert np.shares_memory(there, same)
    assert is_shared(there)
    del there, same
    assert shared_files() == before


def test_carried_descriptors_count_only_inside_their_block() -> None:
    """After the block, and without it, the reference is not found."""
    array = shared_array(3)
    with collect_references() as held:
        data = pickle.dumps(array, 5)
    carried = arrays.Carried([fd for one in held for fd in one.descriptors()])
    del array, held
    with carried.used():
        pass
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


# --- share -------------------------------------------------------------------------------------


def test_shared_object_arrives_as_itself() -> None:
    """A handle unpickles as the object that was shared, equal and separate each time."""
    value = {"table": np.arange(300_000.0), "text": "x" * 10, "small": np.arange(3)}
    handle = Shared(value)
    one, two = again(handle), again([handle])[0]
    for got in (one, two):
        assert got["text"] == value["text"]
        assert (got["table"] == value["table"]).all()
        assert got["small"].tolist() == [0, 1, 2]
    one["table"][0] = -1
    one["small"][0] = -1
    assert two["table"][0] == value["table"][0] == 0
    assert handle.get()["table"][0] == 0
    assert handle.get()["small"][0] == 0


def test_shared_object_is_what_it_was_when_it_was_shared() -> None:
    """Later changes of the object are not seen."""
    value = [1, np.zeros(MIB)]
    handle = Shared(value)
    value[0] = 2
    value[1][:] = 9
    got = again(handle)
    assert got[0] == 1
    assert not got[1].any()


def test_shared_object_large_arrays_are_mapped() -> None:
    """A large array in it is not copied when it arrives."""
    handle = Shared(np.zeros(4 * MIB, "u1"))
    before = mapped()
    got = again(handle)
    assert mapped() == before + 1
    assert got.flags.writeable
    assert handle.nbytes > 4 * MIB


def test_shared_object_is_freed_with_its_handle() -> None:
    """A handle that is forgotten or closed frees its memory; views that arrived stay valid."""
    before = shared_files()
    handle = Shared(np.full(MIB, 3.0))
    got = again(handle)
    assert shared_files() > before
    del handle
    assert shared_files() == before
    assert got.sum() == 3.0 * MIB
    with Shared([1]) as other:
        assert shared_files() > before
        assert repr(other) == f"<mpsched.Shared {other.nbytes} bytes>"
    assert shared_files() == before
    assert repr(other) == "<mpsched.Shared closed>"
    assert other.nbytes == 0


def test_shared_object_closed_handle_says_so() -> None:
    """A closed handle cannot be sent or read: an error that says why."""
    handle = Shared([1])
    handle.close()
    handle.close()
    for use in (handle.get, lambda: pickle.dumps(handle)):
        with pytest.raises(ValueError, match="this shared object is closed"):
            use()


def test_shared_object_close_waits_for_tasks_that_have_it() -> None:
    """What was sent before `close` arrives, because its sender keeps what it refers to."""
    handle = Shared([1, 2])
    with collect_references() as held:
        data = pickle.dumps(handle, 5)
    handle.close()
    assert pickle.loads(data) == [1, 2]
    held.clear()
    with pytest.raises(FileNotFoundError, match="share"):
        pickle.loads(data)


def test_shared_object_keeps_the_shared_arrays_in_it() -> None:
    """A shared array inside a shared object lives with the handle and stays one array."""
    array = shared_array(3)
    handle = Shared({"array": array})
    del array
    one, two = again(handle)["array"], again(handle)["array"]
    one[0] = 4
    assert two[0] == 4


def test_shared_object_that_cannot_be_pickled_is_an_encode_error() -> None:
    """The error is that of any argument that cannot be pickled; nothing stays open."""
    before = shared_files()
    with pytest.raises(EncodeError):
        Shared([np.zeros(MIB), threading.Lock()])
    assert shared_files() == before


def test_shared_object_of_the_main_module_travels_by_value() -> None:
    """Functions that other processes cannot import can be shared."""
    factor = 3
    assert again(Shared(lambda x: x * factor))(5) == 15


def test_block_survives_a_failed_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that cannot be mapped leaves no descriptor."""
    before = shared_files()

    def fail(_fd: int, _size: int) -> memoryview:
        raise OSError(12, "no memory")

    monkeypatch.setattr("mpsched._shm.mapping.map_shared", fail)
    with pytest.raises(OSError, match="no memory"):
        references.Block.create(10)
    assert shared_files() == before
