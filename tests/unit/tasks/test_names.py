"""The function table: numbers from any thread, read by any worker."""

from __future__ import annotations

import json
import os.path
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._shm.layout import Layout
from mpsched._tasks import codec
from mpsched._tasks.names import FunctionReader, FunctionWriter
from tests.support.lines import before_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Table:
    """A table that takes `slots` functions and `size` bytes of names."""

    def __init__(self, *, slots: int = 64, size: int = 4096) -> None:
        self.layout = Layout.plan(
            1,
            entries=2,
            inbox_slots=2,
            result_words=2,
            slab_bytes=8,
            function_bytes=size,
            function_slots=slots,
        )
        self.data = memoryview(bytearray(self.layout.size_bytes))
        self.words = self.data.cast("Q")
        self.writer = FunctionWriter(self.data, self.words, self.layout)

    def reader(self) -> FunctionReader:
        """Return what a worker has."""
        return FunctionReader(self.data, self.words, self.layout)


def test_names_number_leads_to_the_function_in_every_worker() -> None:
    """Functions, classes, builtins, methods of classes: each under its own number."""
    table = Table()
    found: list[Callable[..., Any]] = [len, json.dumps, Counter, os.path.join, Counter.update]
    numbers = [table.writer.number(fn) for fn in found]
    assert len(set(numbers)) == len(found)
    assert 0 not in numbers
    for reader in (table.reader(), table.reader()):
        assert [reader[number] for number in numbers] == found


def test_names_same_function_keeps_its_number() -> None:
    """A function is published once, whatever came in between."""
    table = Table()
    first = table.writer.number(len)
    table.writer.number(abs)
    assert table.writer.number(len) == first
    assert table.writer.number(min) == first + 2


def test_names_what_cannot_be_imported_has_no_number() -> None:
    """A lambda travels by value."""
    table = Table()
    assert table.writer.number(lambda: 1) == 0
    assert table.writer.number(len) == 1


def test_names_published_pickle_is_loaded_by_its_number() -> None:
    """A function by value that needs nothing of its module can have a number as well."""
    table = Table()
    number = table.writer.publish(codec.dumps_callable(lambda x: x + 1))
    assert table.reader()[number](41) == 42


def test_names_full_table_gives_no_number() -> None:
    """Neither a slot too many nor a byte too many; what has a number keeps it."""
    table = Table(slots=2)
    numbers = [table.writer.number(fn) for fn in (len, abs, min, len)]
    assert numbers == [1, 2, 0, 1]
    small = Table(size=24)
    assert small.writer.publish(b"x" * 22) == 1
    assert small.writer.publish(b"") == 2
    assert small.writer.publish(b"") == 0


def test_names_reader_meets_a_function_that_is_gone() -> None:
    """A name that the worker does not find is an error each time, not once."""
    table = Table()
    number = table.writer._append(b"json\0no_such_function")
    reader = table.reader()
    for _ in range(2):
        with pytest.raises(Exception, match="no_such_function"):
            reader[number]


def test_names_publishing_inside_of_publishing_gets_another_place() -> None:
    """NAMES-2: whoever publishes between any two lines, another thread or a finalizer."""
    append = FunctionWriter._append
    lines = lines_of(append, lambda: Table().writer.number(len))
    assert lines > 5
    for line in range(lines):
        table = Table()
        inner: list[int] = []
        with before_line(append, line, lambda: inner.append(table.writer.number(abs))):  # noqa: B023
            outer = table.writer.number(len)
        reader = table.reader()
        assert (reader[outer], reader[inner[0]]) == (len, abs), line


def test_names_interrupted_publishing_does_no_harm() -> None:
    """After Ctrl-C at any line what was there is there, and the same function can be published."""
    append = FunctionWriter._append

    def interrupt() -> None:
        raise KeyboardInterrupt

    for line in range(lines_of(append, lambda: Table().writer.number(len))):
        table = Table()
        first = table.writer.number(abs)
        with pytest.raises(KeyboardInterrupt), before_line(append, line, interrupt):
            table.writer.number(len)
        second = table.writer.number(len)
        reader = table.reader()
        assert (reader[first], reader[second]) == (abs, len), line
