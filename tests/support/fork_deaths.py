"""Roots that fork, for tests that kill workers: children say where and when they run."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import mpsched
from tests.support.crash_calls import attempt, hold, say_started, wait_for_file, write_line

_HANG_S = 60.0


def away(folder: str, name: str) -> None:
    """Wait until a child has started, in another process than this one."""
    started = Path(folder, f"{name}.started")
    wait_for_file(started)
    assert int(started.read_text()) != os.getpid()


def one_child(folder: str, name: str, home: str = "home") -> tuple[str, int]:
    """Spawn a child that holds, wait until another worker has it, then join it."""
    child = mpsched.spawn(hold, folder, name)
    away(folder, name)
    say_started(folder, home)
    return child.join(), os.getpid()


def finished_child(folder: str, size: int) -> int:
    """Spawn a child that returns so many bytes; join it when the test says so."""
    child = mpsched.spawn(bytes_of, folder, "child", size)
    away(folder, "child")
    deadline = time.monotonic() + _HANG_S
    while not child.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    hold(folder, "home")
    return len(child.join())


def bytes_of(folder: str, name: str, size: int) -> bytes:
    say_started(folder, name)
    return bytes(size)


def ticks(log: str, folder: str, name: str, *, heed: bool) -> str:
    """Note the time again and again; end when the root is not wanted any more, if it is to be heeded."""
    task = mpsched.current_task()
    assert task is not None
    number = task.attempt
    if number == 1:
        say_started(folder, f"{name}{os.getpid()}")
        say_started(folder, name)
    until = time.monotonic() + _HANG_S
    while number == 1 and not (heed and task.cancelled):
        write_line(log, f"{name} {number} {time.monotonic_ns()}")
        assert time.monotonic() < until
        time.sleep(0.001)
    write_line(log, f"{name} {number} {time.monotonic_ns()}")
    return name


def ticking(log: str, folder: str, *, heed: bool) -> int:
    """Note the start of each attempt; the first one has a child elsewhere that ticks."""
    write_line(log, f"home {attempt()} {time.monotonic_ns()}")
    child = mpsched.spawn(ticks, log, folder, "child", heed=heed)
    if attempt() == 1:
        away(folder, "child")
        say_started(folder, "home")
    child.join()
    return attempt()


def middle(log: str, folder: str) -> str:
    """A child with a child of its own elsewhere; repeated, it only says so."""
    write_line(log, f"middle {time.monotonic_ns()}")
    if Path(folder, "middle.started").exists():
        return "repeated"
    say_started(folder, "middle")
    leaf = mpsched.spawn(leaf_ticks, log, folder)
    away(folder, "leaf")
    return leaf.join()


def leaf_ticks(log: str, folder: str) -> str:
    """Note the time again and again until the test lets it end."""
    say_started(folder, "leaf")
    go, until = Path(folder, "leaf.go"), time.monotonic() + _HANG_S
    while not go.exists():
        write_line(log, f"leaf {time.monotonic_ns()}")
        assert time.monotonic() < until
        time.sleep(0.001)
    write_line(log, f"leaf {time.monotonic_ns()}")
    return "leaf"


def above_middle(log: str, folder: str) -> str:
    """A root whose child runs elsewhere and has a child that runs elsewhere again."""
    child = mpsched.spawn(middle, log, folder)
    away(folder, "middle")
    away(folder, "leaf")
    return child.join()


def holding_both(folder: str) -> str:
    """A root that waits, for ever, as its child elsewhere does."""
    child = mpsched.spawn(hold, folder, "child")
    away(folder, "child")
    hold(folder, "home")
    return child.join()


def late_child(folder: str) -> str:
    """Spawn a child when the test says so; it runs elsewhere until the test lets it go on."""
    hold(folder, "home")
    child = mpsched.spawn(hold, folder, "child")
    away(folder, "child")
    return child.join()


def asked(folder: str) -> tuple[str, bool]:
    """Whether a child elsewhere saw that its root was cancelled."""
    child = mpsched.spawn(heeding, folder)
    away(folder, "child")
    task = mpsched.current_task()
    assert task is not None
    return child.join(), task.cancelled


def heeding(folder: str) -> str:
    task = mpsched.current_task()
    assert task is not None
    say_started(folder, "child")
    until = time.monotonic() + _HANG_S
    while not task.cancelled:
        if time.monotonic() > until:
            raise TimeoutError("nobody asked")
        time.sleep(0.001)
    return "asked"


def fib(n: int) -> int:
    """Fibonacci numbers, slowly enough to be stolen from."""
    if n < 2:
        time.sleep(0.0005)
        return n
    first = mpsched.spawn(fib, n - 1)
    return fib(n - 2) + first.join()


def leaves(depth: int, seed: int) -> int:
    """Count the leaves of a random tree, children joined in a random order."""
    if not depth:
        time.sleep(0.0002)
        return 1
    rng = random.Random(seed)
    handles = [
        mpsched.spawn(leaves, depth - 1, rng.getrandbits(30)) for _ in range(rng.randint(1, 4))
    ]
    rng.shuffle(handles)
    return sum(handle.join() for handle in handles)


def leaves_alone(depth: int, seed: int) -> int:
    """The same without children."""
    if not depth:
        return 1
    rng = random.Random(seed)
    return sum(leaves_alone(depth - 1, rng.getrandbits(30)) for _ in range(rng.randint(1, 4)))
