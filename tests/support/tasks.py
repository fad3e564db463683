"""Functions and classes that tests send to workers: each is importable by its name."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable

GLOBAL: Any = "unset"


def identity(value: Any) -> Any:
    """Return the argument."""
    return value


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Take anything and return None."""


def everything(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as they came."""
    return args, kwargs


def add(left: Any, right: Any = 0, *, scale: Any = 1) -> Any:
    """Return a sum, so that each kind of argument can be seen in it."""
    return (left + right) * scale


def square(number: int) -> int:
    """Return the square."""
    return number * number


def shadow(self: Any, fn: Any = None, args: Any = None, kwargs: Any = None) -> Any:
    """Return parameters whose names a careless executor would take for itself."""
    return self, fn, args, kwargs


def pid(*_args: Any) -> int:
    """Return the process that runs this."""
    return os.getpid()


def cpu(loops: int) -> int:
    """Compute for a time that depends on `loops` only."""
    total = 0
    for number in range(loops):
        total += number * number
    return total


def fail(message: str = "wanted", *_rest: Any) -> Any:
    """Raise ValueError."""
    raise ValueError(message)


def fail_if(bad: Any, value: Any) -> Any:
    """Return `value`, or raise ValueError if it is the bad one."""
    if value == bad:
        raise ValueError(f"bad value {value!r}")
    return value


def fail_odd(value: int) -> int:
    """Return an even number; raise ValueError for an odd one."""
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def outer_fail(value: Any) -> Any:
    """Raise KeyError, caused by a ValueError one call deeper."""
    try:
        return fail(f"inner {value}")
    except ValueError as error:
        raise KeyError("outer") from error


def exit_with(code: Any) -> Any:
    """Leave as a script does."""
    sys.exit(code)


def kill_process(code: int = 3) -> Any:
    """End the worker's process at once."""
    os._exit(code)


def set_global(value: Any) -> None:
    """Set a global of this module."""
    global GLOBAL
    GLOBAL = value


def get_global(*_args: Any) -> Any:
    """Return what `set_global` set in this process."""
    return GLOBAL


def increase(array: Any) -> Any:
    """Add 1 to a NumPy array in place and return its sum."""
    array += 1
    return float(array.sum())


def mark(table: Any, index: int) -> int:
    """Count one visit of `index` in a shared table of bytes."""
    table[index] += 1
    return index


def task_and_worker(*_args: Any) -> tuple[int, int, int, int, int]:
    """Return (task id, attempt, worker index, incarnation, pid)."""
    task, worker = mpsched.current_task(), mpsched.current_worker()
    assert task is not None
    assert worker is not None
    return task.task_id, task.attempt, worker.index, worker.incarnation, os.getpid()


def attempt(*_args: Any) -> int:
    """Return the number of this attempt."""
    task = mpsched.current_task()
    assert task is not None
    return task.attempt


def fail_before(last: int, kind: type[BaseException] = ValueError) -> int:
    """Raise `kind` in every attempt before attempt `last`; then return its number."""
    number = attempt()
    if number < last:
        raise kind(f"attempt {number}")
    return number


def die_before(last: int) -> int:
    """End the worker's process in every attempt before attempt `last`."""
    number = attempt()
    if number < last:
        os._exit(9)
    return number


def sleep_in_the_first_attempt() -> int:
    """Sleep for ever in the first attempt; later return the number of the attempt."""
    number = attempt()
    if number == 1:
        time.sleep(600)
    return number


def draw(_item: Any = None) -> float:
    """Draw a number from the task's own generator."""
    task = mpsched.current_task()
    assert task is not None
    return task.rng.random()


def call(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function that is an argument."""
    return fn(*args)


class Base:
    """Callables of all kinds."""

    factor = 10

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.start == other.start

    def __hash__(self) -> int:
        return hash(self.start)

    def method(self, number: int) -> int:
        """Use the instance."""
        return self.start + number

    @classmethod
    def of_class(cls, number: int) -> int:
        """Use the class."""
        return cls.factor * number

    @staticmethod
    def of_nobody(number: int) -> int:
        """Use neither."""
        return -number

    def __call__(self, number: int) -> int:
        return self.start * number


class Child(Base):
    """Inherits, and overrides a class attribute."""

    factor = 100


class Colour(enum.Enum):
    """An enumeration whose members must arrive as themselves."""

    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    """A dataclass that comes back equal."""

    x: int
    y: int

    def moved(self, by: int) -> Point:
        """Return another point."""
        return Point(self.x + by, self.y + by)
