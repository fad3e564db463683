"""Home's partition of the task table."""

from __future__ import annotations

import pytest

from mpsched._shm.layout import Layout
from mpsched._tasks import state as st
from mpsched._tasks.children import Children
from mpsched._tasks.table import TaskTable
from tests.support.stores import StateView, Stores, as_memory

HOME = 1
OTHER = 0


class Partitions:
    """A task table of two workers with four children each, and home's side of it."""

    def __init__(self) -> None:
        self.layout = Layout.plan(
            2,
            entries=4,
            inbox_slots=2,
            result_words=2,
            slab_bytes=8,
            inline_bytes=8,
            children=4,
            child_bytes=16,
            ring_slots=4,
        )
        data = memoryview(bytearray(self.layout.size_bytes))
        self.table = TaskTable(data, data.cast("Q"), self.layout)
        self.table.state = as_memory(StateView(self.table.state, Stores()))
        self.home = Children(self.table, self.layout, HOME)

    def child(self) -> int:
        """Return a new published child."""
        handle = self.home.allocate()
        assert handle is not None
        self.table.state[handle] = st.word(st.QUEUED, HOME)
        return handle

    def move(self, handle: int, *states: int, worker: int = OTHER) -> None:
        """Let a child go through some states."""
        for state in states:
            self.table.state[handle] = st.word(state, worker)


@pytest.fixture
def parts() -> Partitions:
    return Partitions()


def test_children_are_of_homes_partition_and_no_more_than_it_has(parts: Partitions) -> None:
    """DEQUE-6: each entry once, none of a neighbour's, then none."""
    handles = [parts.child() for _ in range(4)]
    assert sorted(handles) == list(parts.layout.children_of(HOME))
    assert parts.home.in_use == parts.home.capacity == 4
    assert parts.home.allocate() is None
    parts.home.free(handles[1])
    assert parts.home.allocate() == handles[1]


def test_children_have_idents_that_are_never_used_again(parts: Partitions) -> None:
    """CHILDREN-3: not by the same entry, and not by the process that replaces home."""
    seen = set()
    for _ in range(2):
        for _ in range(9):
            handle = parts.child()
            seen.add(parts.table.ident[handle])
            assert parts.table.ident[handle] >> 48 == HOME
            parts.home.free(handle)
        parts.home = Children(parts.table, parts.layout, HOME)
    assert len(seen) == 18
    assert 0 not in seen


def test_children_new_one_is_wanted_and_not_started(parts: Partitions) -> None:
    """An entry that is used again does not have what its last child left."""
    handle = parts.child()
    parts.table.cancel[handle] = 1
    parts.table.started[handle] = 7
    parts.home.free(handle)
    assert parts.child() == handle
    assert (parts.table.cancel[handle], parts.table.started[handle]) == (0, 0)


def test_children_collectable_are_those_that_are_final(parts: Partitions) -> None:
    """Finished, given back or lost; not what others have, nor what still dies."""
    done, failed, returned, lost = (parts.child() for _ in range(4))
    assert parts.home.collectable() == []
    parts.move(done, st.CLAIMED, st.RUNNING)
    parts.move(lost, st.CLAIMED, st.RUNNING, st.DYING)
    assert parts.home.collectable() == []
    parts.move(done, st.DONE)
    parts.move(failed, st.CLAIMED, st.RUNNING, st.FAILED)
    parts.move(returned, st.CLAIMED)
    parts.move(returned, st.RETURNED, worker=HOME)
    parts.move(lost, st.LOST)
    assert sorted(parts.home.collectable()) == sorted([done, failed, returned, lost])


@pytest.mark.parametrize("end", [st.DONE, st.FAILED, st.LOST])
def test_children_of_a_dead_predecessor_stay_taken_until_they_are_final(
    parts: Partitions, end: int
) -> None:
    """CHILDREN-2: a late outcome hits nobody else's child."""
    running = parts.child()
    parts.move(running, st.CLAIMED, st.RUNNING)
    heir = Children(parts.table, parts.layout, HOME)
    assert heir.in_use == 1
    others = [heir.allocate() for _ in range(3)]
    assert running not in others
    assert None not in others
    assert heir.allocate() is None
    assert heir.collectable() == []
    parts.move(running, end)
    assert heir.allocate() == running
    assert heir.in_use == 4


def test_children_free_refuses_what_is_not_ones_own(parts: Partitions) -> None:
    """Neither a free entry nor a predecessor's."""
    handle = parts.child()
    parts.move(handle, st.CLAIMED)
    with pytest.raises(KeyError):
        Children(parts.table, parts.layout, HOME).free(handle)
    parts.move(handle, st.RUNNING, st.DONE)
    parts.home.free(handle)
    with pytest.raises(KeyError):
        parts.home.free(handle)


def test_children_areas_hold_what_was_written_and_no_neighbours_bytes(parts: Partitions) -> None:
    """Full areas side by side; more than fits is refused before a byte is written."""
    own, others = parts.layout.children_of(HOME), parts.layout.children_of(OTHER)
    for handle in (*others, *own):
        parts.table.write_child(handle, bytes([handle]) * 16)
    for handle in (*others, *own):
        assert parts.table.read_child(handle) == bytes([handle]) * 16
    with pytest.raises(ValueError, match="17 bytes"):
        parts.table.write_child(own[0], bytes(17))
    assert parts.table.read_child(own[0]) == bytes([own[0]]) * 16
    parts.table.write_child(own[0], b"")
    assert parts.table.read_child(own[0]) == b""
