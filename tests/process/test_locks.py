"""Locks of the kernel, with processes that hold them and die."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mpsched._shm.locks import KernelLocks
from mpsched._shm.segment import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def locks() -> Iterator[KernelLocks]:
    made = KernelLocks(anonymous_file("test-locks", 4096))
    yield made
    made.close()


@contextmanager
def holder(locks: KernelLocks, index: int) -> Iterator[int]:
    """Another process that holds a lock until the block ends, or it is killed."""
    up, ready = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            locks.acquire(index)
            os.write(ready, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(ready)
        assert os.read(up, 1) == b"x"
        yield pid
    finally:
        os.close(up)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_locks_holder_excludes_others_from_this_lock_only(locks: KernelLocks) -> None:
    """A lock that another process has cannot be had; its neighbours can."""
    with holder(locks, 3):
        assert not locks.try_acquire(3)
        assert locks.try_acquire(2)
        assert locks.try_acquire(4)
    assert locks.try_acquire(3)


def test_locks_holder_is_told(locks: KernelLocks) -> None:
    """The process that has a lock; nobody, where it is free."""
    with holder(locks, 3) as pid:
        assert locks.holder(3) == pid
        assert locks.holder(2) == 0
    assert locks.holder(3) == 0


def test_locks_killed_holder_gives_its_lock_back(locks: KernelLocks) -> None:
    """LOCKS-1: as soon as its end can be known, the lock is free."""
    with holder(locks, 0) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert locks.try_acquire(0)


def test_locks_killed_holder_wakes_who_waits(locks: KernelLocks) -> None:
    """An owner that sleeps in `acquire` gets the lock of a holder that dies."""
    with holder(locks, 0) as pid:
        killer = os.fork()
        if not killer:
            try:
                os.kill(pid, signal.SIGKILL)
            finally:
                os._exit(0)
        locks.acquire(0)
        os.waitpid(killer, 0)
        locks.release(0)


def test_locks_fork_of_a_holder_does_not_hold(locks: KernelLocks) -> None:
    """A process that a task forks while a lock is held does not keep it when the worker dies."""
    up, ready = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            locks.acquire(1)
            if os.fork():
                os._exit(0)  # the holder ends, its child lives on
            os.write(ready, b"%d" % os.getpid())
            signal.pause()
        finally:
            os._exit(1)
    os.close(ready)
    os.waitpid(pid, 0)
    child = int(os.read(up, 20))
    os.close(up)
    try:
        assert locks.try_acquire(1)
    finally:
        os.kill(child, signal.SIGKILL)


def test_locks_releasing_what_is_not_held_is_harmless(locks: KernelLocks) -> None:
    """So `release` may stand in a `finally` whose `try` holds the acquisition."""
    locks.release(5)
    with holder(locks, 5):
        locks.release(5)
        assert not locks.try_acquire(5)


def test_locks_error_that_is_no_contention_is_raised(locks: KernelLocks) -> None:
    """A closed file is not a lock that somebody else has."""
    gone = KernelLocks(os.dup(locks.fd))
    os.close(gone.fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        gone.try_acquire(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        gone.acquire(0)
