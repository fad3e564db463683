"""A section of the parent is never lost, and never taken from one who is inside."""

from __future__ import annotations

import threading

import pytest

from mpsched._pool.section import Section


def test_section_excludes_a_second_entry() -> None:
    """Only one is inside; afterwards it is free again."""
    section = Section()
    assert section.try_enter()
    assert not section.try_enter()
    section.leave()
    assert section.try_enter()
    section.leave()


def test_section_of_a_running_holder_is_not_opened() -> None:
    """`recover` leaves a section alone whose holder still runs, in this thread or another."""
    section = Section()
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        assert section.try_enter()
        entered.set()
        leave.wait(20)
        section.leave()

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(20)
    assert not section.recover()
    leave.set()
    thread.join()
    assert section.try_enter()
    section.leave()


def test_section_left_by_an_exception_is_opened() -> None:
    """A holder that was thrown out before its `finally` does not keep the section."""
    section = Section()

    def thrown_out() -> None:
        assert section.try_enter()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        thrown_out()
    assert not section.try_enter()
    assert section.recover()
    assert section.try_enter()
    section.leave()


def test_section_taken_but_not_marked_is_opened() -> None:
    """An exception between taking the lock and marking the holder does not keep the section."""
    section = Section()
    assert section._lock.acquire(blocking=False)
    assert section.recover()
    assert section.try_enter()
    section.leave()


def test_section_in_use_is_never_opened_by_a_recoverer_beside_it() -> None:
    """Thousands of entries beside a thread that always wants to recover: none is taken away."""
    section = Section()
    stop = threading.Event()
    opened: list[bool] = []

    def recoverer() -> None:
        while not stop.is_set():
            opened.append(section.recover())

    thread = threading.Thread(target=recoverer)
    thread.start()
    try:
        for _ in range(20_000):
            assert section.try_enter()
            section.leave()
    finally:
        stop.set()
        thread.join()
    assert not any(opened)
