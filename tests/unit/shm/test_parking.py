"""Bells."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mpsched._shm.parking import MAX_WAIT_MS, Parker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parker]:
    """A bell of each kind."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    elif not hasattr(os, "eventfd"):
        pytest.skip("no eventfd on this system")
    parker = Parker.create()
    yield parker
    parker.close()


def test_parking_ring_before_the_wait_is_kept(bell: Parker) -> None:
    """PARKING-1: it does not matter whether the sleeper sleeps already."""
    bell.wake()
    assert bell.wait(None)


def test_parking_all_tokens_are_taken_at_once(bell: Parker) -> None:
    """PARKING-2: however often it was rung, one wait takes it all."""
    for _ in range(5):
        bell.wake()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_parking_wait_without_a_ring_ends_in_time(bell: Parker) -> None:
    """A time limit ends it, not before its time, and says that nobody has rung."""
    begun = time.monotonic()
    assert not bell.wait(0.01)
    assert time.monotonic() - begun >= 0.01
    assert not bell.wait(-1)


def test_parking_ring_of_another_process_wakes(bell: Parker) -> None:
    """Another process that has the descriptors has the same bell."""
    other = Parker(*bell.fds())
    thread = threading.Thread(target=other.wake)
    thread.start()
    assert bell.wait(60)
    thread.join()


def test_parking_ring_of_a_full_bell_does_not_wait(bell: Parker) -> None:
    """PARKING-3: a sleeper that is stopped for long blocks nobody, and wakes in the end."""
    if bell.read_fd == bell.write_fd:
        os.write(bell.write_fd, (2**64 - 2).to_bytes(8, "little"))
        bell.wake()
    else:
        for _ in range(20_000):
            bell.wake()
    assert bell.wait(0)


def test_parking_drain_of_an_empty_bell_does_not_wait(bell: Parker) -> None:
    """Taking tokens that nobody has left."""
    bell.drain()
    bell.wake()
    bell.drain()
    assert not bell.wait(0)


def test_parking_wait_of_a_year_is_within_what_the_kernel_takes(bell: Parker) -> None:
    """A time limit that is too long for poll() is a shorter one, not an error."""
    assert MAX_WAIT_MS < 365 * 86400 * 1000
    bell.wake()
    assert bell.wait(365 * 86400)


def test_parking_bell_is_not_inherited_by_programs_that_tasks_start(bell: Parker) -> None:
    """Both descriptors are closed on exec."""
    assert not any(os.get_inheritable(fd) for fd in bell.fds())
