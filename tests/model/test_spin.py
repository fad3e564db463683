"""The Promela models: every state is right, and each protocol that is wrong in one step is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.spin.models import MODELS, Model
from tests.model.spin.search import HERE, missing, search

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_spin_short_search_finds_nothing_wrong(model: Model, tmp_path: Path) -> None:
    """With few kills, no state of a model breaks a promise, and nobody waits for ever."""
    found = search(model.name, model.short, tmp_path)
    assert not found.error
    assert found.states > 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "macros"),
    [(model, macros) for model in MODELS for macros in model.full],
    ids=lambda value: value.name if isinstance(value, Model) else "-".join(value),
)
def test_spin_full_search_finds_nothing_wrong(
    model: Model, macros: tuple[str, ...], tmp_path: Path
) -> None:
    """The same with more kills, more thieves, more children."""
    found = search(model.name, macros, tmp_path)
    assert not found.error


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_spin_finds_a_wrong_protocol(model: Model, tmp_path: Path) -> None:
    """The search can find an error: the first wrong one of each model."""
    assert search(model.name, (*model.found_with, model.wrong[0]), tmp_path).error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "macro"),
    [(model, macro) for model in MODELS for macro in model.wrong[1:]],
    ids=lambda value: value.name if isinstance(value, Model) else value,
)
def test_spin_finds_every_wrong_protocol(model: Model, macro: str, tmp_path: Path) -> None:
    """The search notices each of the usual mistakes."""
    assert search(model.name, (*model.found_with, macro), tmp_path).error


def test_spin_macros_are_in_their_models() -> None:
    """A macro that no model knows would change nothing."""
    for model in MODELS:
        text = (HERE / f"{model.name}.pml").read_text()
        named = {macro.partition("=")[0] for each in model.full for macro in each}
        for macro in {*named, *model.wrong, *(m.partition("=")[0] for m in model.short)}:
            assert f"#ifdef {macro}\n" in text or f"#ifndef {macro}\n" in text, (model.name, macro)
