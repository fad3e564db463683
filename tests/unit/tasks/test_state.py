"""The states of a root, and the table of moves in the room's README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mpsched
from mpsched._tasks import state as st
from tests.support.stores import StateView, Stores

README = (Path(mpsched.__file__).parent / "_tasks" / "README.md").read_text("utf-8")
STATES = list(st.TaskState)


def test_state_readme_has_exactly_the_allowed_moves() -> None:
    """The specification's table is `ALLOWED`, row by row."""
    names = "|".join(state.name for state in STATES)
    rows = re.findall(rf"^\| ({names}) \| ({names}) \|", README, re.MULTILINE)
    moves = [(old.name, new.name) for old, news in st.ALLOWED.items() for new in sorted(news)]
    assert sorted(rows) == sorted(moves)
    assert len(set(rows)) == len(rows)


def test_state_plain_integers_are_the_members() -> None:
    """What the inner loop uses and what is documented are the same numbers."""
    for state in STATES:
        assert getattr(st, state.name) == state.value


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("worker", [0, 1, 63, (1 << 48) - 1])
def test_state_word_comes_apart_again(state: st.TaskState, worker: int) -> None:
    """State and worker share a word without touching each other."""
    assert st.parts(st.word(state, worker)) == (state, worker)


def test_state_parts_refuses_a_word_that_is_none() -> None:
    """A word that nobody can have written is an error, not a state."""
    with pytest.raises(ValueError, match="99"):
        st.parts(99)


def test_state_view_of_the_model_tests_refuses_a_forbidden_move() -> None:
    """The checker that other tests rely on can fail, for one word and for a slice."""
    view = StateView(memoryview(bytearray(64)).cast("Q"), Stores())
    view[0] = st.word(st.QUEUED, 1)
    view[1:3] = memoryview(bytearray(st.word(st.QUEUED, 0).to_bytes(8, "little") * 2)).cast("Q")
    with pytest.raises(AssertionError, match="QUEUED"):
        view[0] = st.word(st.RUNNING, 1)
    with pytest.raises(AssertionError, match="QUEUED"):
        view[1:3] = memoryview(bytearray(st.word(st.REVOKED, 0).to_bytes(8, "little") * 2)).cast(
            "Q"
        )
    assert view[0] == st.word(st.QUEUED, 1)
