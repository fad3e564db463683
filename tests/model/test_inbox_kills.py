"""The inbox with its holders killed before any store, and all orders of what the others do.

Under its lock an operation is alone, so what can be interleaved are whole operations; what can be cut
is a holder, at any store. `explore` walks through all of it for a small script, from where each path
has been before it goes no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from mpsched._deque.inbox import Inbox
from mpsched._shm.layout import I_EARLY, I_FROM, I_HEAD
from tests.support.boxes import Boxes

if TYPE_CHECKING:
    from collections.abc import Callable

OWNER: Final = 0
THIEF: Final = 1
PARENT: Final = 2

Step = tuple[str, tuple[int, ...]]
Script = tuple[Step, ...]


class Place(NamedTuple):
    """What the processes know themselves: their next step, whether they live, what they hold.

    Attributes:
        at: next step of owner, thief, parent; -1: dead and not buried, -2: dead and buried.
        held: handles that owner, thief and parent have in hand.
    """

    at: tuple[int, int, int]
    held: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    def changed(self, who: int, at: int, held: tuple[int, ...]) -> Place:
        """Return this with the place of one process changed."""
        ats, helds = list(self.at), list(self.held)
        ats[who], helds[who] = at, held
        return Place((ats[0], ats[1], ats[2]), (helds[0], helds[1], helds[2]))


class Explorer:
    """Walks through all interleavings and kills of three scripts over one inbox."""

    def __init__(self, scripts: tuple[Script, Script, Script], *, slots: int, start: int) -> None:
        self.boxes = Boxes(2, slots=slots, entries=8, start=start)
        self.scripts = scripts
        self.pushed = {
            handle for what, args in scripts[PARENT] if what == "push" for handle in args
        } | {args[0] for what, args in scripts[PARENT] if what == "lay"}
        self.seen: set[tuple[bytes, Place]] = set()
        self.ends = self.deaths = 0

    def run(self) -> None:
        """Walk from the beginning."""
        todo = [(self.boxes.snapshot(), Place((0, 0, 0), ((), (), ())))]
        while todo:
            snapshot, place = todo.pop()
            if (snapshot, place) in self.seen:
                continue
            self.seen.add((snapshot, place))
            following = self._following(snapshot, place)
            if not following:
                self._end(snapshot, place)
            todo += following

    def _following(self, snapshot: bytes, place: Place) -> list[tuple[bytes, Place]]:
        found = []
        for who, at in enumerate(place.at):
            self.boxes.restore(snapshot)
            if at == -1:
                taken_over = self.boxes.bury(who)
                self.boxes.check()
                parent = place.held[PARENT] + tuple(taken_over)
                after = place.changed(who, -2, ()).changed(PARENT, place.at[PARENT], parent)
                found.append((self.boxes.snapshot(), after))
            elif 0 <= at < len(self.scripts[who]):
                found += self._step(snapshot, place, who)
        return found

    def _step(self, snapshot: bytes, place: Place, who: int) -> list[tuple[bytes, Place]]:
        stores = self.boxes.stores
        stores.count = 0
        held = self._do(who, place)
        made = stores.count
        self.boxes.check()
        after = place.changed(who, place.at[who] + 1, held)
        found = [(self.boxes.snapshot(), after)]
        if who == PARENT:
            return found
        # The same with the process killed before each store, and before it gives the lock back.
        for store in range(made + 1):
            self.boxes.restore(snapshot)
            with stores.killed_before(store):
                self._do(who, place)
            self.deaths += 1
            found.append((self.boxes.snapshot(), place.changed(who, -1, ())))
        return found

    def _do(self, who: int, place: Place) -> tuple[int, ...]:
        """Take the next step of one process, which has the lock; returns what it then has in hand."""
        what, args = self.scripts[who][place.at[who]]
        held = place.held[who]
        inbox = self.boxes.inboxes[OWNER]
        inbox.repair()
        if what == "push":
            if len(inbox) + len(args) > inbox.capacity:
                return (*held, *args)  # the parent looks at the room first
            self.boxes.push(OWNER, args)
        elif what == "lay":
            if not self.boxes.lay(OWNER, *args):
                return (*held, args[0])
        elif what == "early":
            return held + tuple(inbox.take_early(who, args[0]))
        elif what == "remove":
            (handle,) = args
            if inbox.remove(handle):
                self.boxes.free(handle)
                return (*held, handle)
        elif what == "take":
            return held + tuple(inbox.take(args[0], who))
        else:
            assert what == "give_back", what
            # As the helper does: the first one runs, all others go back.
            kept, rest = held[:1], held[1:]
            count = inbox.give_back(rest)
            return kept + rest[: len(rest) - count]
        return held

    def _end(self, snapshot: bytes, place: Place) -> None:
        """Nobody does anything any more: every handle is somewhere, and nowhere twice."""
        self.boxes.restore(snapshot)
        self.boxes.inboxes[OWNER].repair()
        self.boxes.check()
        left = [handle for handles in place.held for handle in handles]
        found = sorted(left + self.boxes.inboxes[OWNER].handles())
        assert found == sorted(self.pushed), (place, found)
        self.ends += 1


PUSH: Final = "push"
SCRIPTS: Final[dict[str, tuple[Script, Script, Script]]] = {
    "take, steal, remove": (
        (("take", (2,)), ("take", (1,))),
        (("take", (1,)), ("take", (2,))),
        ((PUSH, (0, 1)), (PUSH, (2, 3)), ("remove", (1,))),
    ),
    "give back": (
        (("take", (3,)), ("give_back", ()), ("take", (2,))),
        (("take", (2,)),),
        ((PUSH, (0, 1, 2)), (PUSH, (3,)), ("remove", (2,))),
    ),
    "give back what was stolen": (
        (("take", (1,)), ("give_back", ())),
        (("take", (3,)), ("take", (1,))),
        ((PUSH, (4, 5, 6)), ("remove", (4,)), (PUSH, (0, 1))),
    ),
    "early": (
        (("early", (4,)), ("early", (5,)), ("take", (2,))),
        (("take", (1,)), ("early", (5,))),
        (("lay", (0, 5)), (PUSH, (1, 2)), ("remove", (0,)), ("lay", (3, 4))),
    ),
    "early, given back": (
        (("early", (9,)), ("take", (3,)), ("give_back", ())),
        (("early", (9,)),),
        (("lay", (0, 9)), (PUSH, (1, 2, 3)), ("lay", (4, 9))),
    ),
    "remove all": (
        (("take", (1,)), ("give_back", ())),
        (("take", (1,)),),
        ((PUSH, (0, 1)), ("remove", (0,)), ("remove", (1,)), (PUSH, (2,))),
    ),
}


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_inbox_kills_lose_no_root_and_take_none_twice(script: str, start: int) -> None:
    """Whoever is killed at whatever store, each root ends up in exactly one place."""
    explorer = Explorer(SCRIPTS[script], slots=4, start=start)
    explorer.run()
    assert explorer.deaths > 100
    assert explorer.ends > 10


def test_inbox_kills_in_repair_are_repaired_by_the_next() -> None:
    """A holder that dies while it repairs leaves something that repairs to the same."""
    boxes = Boxes(2, slots=4)
    inbox = boxes.inboxes[0]
    for prepare in (_killed_take, _killed_give_back, _killed_early):
        boxes = Boxes(2, slots=4)
        inbox = boxes.inboxes[0]
        prepare(boxes)
        broken = boxes.snapshot()
        made = boxes.stores.of(inbox.repair)
        assert made > 1
        right = boxes.snapshot()
        for first in range(made):
            for second in range(made):
                boxes.restore(broken)
                for store in (first, second):
                    with boxes.stores.killed_before(store):
                        inbox.repair()
                inbox.repair()
                assert boxes.snapshot() == right
                boxes.bury(0)
                boxes.check()


def _killed_take(boxes: Boxes) -> None:
    boxes.push(0, [0, 1, 2])
    with boxes.stores.killed_before(5):
        boxes.inboxes[0].take(3, claimer=0)


def _killed_early(boxes: Boxes) -> None:
    boxes.lay(0, 0, 5)
    with boxes.stores.killed_before(4):
        boxes.inboxes[0].take_early(0, 5)


def _killed_give_back(boxes: Boxes) -> None:
    boxes.push(0, [0, 1, 2])
    handles = boxes.inboxes[0].take(3, claimer=0)
    with boxes.stores.killed_before(8):
        boxes.inboxes[0].give_back(handles)


# --- the test can fail: protocols that are wrong in one line -----------------------------------------


def _take_index_first(self: Inbox, limit: int, claimer: int) -> list[int]:
    """The index moves before the claim is written down."""
    words, base, state = self._words, self._base, self._state
    head = words[base + I_HEAD]
    handles = self.handles()[:limit]
    if not handles:
        return []
    count = handles_span(self, handles)
    words[base + I_HEAD] = head + count
    for handle in handles:
        state[handle] = 2 | claimer << 8
    return handles


def handles_span(inbox: Inbox, handles: list[int]) -> int:
    """Return over how many slots the first handles of an inbox lie."""
    words, base = inbox._words, inbox._base
    head = words[base + I_HEAD]
    index: int = head
    while inbox._slots[index & inbox._mask] != handles[-1]:
        index += 1
    return index - head + 1


def _repair_nothing(_self: Inbox) -> bool:
    return False


def _give_back_index_first(self: Inbox, handles: list[int]) -> int:
    """The index moves before the roots are QUEUED again."""
    words, base = self._words, self._base
    head = words[base + I_HEAD]
    if not handles or len(self) + len(handles) > self.capacity:
        return 0
    words[base + I_HEAD] = head - len(handles)
    for offset, handle in enumerate(handles):
        self._slots[(head - len(handles) + offset) & self._mask] = handle
        self._state[handle] = 1 | self.worker << 8
    return len(handles)


def _take_early_place_first(self: Inbox, claimer: int, now_ns: int) -> list[int]:
    """The place is empty before the claim is written down."""
    words, base = self._words, self._base
    early: int = words[base + I_EARLY]
    if not early or now_ns < words[base + I_FROM]:
        return []
    words[base + I_EARLY] = 0
    self._state[early - 1] = 2 | claimer << 8
    return [early - 1]


MUTANTS: Final[list[tuple[str, Callable[..., object], str]]] = [
    ("take", _take_index_first, "take, steal, remove"),
    ("repair", _repair_nothing, "take, steal, remove"),
    ("give_back", _give_back_index_first, "give back"),
    ("take_early", _take_early_place_first, "early"),
]


@pytest.mark.parametrize(
    ("method", "wrong", "script"), MUTANTS, ids=[m[1].__name__ for m in MUTANTS]
)
def test_inbox_kills_find_a_wrong_protocol(
    monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., object], script: str
) -> None:
    """The exploration notices each of the usual mistakes."""
    monkeypatch.setattr(Inbox, method, wrong)
    with pytest.raises(AssertionError):
        Explorer(SCRIPTS[script], slots=4, start=0).run()
