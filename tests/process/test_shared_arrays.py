"""Shared arrays and objects between real processes."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from typing import TYPE_CHECKING

import pytest

from mpsched._shm import transfer
from mpsched.arrays import Carried, Shared, collect_references, shared_array
from tests.support import payload_calls as calls
from tests.support.elsewhere import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

np = pytest.importorskip("numpy")

MIB = 1 << 20


@pytest.fixture
def other() -> Iterator[Elsewhere]:
    with Elsewhere() as process:
        yield process


def test_shared_array_writes_are_seen_by_all(other: Elsewhere) -> None:
    """What one process writes, the others read; slices reach the same memory."""
    array = shared_array((3, 4))
    with Elsewhere() as third:
        other.call(calls.set_item, pickle.dumps(array), (0, 0), 1.5)
        third.call(calls.set_item, pickle.dumps(array[1:]), (0, 1), 2.5)
        assert other.call(calls.add_one_in_place, pickle.dumps(array[::2])) == 9.5
    assert array.tolist() == [[2.5, 1, 1, 1], [0, 2.5, 0, 0], [1, 1, 1, 1]]


def test_shared_array_write_is_seen_while_the_other_runs(other: Elsewhere) -> None:
    """A process that looks at an array sees what is written meanwhile."""
    array = shared_array(1)
    other.start(calls.sleep_until_told, pickle.dumps(array))
    array[0] = 4
    assert other.result() == 4


def test_shared_array_neighbours_do_not_lose_writes(other: Elsewhere) -> None:
    """Two processes that write neighbouring items lose nothing."""
    array = shared_array(2, "i8")
    with Elsewhere() as third:
        for index, process in enumerate((other, third)):
            process.start(calls.increments, pickle.dumps(array), index, 20_000)
        other.result()
        third.result()
    assert array.tolist() == [20_000, 20_000]


def test_shared_array_is_mapped_once_in_a_process(other: Elsewhere) -> None:
    """An array that is received a hundred times takes one descriptor and one mapping."""
    array = shared_array(3)
    assert other.call(calls.load_many_times, pickle.dumps(array), 100) == (1, 1)


def test_shared_array_stays_valid_when_its_creator_frees_it(other: Elsewhere) -> None:
    """A process that holds an array keeps its memory when the creator forgets it."""
    array = shared_array(3, fill=2)
    data = pickle.dumps(array)
    other.call(calls.loads, data)
    del array
    assert other.call(calls.add_one_in_place, data) == 9
    other.call(calls.forget)
    with pytest.raises(FileNotFoundError, match=f"process {os.getpid()} has freed it"):
        other.call(calls.add_one_in_place, data)


def test_shared_array_freed_while_its_task_waits_arrives(other: Elsewhere) -> None:
    """A reference that waits in a queue is good while what `collect_references` gave is kept."""
    array = shared_array(3, fill=2)
    with collect_references() as held:
        data = pickle.dumps(array[1:])
    del array
    gc.collect()
    shared_array(3)  # takes the number that would be free
    assert other.call(calls.add_one_in_place, data) == 6
    held.clear()


def test_shared_array_that_comes_back_is_the_same_memory(other: Elsewhere) -> None:
    """An array that a worker returns is the array that the parent has."""
    array = shared_array(3)
    other.call(calls.loads, pickle.dumps(array))
    back = pickle.loads(other.call(calls.send_back, 1))
    back[1] = 8
    assert array[1] == 8


def receive_result(other: Elsewhere, tag: int, data: bytes) -> object:
    arrivals = transfer.Arrivals(other.channel)
    carried = Carried(arrivals.fds(tag))
    arrivals.close(tag)
    try:
        with carried.used():
            return pickle.loads(data)
    finally:
        carried.close()


def test_shared_array_that_comes_back_after_the_parent_freed_it(other: Elsewhere) -> None:
    """An array that only the worker had kept is sent along with the result."""
    array = shared_array(3, fill=4)
    other.call(calls.loads, pickle.dumps(array))
    del array
    back = receive_result(other, 1, other.call(calls.send_back, 1))
    assert isinstance(back, np.ndarray)
    assert back.tolist() == [4, 4, 4]


def test_shared_array_made_by_a_worker_outlives_it(other: Elsewhere) -> None:
    """An array that a worker made arrives, is shared on, and survives the worker's death."""
    data = other.call(calls.make_and_send, 1, 4)
    other.kill()
    array = receive_result(other, 1, data)
    assert isinstance(array, np.ndarray)
    with Elsewhere() as third:
        third.call(calls.set_item, pickle.dumps(array), 3, 30)
    assert array.tolist() == [0, 1, 2, 30]


def test_shared_array_reference_from_a_dead_process_is_an_error(other: Elsewhere) -> None:
    """A reference whose process was killed says that the memory is gone."""
    data = other.call(calls.make_and_send, 1, 4)
    other.kill()
    with pytest.raises(FileNotFoundError, match=f"process {other.pid} has freed it"):
        pickle.loads(data)


def test_shared_array_frees_everything_everywhere(other: Elsewhere) -> None:
    """After many arrays there and back, both processes have the descriptors they had."""

    def one_round(tag: int) -> None:
        array = shared_array(MIB // 8)
        other.call(calls.loads, pickle.dumps(array))
        receive_result(other, tag, other.call(calls.send_back, tag))

    one_round(0)
    theirs, mine = other.call(calls.open_fds), calls.open_fds()
    for tag in range(1, 30):
        one_round(tag)
    assert (other.call(calls.open_fds), calls.open_fds()) == (theirs, mine)


def test_shared_object_arrives_in_other_processes(other: Elsewhere) -> None:
    """A handle arrives as the object; its large arrays cost the receiver no memory."""
    handle = Shared({"array": np.ones(4 * MIB, "u1"), "text": "abc"})
    got = other.call(calls.loads, pickle.dumps(handle))
    assert got["text"] == "abc"
    assert got["array"].sum() == 4 * MIB
    handle.close()
    assert other.call(calls.loads, pickle.dumps([5])) == [5]


def test_shared_object_writes_stay_private(other: Elsewhere) -> None:
    """What a task writes into a shared object is seen by no other task."""
    with Shared(np.zeros(MIB)) as handle:
        data = pickle.dumps(handle)
        for _ in range(2):
            assert other.call(calls.add_one_in_place, data) == MIB
        assert not handle.get().any()


def test_shared_object_closed_before_it_arrives_is_an_error(other: Elsewhere) -> None:
    """A reference to a closed handle that nobody kept says what to do."""
    handle = Shared([1])
    data = pickle.dumps(handle)
    handle.close()
    with (
        contextlib.closing(Shared([2])),
        pytest.raises(FileNotFoundError, match="the handle that share"),
    ):
        other.call(calls.loads, data)
