"""What a root knows of the schedule that it comes from."""

from __future__ import annotations

import enum
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from mpsched._tasks import origin
from mpsched._tasks.table import FLAG_CONTEXT


class Colour(enum.IntEnum):
    """An int of another class, which has a pickle of its own."""

    RED = 1


def table(frame: bytes, *, flags: int = FLAG_CONTEXT, idents: tuple[int, ...] = (7, 7)) -> Any:
    """Return a table of one entry, whose ident changes at each look."""
    seen = iter(idents)

    class Idents:
        def __getitem__(self, _handle: int) -> int:
            return next(seen)

    return SimpleNamespace(ident=Idents(), meta=[flags], read_frame=lambda _handle: frame)


def frame(version: int, who: object) -> bytes:
    """Return the frame of a FLAG_CONTEXT root."""
    return pickle.dumps((None, 0, False, version, who, b"rest"), 5)


@pytest.mark.parametrize(
    "task_id", ["x", b"x", 3, -3, 2.5, None, True, (), ("x", 1, None), 10**300]
)
def test_origin_of_plain_ids_is_the_id(task_id: Any) -> None:
    """It arrives as it is, and messages name it by its repr."""
    found = origin.of(table(frame(4, origin.who(task_id, lambda _: "label"))), 0)
    assert found is not None
    assert (found.version, found.task_id) == (4, task_id)
    assert type(found.task_id) is type(task_id)
    assert found.label == repr(task_id)[:60]


@pytest.mark.parametrize(
    "task_id",
    [
        Colour.RED,
        object(),
        frozenset({1}),
        "x" * 1001,
        10**400,
        (1, (2, 3)),
        ("x",) * 9,
        (Colour.RED,),
    ],
)
def test_origin_of_other_ids_is_their_label(task_id: Any) -> None:
    """No code of the user's runs for it, and no frame grows by it."""
    found = origin.of(table(frame(4, origin.who(task_id, lambda _: "label"))), 0)
    assert found is not None
    assert (found.task_id, found.label) == ("label", "label")


def test_origin_of_what_was_submitted_is_none() -> None:
    """With a context of its own or without."""
    assert origin.of(table(frame(0, None)), 0) is None
    assert origin.of(table(frame(4, ("x",)), flags=0), 0) is None


def test_origin_that_changes_under_the_reader_is_none() -> None:
    """The entry became another's: half a frame, or a whole one of another root."""
    assert origin.of(table(frame(4, ("x",))[:9]), 0) is None
    assert origin.of(table(frame(4, ("x",)), idents=(7, 8)), 0) is None
