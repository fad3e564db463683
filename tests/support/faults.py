"""Objects and exceptions that go wrong on their way: when they are pickled, unpickled or raised."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any


def go_off(how: str) -> Any:
    """Do what a bomb is told to do.

    Args:
        how: "raise", "exit" (SystemExit), "interrupt" (KeyboardInterrupt), "recurse"
            (RecursionError), "memory" (MemoryError), "die" (the process, status 3), "kill"
            (the process, SIGKILL).
    """
    if how == "raise":
        raise RuntimeError("the bomb went off")
    if how == "exit":
        sys.exit(4)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "recurse":
        return go_off(how)
    if how == "memory":
        raise MemoryError("no memory, says the bomb")
    if how == "die":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    raise AssertionError(how)


class Bomb:
    """Goes off when it is pickled or when it is unpickled.

    Args:
        when: "pickle" or "unpickle".
        how: see `go_off`.
    """

    def __init__(self, when: str, how: str) -> None:
        self.when = when
        self.how = how

    def __reduce__(self) -> Any:
        if self.when == "pickle":
            go_off(self.how)
        return go_off, (self.how,)


def make(when: str, how: str) -> Bomb:
    """Return a bomb: a result that goes off. In a worker."""
    return Bomb(when, how)


def raise_(error: BaseException) -> Any:
    """Raise the argument."""
    raise error


def raise_kind(kind: type[BaseException], *args: Any) -> Any:
    """Raise an exception made here."""
    raise kind(*args)


def raise_if(kind: type[BaseException], bad: int, number: int) -> int:
    """Return the number, or raise for the bad one."""
    if number == bad:
        raise kind(f"for {number}")
    return number


class Plain(Exception):
    """An exception that can be referred to weakly, unlike those of the language."""


class NeedsTwo(Exception):
    """An exception whose pickle cannot be loaded: its constructor wants more than `args` holds."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"needs {one} and {two}")
        self.one = one


class HoldsALock(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, message: str = "with a lock") -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class ReduceRaises(Exception):
    """An exception whose `__reduce__` raises."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle of this")


class ReduceExits(Exception):
    """An exception whose unpickling calls sys.exit."""

    def __reduce__(self) -> Any:
        return go_off, ("exit",)


class ReduceDies(Exception):
    """An exception whose unpickling ends the process."""

    def __reduce__(self) -> Any:
        return go_off, ("die",)


class StrRaises(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text of this")

    __repr__ = __str__


class Deep:
    """Nested so deeply that pickling it recurses too far."""

    def __init__(self, depth: int = 100_000) -> None:
        self.inner: list[Any] = []
        for _ in range(depth):
            self.inner = [self.inner]

    def __del__(self) -> None:
        # Taken apart in a loop: not every interpreter frees so deep a chain without trouble.
        inner = self.inner
        while inner:
            inner = inner.pop()


class ReprRaises:
    """An argument that cannot be shown in a note."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr of this")


class ReprIsLong:
    """An argument whose representation would fill a screen."""

    def __repr__(self) -> str:
        return "long " * 100_000


class Text(str):
    """Looks like a text and is more."""

    __slots__ = ()


class Number(int):
    """Looks like a number and is more."""
