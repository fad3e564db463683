"""Where the words lie."""

from __future__ import annotations

import itertools
import pickle

import pytest

from mpsched._shm import layout as lay
from mpsched._shm.layout import Layout

SIZES = [
    {},
    {"entries": 2, "inbox_slots": 2, "result_words": 2, "slab_bytes": 8},
    {"entries": 4, "inline_bytes": 3, "function_bytes": 5, "function_slots": 1, "slab_bytes": 1},
]


def areas(layout: Layout) -> list[tuple[str, int, int]]:
    """Return (name, first word, words) of everything, from the meaning of each size."""
    fields = ("state", "cancel", "ident", "meta", "length", "place", "started", "root", "below")
    found = [("header", 0, lay.HEADER_WORDS)]
    for worker in range(layout.workers):
        found += [
            (f"block {worker}", layout.block(worker), lay.BLOCK_WORDS),
            (f"inbox {worker}", layout.inbox(worker), lay.INBOX_HEADER + layout.inbox_slots),
            (f"ring {worker}", layout.ring(worker), lay.INBOX_HEADER + layout.ring_slots),
            (f"result {worker}", layout.result(worker), lay.RESULT_HEADER + layout.result_words),
        ]
    total = layout.entries + layout.workers * layout.children
    found += [(name, getattr(layout, name), total) for name in fields]
    found += [
        ("inline", layout.inline, -(-layout.entries * layout.inline_bytes // 8)),
        (
            "child area",
            layout.child_area,
            -(-layout.workers * layout.children * layout.child_bytes // 8),
        ),
        ("function table", layout.function_table, 2 * layout.function_slots),
        ("function area", layout.function_area, -(-layout.function_bytes // 8)),
        ("slab", layout.slab, -(-layout.slab_bytes // 8)),
    ]
    return found


@pytest.mark.parametrize("workers", [1, 3, 64])
@pytest.mark.parametrize("sizes", SIZES)
def test_layout_areas_do_not_overlap(workers: int, sizes: dict[str, int]) -> None:
    """LAYOUT-1: each area ends before the next begins, and the last inside of the segment."""
    layout = Layout.plan(workers, **sizes)
    spans = sorted((first, first + words, name) for name, first, words in areas(layout))
    for (_, end, name), (first, _, following) in itertools.pairwise(spans):
        assert end <= first, f"{name} reaches into {following}"
    assert spans[-1][1] * 8 <= layout.size_bytes


def test_layout_words_of_different_writers_share_no_cache_line() -> None:
    """The indices of a result ring, and the areas, lie 64 bytes apart."""
    layout = Layout.plan(5)
    assert lay.R_TAIL - lay.R_HEAD >= 8
    firsts = [
        first
        for name, first, _ in areas(layout)
        if not name.startswith(("inbox", "result", "ring"))
    ]
    assert [first % 8 for first in firsts] == [0] * len(firsts)


@pytest.mark.parametrize(
    "name", ["entries", "inbox_slots", "result_words", "children", "ring_slots"]
)
@pytest.mark.parametrize("value", [-4, 0, 1, 3, 12])
def test_layout_ring_that_cannot_be_masked_is_refused(name: str, value: int) -> None:
    """Sizes of rings are powers of two; the error names the value."""
    with pytest.raises(ValueError, match=rf"{name} must be a power of two.*, not {value}$"):
        Layout.plan(1, **{name: value})


def test_layout_entries_fit_into_a_record() -> None:
    """A record has 24 bits for a handle."""
    with pytest.raises(ValueError, match="24 bits"):
        Layout.plan(1, entries=1 << 25)
    with pytest.raises(ValueError, match="24 bits"):
        Layout.plan(2, entries=1 << 23, children=1 << 23)


def test_layout_every_handle_is_in_one_partition() -> None:
    """The parent's entries, then each worker's: together all of them, none twice."""
    layout = Layout.plan(3, entries=8, children=4)
    partitions = [range(layout.entries), *(layout.children_of(worker) for worker in range(3))]
    assert [handle for part in partitions for handle in part] == list(range(layout.total))
    for worker in range(3):
        assert {layout.home_of(handle) for handle in layout.children_of(worker)} == {worker}


def test_layout_is_the_same_in_another_process() -> None:
    """LAYOUT-2: it travels whole."""
    layout = Layout.plan(7, inline_bytes=100)
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_layout_words_of_a_block_have_names_of_their_own() -> None:
    """No two names of a worker block are one word, and the parent's words lie where it says."""
    names = [name for name in vars(lay) if name.startswith("B_") and name != "B_PARENT"]
    words = {name: getattr(lay, name) for name in names}
    assert len(set(words.values())) == len(words)
    assert max(words.values()) < lay.BLOCK_WORDS
    parents = range(lay.B_PARENT, lay.B_PARENT + 8)
    assert {name for name, word in words.items() if word in parents} == {
        "B_STOP",
        "B_REVOKE",
        "B_KILL",
    }
    others = range(lay.B_WANT, lay.BLOCK_WORDS)
    assert {name for name, word in words.items() if word in others} == {"B_WANT", "B_SPARE"}
