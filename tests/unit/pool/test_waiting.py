"""Conditions and latches that an exception in a waiting thread does not lock."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from mpsched._pool.waiting import Condition, Latch

HANG_S = 30.0


def test_condition_is_entered_and_left_without_python_code() -> None:
    """No line runs between taking the lock and the block, nor between the block and its release."""
    condition = Condition()
    called: list[str] = []

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        with condition:
            pass
    finally:
        sys.setprofile(None)
    assert called == []


def test_condition_works_as_the_standard_one() -> None:
    """It excludes, waits, is woken, and complains without its lock."""
    condition = Condition()
    woken: list[bool] = []

    def wait() -> None:
        with condition:
            started.set()
            woken.append(condition.wait(HANG_S))

    started = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(HANG_S)
    with condition:
        condition.notify_all()
    thread.join(HANG_S)
    assert woken == [True]
    with pytest.raises(RuntimeError):
        condition.notify_all()
    with condition:
        assert not condition.wait(0.001)


def test_condition_is_free_after_an_exception_in_its_block() -> None:
    """As any context manager."""
    condition = Condition()
    with pytest.raises(KeyError), condition:
        raise KeyError
    free: list[bool] = []

    def look() -> None:
        with condition:
            free.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(HANG_S)
    assert free == [True]


def test_latch_lets_every_waiter_through_when_it_opens() -> None:
    """Those that wait and those that come later; opening it again does nothing."""
    latch = Latch()
    through: list[bool] = []
    threads = [
        threading.Thread(target=lambda: through.append(latch.wait(HANG_S))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    assert not latch.is_set()
    assert through == []
    latch.set()
    latch.set()
    for thread in threads:
        thread.join(HANG_S)
    assert through == [True] * 5
    assert latch.is_set()
    assert latch.wait()
    assert latch.wait(0.0)


def test_latch_wait_ends_at_its_timeout() -> None:
    """A closed latch answers False, at once for 0."""
    latch = Latch()
    assert not latch.wait(0.0)
    assert not latch.wait(-1.0)
    begun = time.monotonic()
    assert not latch.wait(0.05)
    assert time.monotonic() - begun >= 0.05


def test_latch_opens_for_others_when_a_waiter_was_thrown_out() -> None:
    """Whoever was interrupted with the lock in hand keeps it; nobody else needs it."""
    latch = Latch()
    through: list[bool] = []
    thread = threading.Thread(target=lambda: through.append(latch.wait()))
    thread.start()
    latch.set()
    latch._lock.acquire(timeout=HANG_S)  # as an interrupted waiter leaves it
    thread.join(HANG_S)
    assert through == [True]
    assert latch.wait()
