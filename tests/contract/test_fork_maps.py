"""`map` of a pool's executor in one of its tasks: each item is a child."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mpsched import WorkStealingExecutor
from tests.support import forkmaps as calls

HANG_S = 60.0


def run(ex: WorkStealingExecutor, fn: Any, *args: Any) -> Any:
    return ex.submit(fn, ex, *args).result(HANG_S)


def test_map_in_a_task_gives_what_map_does(default_pool: WorkStealingExecutor) -> None:
    """Several inputs, the shortest ends it; rows; none; in order or not."""
    assert run(default_pool, calls.plain) == [
        [10, 12, 14, 16],
        [3, 7],
        [],
        list(range(1, 41)),
    ]


def test_map_in_a_task_gives_exceptions_if_asked(default_pool: WorkStealingExecutor) -> None:
    """In the place of the result, and goes on."""
    assert run(default_pool, calls.exceptions) == [
        "0",
        "ValueError('1 is odd')",
        "2",
        "ValueError('3 is odd')",
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_map_in_a_task_ends_with_its_first_failure(workers: int) -> None:
    """What has not started then never does, and no failure is left for the task's end."""
    with WorkStealingExecutor(workers) as ex:
        for _ in range(20):
            got, ran, text, siblings = run(ex, calls.first_failure, 60)
            assert (got, text) == ([0, 1], "2")
            assert ran[:3] == [0, 1, 2]
            assert siblings == len(ran) - 3
            assert workers > 1 or len(ran) == 3


def test_map_in_a_task_pulls_inputs_without_a_length(default_pool: WorkStealingExecutor) -> None:
    """At most `buffersize` items ahead of what was read."""
    first, pulled = run(default_pool, calls.lazily)
    assert first == list(range(1, 11))
    assert 10 <= pulled <= 15


def test_map_in_a_task_that_is_closed_starts_no_more() -> None:
    """As in the program."""
    with WorkStealingExecutor(1) as ex:
        assert run(ex, calls.closed) == [0]


def test_map_in_a_task_that_is_closed_drops_failures(default_pool: WorkStealingExecutor) -> None:
    """What has run meanwhile, and failed, fails nobody."""
    for _ in range(20):
        assert run(default_pool, calls.closed)[0] == 0


def test_map_in_a_task_raises_what_its_input_raises(default_pool: WorkStealingExecutor) -> None:
    """Behind the results of what came before."""
    assert run(default_pool, calls.input_fails) == ([0, 1, 2], "the input broke")


def test_map_in_a_task_has_a_timeout(default_pool: WorkStealingExecutor) -> None:
    """It is looked at between two results, each of which this task computes itself."""
    got: list[Any] = []
    until = time.monotonic() + HANG_S
    while not got:  # a task that is put aside for so long has no result in time
        assert time.monotonic() < until
        got, text = run(default_pool, calls.times_out)
        assert text == "map was not done after 0.1 seconds"
        assert len(got) < 1000


@pytest.mark.parametrize(
    ("keyword", "value", "text"),
    [
        ("chunksize", 0, "ValueError: chunksize"),
        ("buffersize", True, "ValueError: buffersize"),
        ("progress", True, "TypeError: progress=True"),
    ],
)
def test_map_in_a_task_refuses_by_name(
    default_pool: WorkStealingExecutor, keyword: str, value: Any, text: str
) -> None:
    """What makes no sense there."""
    assert run(default_pool, calls.refused, keyword, value).startswith(text)


def test_map_in_a_task_refuses_options_of_a_root(default_pool: WorkStealingExecutor) -> None:
    """As `submit` does."""
    text = run(default_pool, calls.refused_option)
    assert "retries cannot be chosen" in text
    assert "name" not in text.split(":")[0]
