"""Room for the frames of deep recursions."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from mpsched._worker import frames
from tests.support.scripts import run_script

CALLS = 300


def faults_at(depth: int) -> int:
    """Return how many pages were mapped anew by `CALLS` calls so many frames further down."""
    if depth:
        return faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        outer(1, 2, 3)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def outer(_a: int, _b: int, _c: int) -> None:
    inner()


def inner() -> None:
    pass


def worst() -> int:
    """Return the most faults at any of 400 depths."""
    return max(min(faults_at(depth) for _ in range(2)) for depth in range(400))


def test_frames_without_room_map_a_page_at_each_call() -> None:
    """The reason: somewhere, whoever calls maps and unmaps a piece of stack each time."""
    assert worst() >= CALLS


def test_frames_with_room_map_nothing() -> None:
    """At no depth."""
    assert frames.roomy(worst) < CALLS // 10


def test_frames_give_values_and_errors() -> None:
    """What the function returns and raises, with all its arguments."""

    def fail(*args: Any) -> None:
        raise ValueError(args)

    assert frames.roomy(max, 3, 5) == 5
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        frames.roomy(fail, 1, 2)


def test_frames_do_without_room_where_there_is_none() -> None:
    """With a limit of the address space the function is called all the same."""
    code = """
        import resource
        from mpsched._worker import frames
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), -1))
        print(frames.roomy(max, 3, 5))
    """
    assert run_script(code).out == "5\n"
