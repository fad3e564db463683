"""One piece of a map, with a helper that flushes and splits at any line of it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as hyp

from mpsched._shm import layout as lay
from mpsched._tasks import records as rec, sealed, state as st
from mpsched._tasks.sealed import Row
from mpsched._worker.chunk import Chunk
from tests.support.lines import Paused, Yielding, before_line, before_lines, lines_of
from tests.support.quiet_pool import QuietPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._tasks.records import Record

ITEMS = 5
RUN = (Chunk.run, Chunk._singles, Chunk._blocks, Chunk._sealed)
"""The main thread's part in the protocol with the helper."""
EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
"""Of how many lengths of a wait one is tried, another for each pair of lines; all of them by night."""


class Piece:
    """A chunk of the first worker, whose items are numbers; notes which have run.

    Attributes:
        ran: items that were run, in order.
        tiny: whether items count as so small that they run in blocks.
    """

    def __init__(
        self,
        fn: Callable[[int], Any] = int,
        *,
        items: int = ITEMS,
        tiny: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        wide: dict[str, Any] = {"short_s": 1e6, "singles_first": 1} if tiny else {"short_s": 1e-12}
        self.pool = QuietPool(**{"flush_s": 1e6, **wide, **(settings or {})})
        self.worker = self.pool.workers[0]
        (self.handle,) = self.pool.entries.allocate(1)
        self.pool.entries.write(self.handle, self.pool.task(), st.word(st.QUEUED, 0))
        self.ran: list[int] = []
        self._fn = fn
        row = Row(sealed.pack_plain(list(range(items))))
        self.chunk = Chunk(self.worker, 7, self.handle, self._run, False, row)

    def _run(self, item: int) -> Any:
        self.ran.append(item)
        return self._fn(item)

    def records(self) -> list[Record]:
        """Return what has reached the parent so far, and keep it there."""
        return self.pool.leader._readers[0].take(1000)[0]

    def values(self) -> dict[int, Any]:
        """Return the results by item; an error's kind is the name R_PART_ERROR."""
        found: dict[int, Any] = {}
        for _ident, _handle, kind, _ns, payload, value in self.records():
            start, count = value & 0xFFFFFFFF, value >> 32
            if kind == rec.R_END and payload:
                start -= count  # it says where the piece ended; the last results end there
            if kind == rec.R_PART or (kind == rec.R_END and payload):
                row = Row(payload)
                assert len(row) == count
                fresh = {start + offset: row.load(offset) for offset in range(count)}
            elif kind == rec.R_PART_ERROR:
                assert count == 1
                fresh = {start: "R_PART_ERROR"}
            else:
                continue
            assert not fresh.keys() & found.keys(), "an item was delivered twice"
            found |= fresh
        return found

    def kept(self, items: int = ITEMS) -> int:
        """Return how many items the parent knows to be this piece's."""
        splits = [record[5] for record in self.records() if record[2] == rec.R_SPLIT]
        assert splits == sorted(splits, reverse=True)
        return int(splits[-1]) if splits else items

    def check(self, items: int = ITEMS) -> None:
        """Assert that each item was run here and delivered, or given to the parent; never both."""
        kept = self.kept(items)
        assert self.ran == list(range(kept))
        assert sorted(self.values()) == list(range(kept))
        end = self.records()[-1]
        assert (end[2], end[5] & 0xFFFFFFFF) == (rec.R_END, kept)

    def block(self, field: int) -> int:
        """Return a word of the worker's block."""
        return self.pool.segment.words[self.worker.block + field]


def lines_of_run(**how: Any) -> int:
    """Return how many lines `run` executes for a piece that nobody disturbs."""
    piece = Piece(**how)
    lines = lines_of(RUN, piece.chunk.run)
    piece.pool.close()
    return lines


@pytest.fixture
def five() -> Iterator[Piece]:
    made = Piece()
    yield made
    made.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
def test_chunk_runs_its_items_in_order(tiny: bool) -> None:
    """Singly or in blocks: each item once, its result under its index, END last."""
    piece = Piece(lambda item: item * 10, items=40, tiny=tiny)
    piece.chunk.run()
    piece.check(40)
    assert piece.values() == {item: item * 10 for item in range(40)}
    assert piece.block(lay.B_LEFT) == piece.block(lay.B_PROGRESS) == piece.block(lay.B_UNSENT) == 0
    piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
def test_chunk_item_is_noted_as_started_before_it_starts(tiny: bool) -> None:
    """What a killed worker may have begun is never run again: PROGRESS is ahead of every item."""
    seen: list[bool] = []
    piece = Piece(lambda item: seen.append(piece.block(lay.B_PROGRESS) > item), tiny=tiny)
    piece.chunk.run()
    assert seen == [True] * ITEMS
    piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("bad", [(0,), (3,), (ITEMS - 1,), (1, 2), (0, 2, 4)])
def test_chunk_item_that_raises_is_the_only_one_to_fail(tiny: bool, bad: tuple[int, ...]) -> None:
    """The error has its item's index, also if the helper sends what there is while it is raised."""

    def fn(item: int) -> int:
        piece.chunk.flush()
        if item in bad:
            raise ValueError(item)
        return item

    piece = Piece(fn, tiny=tiny)
    piece.chunk.run()
    piece.check()
    assert piece.values() == {n: "R_PART_ERROR" if n in bad else n for n in range(ITEMS)}
    piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
def test_chunk_results_are_what_they_were_when_the_item_ended(tiny: bool) -> None:
    """An object that a task uses for each item arrives as it was after each."""
    shared: list[int] = []

    def fn(item: int) -> list[int]:
        shared.append(item)
        return shared

    piece = Piece(fn, tiny=tiny)
    piece.chunk.run()
    assert piece.values() == {item: list(range(item + 1)) for item in range(ITEMS)}
    piece.pool.close()


def test_chunk_block_turns_to_objects_while_the_helper_sends() -> None:
    """A block whose results are first plain and then not: each arrives once."""

    def fn(item: int) -> Any:
        piece.chunk.flush()
        return item if item < 20 else [item]

    piece = Piece(fn, items=40, tiny=True)
    piece.chunk.run()
    assert piece.values() == {n: n if n < 20 else [n] for n in range(40)}
    piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize(
    "results",
    [
        [0, -1, 2**31, -(2**63), 2**200],
        [0.5, -0.0, 1e308, float("inf"), 5e-324],
        [None, True, 1, 1.0, False],
        ["", "a\0b", "\udc80", b"", b"["],
        [1, "1", 1.0, None, b"1"],
    ],
    ids=["ints", "floats", "all kinds of numbers", "texts", "both"],
)
def test_chunk_plain_results_arrive_as_they_are(tiny: bool, results: list[Any]) -> None:
    """Each with its type, sign and every digit, however its row is packed."""
    piece = Piece(results.__getitem__, tiny=tiny)
    piece.chunk.run()
    assert [repr(value) for _, value in sorted(piece.values().items())] == list(map(repr, results))
    piece.pool.close()


@pytest.mark.parametrize("plain", [0, 1, 5, 20])
def test_chunk_results_that_are_not_plain_are_asked_for(plain: int) -> None:
    """The word says that there are some until the helper has sent them: a long item may follow."""
    words: list[int] = []

    def fn(item: int) -> Any:
        words.append(piece.block(lay.B_UNSENT))
        return item if item < plain else [item]

    piece = Piece(fn, items=40, tiny=True)
    piece.chunk.run()
    piece.check(40)
    assert words == [0] + [1] * 39
    piece.pool.close()


@pytest.mark.parametrize(
    ("microseconds", "items", "looks"), [(3_000, 30, 29), (240, 220, 1), (1, 110, 0)]
)
def test_chunk_looks_at_what_items_leave_behind(
    microseconds: int, items: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each item of a millisecond, and of shorter ones every fifty (LEFT-1)."""
    clock = 10**15
    monkeypatch.setattr("time.monotonic_ns", lambda: clock)
    seen: list[int] = []

    def fn(item: int) -> int:
        nonlocal clock
        clock += microseconds * 1000
        return item

    piece = Piece(fn, items=items, settings={"short_s": 250e-6, "flush_s": 1e-3})
    monkeypatch.setattr(type(piece.worker), "look", lambda _worker, now: seen.append(now))
    piece.chunk.run()
    piece.check(items)
    assert len(seen) == looks
    piece.pool.close()


def test_chunk_that_nobody_wants_stops_after_its_item() -> None:
    """The cancel word ends the piece; END says how many items were run."""

    def fn(item: int) -> int:
        if item == 1:
            piece.pool.table.cancel[piece.handle] = 1
        return item

    piece = Piece(fn)
    piece.chunk.run()
    assert piece.ran == [0, 1]
    assert piece.values() == {0: 0, 1: 1}
    assert piece.records()[-1][2::3] == (rec.R_END, 2 | 2 << 32)
    piece.pool.close()


def test_chunk_flush_and_split_after_the_end_do_nothing(five: Piece) -> None:
    """A helper that comes late writes no record behind END."""
    five.chunk.run()
    before = five.records()
    five.chunk.flush()
    assert not five.chunk.split()
    assert five.records() == before


@pytest.mark.parametrize("tiny", [False, True])
def test_chunk_flush_between_any_two_lines_sends_each_result_once(tiny: bool) -> None:
    """The helper sends what is there, whenever it comes."""
    lines = lines_of_run(tiny=tiny)
    assert lines > 20
    for line in range(lines):
        piece = Piece(tiny=tiny)
        with before_line(RUN, line, piece.chunk.flush):
            piece.chunk.run()
        piece.check()
        piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
def test_chunk_split_between_any_two_lines_gives_or_runs_each_item(tiny: bool) -> None:
    """The helper gives the far half away, whenever it comes, once or twice."""
    lines = lines_of_run(tiny=tiny)
    given = 0
    for line in range(lines):
        for again in (line, min(line + 3, lines)):
            piece = Piece(tiny=tiny)
            split = piece.chunk.split
            with before_lines(RUN, {line: split, again: split}):
                piece.chunk.run()
            piece.check()
            given += ITEMS - piece.kept()
            piece.pool.close()
    assert given > 0


@EVERY
def test_chunk_split_that_stands_at_any_line_gives_or_runs_each_item(
    five: Piece, every: int
) -> None:
    """The helper starts at any line of the main thread, stands at any of its own, goes on soon after."""
    steps = lines_of_run(items=2)
    stands = lines_of(Chunk.split, five.chunk.split)
    assert stands > 8
    outcomes = set()
    for begin in range(steps):
        for stand in range(stands):
            for wait in (1, 2, 4, 9)[(begin + stand) % every :: every]:
                two = Piece(items=2)
                helper = Paused(Chunk.split, (stand,), two.chunk.split)
                two.worker.write_lock = Yielding(helper)  # type: ignore[assignment]
                actions = {begin: helper.start, begin + wait: helper.finish}
                with before_lines(RUN, actions):
                    two.chunk.run()
                helper.finish()
                two.check(2)
                outcomes.add(two.kept(2))
                two.pool.close()
    assert outcomes == {1, 2}


@EVERY
def test_chunk_split_that_gives_up_leaves_no_item_behind(five: Piece, every: int) -> None:
    """The main thread may see the smaller end of a split that is about to take it back."""
    steps = lines_of_run(items=2)
    stands = lines_of(Chunk.split, five.chunk.split)
    gave_up = 0
    for stand in range(stands):
        for first in range(steps):
            # The second: until the main thread wants the lock.
            for wait in (2, 12)[(stand + first) % min(every, 2) :: every]:
                two = Piece(items=2)
                helper = Paused(Chunk.split, (stand, stand + 2), two.chunk.split)
                two.worker.write_lock = Yielding(helper)  # type: ignore[assignment]
                actions = {0: helper.start, first: helper.go_on, first + wait: helper.finish}
                with before_lines(RUN, actions):
                    two.chunk.run()
                helper.finish()
                two.check(2)
                gave_up += helper.result is False
                two.pool.close()
    assert gave_up > 0


def changing(kinds: list[str]) -> tuple[Callable[[int], Any], list[Any]]:
    """Return a function that changes and returns the same objects, and what it has returned so far."""
    count, pairs, names, inner = [0], {"a": 0}, {"a"}, [{"b": [0]}]
    returned: list[Any] = []

    def fn(item: int) -> Any:
        count.append(item)
        pairs[str(item)] = item
        names.add(str(item))
        inner[0]["b"].append(item)
        value = {
            "list": count,
            "dict": pairs,
            "set": names,
            "nested": inner,
            "in a tuple": (item, count),
            "tuple": (item, ("__main__", 1.5)),
            "subclass": OrderedDict(pairs),
            "number": item,
            "text": str(item),
            "none": None,
        }[kinds[item]]
        returned.append(copy.deepcopy(value))
        return value

    return fn, returned


KINDS = (
    "list",
    "dict",
    "set",
    "nested",
    "in a tuple",
    "tuple",
    "subclass",
    "number",
    "text",
    "none",
)


@settings(max_examples=60)
@given(kinds=hyp.lists(hyp.sampled_from(KINDS), min_size=1, max_size=12), flushed=hyp.booleans())
def test_chunk_results_of_any_kinds_are_what_they_were_when_the_item_ended(
    kinds: list[str], flushed: bool
) -> None:
    """Also if the function changes what it has returned before, and the helper sends meanwhile."""
    fn, returned = changing(kinds)

    def run(item: int) -> Any:
        if flushed:
            piece.chunk.flush()
        return fn(item)

    piece = Piece(run, items=len(kinds), settings={"result_ring_bytes": 1 << 16})
    try:
        piece.chunk.run()
        piece.check(len(kinds))
        found = [value for _, value in sorted(piece.values().items())]
        assert found == returned
        assert list(map(type, found)) == list(map(type, returned))
    finally:
        piece.pool.close()


@pytest.mark.parametrize("kind", KINDS)
def test_chunk_blocks_end_with_the_first_result_that_can_be_changed(kind: str) -> None:
    """A block of results that nobody can change is run as one; others are taken one by one."""
    fn, returned = changing(["tuple"] + [kind] * 39)
    piece = Piece(fn, items=40, tiny=True, settings={"result_ring_bytes": 1 << 16})
    sizes: list[int] = []
    blocks = Chunk._send_block

    def counted(chunk: Chunk, start: int, fresh: list[Any]) -> None:
        sizes.append(len(fresh))
        blocks(chunk, start, fresh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chunk, "_send_block", counted)
        piece.chunk.run()
    piece.check(40)
    found = [value for _, value in sorted(piece.values().items())]
    late = sum(sizes) + 1 if kind in ("list", "dict", "set", "nested", "in a tuple") else 0
    assert found[late:] == returned[late:]
    if late or kind == "subclass":
        assert len(sizes) == 1  # the block that found out
    else:
        assert sum(sizes) == 39
    piece.pool.close()


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize(
    "fn", [lambda n: (n,), lambda n: {n: n}, lambda n: [[n]]], ids=["tuple", "dict", "nested"]
)
def test_chunk_flush_between_any_two_lines_sends_results_of_each_kind_once(
    tiny: bool, fn: Callable[[int], Any]
) -> None:
    """Whether they are taken as they are, copied or pickled."""
    functions = (*RUN, Chunk._take, Chunk._keep)
    piece = Piece(fn, tiny=tiny)
    lines = lines_of(functions, piece.chunk.run)
    piece.pool.close()
    assert lines > 20
    for line in range(lines):
        piece = Piece(fn, tiny=tiny)
        with before_line(functions, line, piece.chunk.flush):
            piece.chunk.run()
        piece.check()
        assert piece.values() == {item: fn(item) for item in range(ITEMS)}
        piece.pool.close()
