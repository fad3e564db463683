"""One inbox, one process, nobody killed."""

from __future__ import annotations

import pytest

from mpsched._deque.ring import TOMB
from mpsched._shm.layout import I_DIRTY, I_HEAD, I_TAIL
from mpsched._tasks import state as st
from tests.support.boxes import Boxes


@pytest.fixture
def boxes() -> Boxes:
    return Boxes(2, slots=4)


def test_inbox_take_is_first_in_first_out(boxes: Boxes) -> None:
    """The oldest roots come first, and are CLAIMED by who takes them."""
    boxes.push(0, [5, 3])
    boxes.push(0, [7])
    assert boxes.inboxes[0].take(2, claimer=1) == [5, 3]
    assert [st.parts(boxes.state[handle]) for handle in (5, 3, 7)] == [
        (st.CLAIMED, 1),
        (st.CLAIMED, 1),
        (st.QUEUED, 0),
    ]
    boxes.check()


def test_inbox_take_from_an_empty_one_stores_nothing(boxes: Boxes) -> None:
    """A thief that finds nothing leaves no undo record either."""
    assert boxes.stores.of(lambda: boxes.inboxes[0].take(3, claimer=1)) == 0


@pytest.mark.parametrize("start", range(5))
def test_inbox_wraps_around(start: int) -> None:
    """A batch that crosses the end of the slots comes out in order, wherever the indices are."""
    boxes = Boxes(1, slots=4, start=start)
    inbox = boxes.inboxes[0]
    for round_ in range(9):
        handles = [(round_ + offset) % 16 for offset in range(3)]
        boxes.push(0, handles)
        assert inbox.take(4, claimer=0) == handles
        for handle in handles:
            boxes.free(handle)
        boxes.check()


def test_inbox_full_one_is_taken_whole(boxes: Boxes) -> None:
    """As many roots as there are slots."""
    boxes.push(0, [0, 1, 2, 3])
    assert len(boxes.inboxes[0]) == 4
    assert boxes.inboxes[0].take(9, claimer=0) == [0, 1, 2, 3]


def test_inbox_give_back_puts_roots_before_what_is_there(boxes: Boxes) -> None:
    """What was claimed first is taken first again."""
    boxes.push(0, [0, 1, 2])
    claimed = boxes.inboxes[0].take(3, claimer=0)
    boxes.push(0, [3])
    assert boxes.inboxes[0].give_back(claimed[1:]) == 2
    boxes.check()
    assert boxes.inboxes[0].handles() == [1, 2, 3]


def test_inbox_give_back_takes_the_last_ones_that_fit(boxes: Boxes) -> None:
    """Those that run last anyway are given away; the rest stays claimed."""
    boxes.push(0, [0, 1, 2])
    claimed = boxes.inboxes[0].take(3, claimer=0)
    boxes.push(0, [3, 4, 5])
    assert boxes.inboxes[0].give_back(claimed) == 1
    assert boxes.inboxes[0].handles() == [2, 3, 4, 5]
    assert st.parts(boxes.state[1]) == (st.CLAIMED, 0)
    assert boxes.inboxes[0].give_back([0, 1]) == 0
    boxes.check()


def test_inbox_give_back_before_the_first_push(boxes: Boxes) -> None:
    """Stolen roots go into an inbox whose head has never moved: indices start above zero."""
    boxes.push(0, [0, 1, 2, 3])
    stolen = boxes.inboxes[0].take(4, claimer=1)
    assert boxes.inboxes[1].give_back(stolen) == 4
    boxes.check()
    assert boxes.inboxes[1].take(4, claimer=1) == stolen


def test_inbox_remove_leaves_a_slot_that_takers_pass(boxes: Boxes) -> None:
    """A root that was taken back is not found again, in the middle or at the head."""
    boxes.push(0, [0, 1, 2, 3])
    for handle in (0, 2):
        assert boxes.inboxes[0].remove(handle)
        boxes.free(handle)
    assert not boxes.inboxes[0].remove(2)
    assert boxes.slots(0) == [1, None, 3]
    boxes.check()
    assert boxes.inboxes[0].take(1, claimer=1) == [1]
    assert boxes.inboxes[0].take(1, claimer=1) == [3]
    assert len(boxes.inboxes[0]) == 0


def test_inbox_remove_leaves_no_slot_at_either_end(boxes: Boxes) -> None:
    """Whoever counts slots counts roots that wait: one that holds nothing any more is empty."""
    inbox = boxes.inboxes[0]
    for gone, left in (
        ([0, 1, 2], []),
        ([2, 1, 0], []),
        ([1, 2], [0]),
        ([1, 0], [2]),
        ([1], [0, None, 2]),
    ):
        boxes.push(0, [0, 1, 2])
        for handle in gone:
            assert inbox.remove(handle)
            boxes.free(handle)
        assert boxes.slots(0) == left
        boxes.check()
        for handle in inbox.take(3, claimer=1):
            boxes.free(handle)


def test_inbox_take_finds_nothing_only_if_there_is_nothing(boxes: Boxes) -> None:
    """Roots that were taken back hide none behind them, and an inbox of nothing else is emptied."""
    boxes.push(0, [0, 1, 2, 3])
    for handle in (0, 1, 2):
        boxes.inboxes[0].remove(handle)
        boxes.free(handle)
    assert boxes.inboxes[0].take(1, claimer=0) == [3]
    boxes.push(0, [4])
    boxes.inboxes[0].remove(4)
    boxes.free(4)
    assert len(boxes.inboxes[0]) == 0
    assert boxes.inboxes[0].take(1, claimer=0) == []
    assert len(boxes.inboxes[0]) == 0
    boxes.check()


def test_inbox_repair_of_a_consistent_one_changes_nothing(boxes: Boxes) -> None:
    """Every holder repairs first; nearly always there is nothing to do."""
    boxes.push(0, [0, 1])
    boxes.inboxes[0].take(1, claimer=1)
    before = boxes.snapshot()
    assert not boxes.inboxes[0].repair()
    assert boxes.snapshot() == before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (I_DIRTY, 1, "dirty"),
        (I_TAIL, 0, "head"),
        (I_HEAD, 99, "head"),
        (I_TAIL, 99, "head"),
    ],
)
def test_inbox_check_invariants_says_what_is_wrong(
    boxes: Boxes, field: int, value: int, message: str
) -> None:
    """The check that all model tests rely on can fail."""
    boxes.push(0, [0, 1])
    boxes.memory[boxes.layout.inbox(0) + field] = value
    with pytest.raises(AssertionError, match=message):
        boxes.inboxes[0].check_invariants()


def test_inbox_check_invariants_sees_wrong_slots(boxes: Boxes) -> None:
    """A handle that lies there twice, and one that is not QUEUED here."""
    boxes.push(0, [0, 1])
    boxes.inboxes[0].push([0])
    with pytest.raises(AssertionError, match="twice"):
        boxes.inboxes[0].check_invariants()
    boxes.inboxes[0].take(3, claimer=1)
    boxes.inboxes[0].push([1])
    with pytest.raises(AssertionError, match="1 is"):
        boxes.inboxes[0].check_invariants()


def test_inbox_tomb_is_no_handle(boxes: Boxes) -> None:
    """No entry of a task table has the number that marks a slot."""
    assert boxes.layout.entries < TOMB
