"""Tasks that map with their own pool's executor."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import mpsched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpsched import WorkStealingExecutor


def odd_fails(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


def add(a: int, b: int) -> int:
    return a + b


def plain(ex: WorkStealingExecutor) -> list[Any]:
    return [
        list(ex.map(add, range(4), itertools.count(10), chunksize=2)),
        list(ex.starmap(add, [(1, 2), [3, 4]], buffersize=1)),
        list(ex.map(abs, [])),
        sorted(ex.map(abs, range(-40, 0), ordered=False)),
    ]


def exceptions(ex: WorkStealingExecutor) -> list[str]:
    return [repr(one) for one in ex.map(odd_fails, range(4), return_exceptions=True)]


def first_failure(ex: WorkStealingExecutor, count: int) -> tuple[list[int], list[int], str, int]:
    """Return (results before it, what ran, its text, siblings); nothing is open afterwards."""
    ran = mpsched.shared_array(count, "u1")
    got: list[int] = []
    text, siblings = "", 0
    try:
        for value in ex.starmap(_mark_and_fail, [(ran, n) for n in range(count)]):
            got.append(value)  # noqa: PERF402 - what came before the error counts
    except ValueError as error:
        text, siblings = str(error), len(getattr(error, "siblings", ()))
    return got, [int(n) for n in ran.nonzero()[0]], text, siblings


def _mark_and_fail(ran: Any, n: int) -> int:
    ran[n] = 1
    if n >= 2:
        raise ValueError(str(n))
    return n


def lazily(ex: WorkStealingExecutor) -> tuple[list[int], int]:
    """Return (the first results of an endless map, items that were pulled)."""
    pulled = 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    results = ex.map(abs, numbers(), buffersize=5)
    first = list(itertools.islice(results, 10))
    results.close()  # type: ignore[attr-defined]  # it is a generator
    return first, pulled


def closed(ex: WorkStealingExecutor) -> list[int]:
    """Return what ran of a map whose iterator was closed after the first result."""
    ran = mpsched.shared_array(50, "u1")
    results = ex.starmap(_mark_and_fail, [(ran, n) for n in range(50)])
    next(results)
    results.close()  # type: ignore[attr-defined]
    return [int(n) for n in ran.nonzero()[0]]


def input_fails(ex: WorkStealingExecutor) -> tuple[list[int], str]:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("the input broke")

    got: list[int] = []
    try:
        for value in ex.map(abs, items()):
            got.append(value)  # noqa: PERF402 - what came before the error counts
    except OSError as error:
        return got, str(error)
    return got, ""


def times_out(ex: WorkStealingExecutor) -> tuple[list[Any], str]:
    """Return what came before the time was over; items that cannot leave take all of it."""
    got: list[Any] = []
    try:
        for value in ex.starmap(_nap, [(threading.Lock(), 0.02)] * 1000, timeout=0.1):
            got.append(value)  # noqa: PERF402 - what came before the error counts
    except TimeoutError as error:
        return got, str(error)
    return got, ""


def _nap(_lock: object, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def refused(ex: WorkStealingExecutor, keyword: str, value: Any) -> str:
    try:
        ex.map(abs, [1], **{keyword: value})
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused_option(ex: WorkStealingExecutor) -> str:
    try:
        ex.options(retries=2, name="x").map(abs, [1])
    except TypeError as error:
        return str(error)
    return ""
