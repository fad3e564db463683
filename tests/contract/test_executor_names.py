"""Names of other pools: an AttributeError that says what to write here."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

import mpsched
from tests.support import tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched import WorkStealingExecutor


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("imap", r"map\("),
        ("imap_unordered", r"ordered=False"),
        ("map_async", r"map\("),
        ("starmap_async", r"starmap\("),
        ("apply", r"run\("),
        ("apply_async", r"submit\("),
        ("terminate", r"close\("),
        ("join", r"await_termination"),
    ],
)
def test_names_of_other_pools_name_their_replacement(
    default_pool: WorkStealingExecutor, name: str, replacement: str
) -> None:
    """What is written against multiprocessing.Pool finds its way."""
    with pytest.raises(AttributeError, match=replacement) as caught:
        getattr(default_pool, name)
    assert name in str(caught.value)
    assert not hasattr(default_pool, name)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [("get", "result"), ("wait", "result"), ("ready", "done"), ("successful", "exception")],
)
def test_names_of_other_futures_name_their_replacement(
    default_pool: WorkStealingExecutor, name: str, replacement: str
) -> None:
    """AsyncResult's methods too."""
    future = default_pool.submit(tasks.square, 3)
    with pytest.raises(AttributeError, match=replacement):
        getattr(future, name)
    assert future.result() == 9


def test_names_that_nobody_has_are_plain_attribute_errors(
    default_pool: WorkStealingExecutor,
) -> None:
    """With the class and the name."""
    with pytest.raises(AttributeError, match=r"WorkStealingExecutor.*submitt"):
        default_pool.submitt  # noqa: B018 - the access is the question
    with pytest.raises(AttributeError, match=r"Future.*resultt"):
        default_pool.submit(tasks.square, 3).resultt  # noqa: B018 - as above


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda ex: type(ex)(max_worker=1),
            r"WorkStealingExecutor\(\).*did you mean 'max_workers'",
        ),
        (lambda ex: type(ex)(initialiser=abs), "did you mean 'initializer'"),
        (lambda ex: ex.map(abs, [1], chunk_size=1), r"^map\(\).*did you mean 'chunksize'"),
        (lambda ex: ex.starmap(abs, [(1,)], orderd=True), r"^starmap\(\).*did you mean 'ordered'"),
        (
            lambda ex: ex.map(abs, [1], retries=2),
            r"ex\.options\(retries=\.\.\.\)\.map\(fn, items\)",
        ),
        (lambda ex: ex.options(retry=1), "did you mean 'retry_on'"),
        (lambda ex: ex.options(chunksize=1), r"map\(fn, items, chunksize=\.\.\.\)"),
        (lambda ex: ex.options(retries=1).map(abs, [1], timeuot=1), "did you mean 'timeout'"),
    ],
)
def test_keywords_that_nobody_has_are_explained(
    default_pool: WorkStealingExecutor, call: Callable[[WorkStealingExecutor], object], says: str
) -> None:
    """With the nearest one, or how to write it."""
    with pytest.raises(TypeError, match=says):
        call(default_pool)


def test_signatures_are_those_that_were_promised() -> None:
    """Positions and names that programs rely on."""
    cls = mpsched.WorkStealingExecutor

    def shape(function: object) -> list[str]:
        return [
            ("*" if one.kind is one.KEYWORD_ONLY else "") + one.name
            for one in inspect.signature(function).parameters.values()  # type: ignore[arg-type]
            if one.name not in {"self", "settings"}
        ]

    assert shape(cls)[:4] == ["max_workers", "mp_context", "initializer", "initargs"]
    assert set(shape(cls)[4:]) == {
        "*preload",
        "*max_tasks_per_child",
        "*max_rss",
        "*max_rss_hard",
        "*max_pending",
        "*on_full",
        "*aging",
    }
    assert shape(cls.map) == [
        "fn",
        "iterables",
        "*timeout",
        "*chunksize",
        "*buffersize",
        "*ordered",
        "*return_exceptions",
        "*progress",
    ]
    assert shape(cls.shutdown) == ["wait", "*cancel_futures"]
    assert shape(cls.close) == ["timeout", "*cancel_pending", "*kill_after"]
    assert shape(cls.await_termination) == ["timeout"]
