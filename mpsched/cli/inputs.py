"""The stream of items: everything that FUNC will be called with, in order.

See README.md, "Inputs". `Inputs` is opened in the main thread, where what is wrong is found while
nothing has run yet; then one thread at a time iterates over it.
"""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpsched.cli.discover import Name, discover, named
from mpsched.cli.problems import Usage
from mpsched.cli.records import Reader, Stop, block_ends, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched.cli.args import Options

__all__ = ["Inputs", "Item"]


@dataclass(slots=True)
class Item:
    """One call of FUNC that is to be made. Complete once it has left `Inputs`."""

    i: int
    """Position in the input, from 0."""
    text: str | list[str]
    """As the row shows it."""
    payload: Any
    """As the worker gets it."""
    size: int
    """About how many bytes the payload is."""
    place: str | None = None
    """Where its file goes below `--out-dir`; None if it is no path."""
    stamp: tuple[int, int] | None = None
    """Size in bytes and time of change in ns of the file that it names; None without one."""
    target: str | None = None
    """With `--out-dir`: path of its file, without suffix."""


class Inputs:
    """All items of a run. Iterate once."""

    def __init__(
        self,
        options: Options,
        *,
        as_bytes: bool,
        stamps: bool,
        note: Callable[[str], object],
    ) -> None:
        """Find out what the inputs are.

        Args:
            options: The command line.
            as_bytes: Whether lines are passed undecoded.
            stamps: Whether items get the stamps of their files.
            note: Is told what was left out.

        Raises:
            Usage: Nothing matches, a file is missing, there is no input.
        """
        self._options = options
        self._as_bytes = as_bytes
        self._stamps = stamps or options.largest_first
        self._separator = b"\0" if options.null else b"\n"
        self.stop = Stop()
        self._reader = Reader(self.stop)
        self.total: int | None = None
        """How many items there are; None as long as that is not known."""
        self._made = 0
        try:
            self._items = self._open(note)
            first = next(self._items, None)
            if first is None:
                raise Usage("no input: what was given is empty")
        except BaseException:
            self.stop.close()
            raise
        self.first = first
        """The item that comes first, for a look before anything runs."""
        self._items = itertools.chain([first], self._items)

    def __iter__(self) -> Iterator[Item]:
        """Return the items; may wait for standard input, until `stop` is set."""
        for item in self._items:
            self._made += 1
            yield item
        if not self.stop.is_set:
            self.total = self._made

    def guess(self) -> int | None:
        """Return how many items there may be: known, or guessed by the bytes read; else None."""
        if self.total is not None:
            return self.total
        reader = self._reader
        if not reader.total_bytes or not reader.read_bytes:
            return None
        return max(self._made, int(self._made * reader.total_bytes / reader.read_bytes))

    def hold(self) -> list[Item]:
        """Read all items now and keep them, for what needs the whole list first.

        Returns:
            The items; iterating gives them as well.
        """
        items = list(self._items)
        self.total = len(items)
        self._items = iter(items)
        return items

    def replace_items(self, items: Iterable[Item], total: int) -> None:
        """Iterate over these from now on: a choice of the items, or another order."""
        self._items = iter(items)
        self._made = 0
        self.total = total

    def close(self) -> None:
        """Close what is open. Nobody may iterate any more."""
        self.stop.close()

    def _open(self, note: Callable[[str], object]) -> Iterator[Item]:
        options = self._options
        names = self._names(note)
        if options.lines or options.kwargs:
            return self._from_lines(names)
        if options.block is not None:
            return self._blocks(names, options.block)
        if isinstance(names, list) and options.batch is None:
            self.total = len(names)
        return self._numbered(self._from_names(names))

    def _names(self, note: Callable[[str], object]) -> Iterable[Name]:
        """Return the names given: INPUT, `--from`, or standard input."""
        options = self._options
        if options.inputs == ("-",) and options.block is None:
            return [Name("-", None)] if options.reads_files else named(self._listed("-"))
        if options.inputs:
            names = discover(
                options.inputs,
                files=options.files,
                globs=options.globs,
                note=note,
            )
            if options.reads_files:
                self._must_be_files(names)
            return names
        if options.names_from is not None:
            if options.names_from != "-" and not os.path.isfile(options.names_from):
                raise Usage(f"--from {options.names_from}: there is no such file")
            return named(self._listed(options.names_from))
        if sys.stdin is None or os.isatty(0):
            raise Usage("no input: give INPUT, --from FILE, or pipe it to standard input")
        if (options.lines or options.kwargs) and not options.null:
            return [Name("-", None)]
        return named(self._listed("-"))

    def _must_be_files(self, names: Iterable[Name]) -> None:
        options = self._options
        option = "--lines" if options.lines else "--kwargs" if options.kwargs else "--block"
        for name in names:
            if not os.path.exists(name.text):
                raise Usage(f"{name.text}: no such file; {option} reads files")
            if options.block is not None and not os.path.isfile(name.text):
                raise Usage(f"{name.text}: --block needs a file that can be read at any place")
            self._reader.expect(name.text)

    def _listed(self, source: str) -> Iterator[str]:
        """Return the names in a list, empty ones left out."""
        if source != "-":
            self._reader.expect(source)
        with self._reader.open(source) as stream:
            for record in records(stream, self._separator):
                self._reader.read_bytes += len(record) + 1
                if record:
                    yield os.fsdecode(record)

    def _from_names(self, names: Iterable[Name]) -> Iterator[Item]:
        for name in names:
            stamp = _stamp(name.text) if self._stamps else None
            yield Item(0, name.text, name.text, len(name.text), name.place, stamp)

    def _from_lines(self, names: Iterable[Name]) -> Iterator[Item]:
        def all_lines() -> Iterator[Item]:
            for line in self._lines(names):
                text = line.decode("utf-8", "surrogateescape")
                yield Item(0, text, line if self._as_bytes else text, len(line))

        return self._numbered(all_lines())

    def _lines(self, names: Iterable[Name]) -> Iterator[bytes]:
        blank_too = not self._options.kwargs
        for name in names:
            with self._reader.open(name.text) as stream:
                for line in records(stream, b"\n"):
                    self._reader.read_bytes += len(line) + 1
                    if blank_too or line.strip():
                        yield line

    def _blocks(self, names: Iterable[Name], size: int) -> Iterator[Item]:
        def all_ranges() -> Iterator[Item]:
            for name in names:
                stamp = _stamp(name.text) if self._stamps else None
                for start, stop in block_ends(name.text, size):
                    text = f"{name.text}:{start}-{stop}"
                    yield Item(0, text, (name.text, start, stop), len(text), None, stamp)

        return self._numbered(all_ranges())

    def _numbered(self, items: Iterator[Item]) -> Iterator[Item]:
        batch = self._options.batch
        if batch is not None:
            items = _batches(items, batch)
        for i, item in enumerate(items):
            item.i = i
            yield item


def _batches(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Join `count` items to one. Its stamp is the newest: any file's change is the batch's."""
    while some := list(itertools.islice(items, count)):
        stamps = [item.stamp for item in some if item.stamp is not None]
        yield Item(
            0,
            [str(item.text) for item in some],
            [item.payload for item in some],
            sum(item.size for item in some),
            None,
            (sum(size for size, _ in stamps), max(ns for _, ns in stamps)) if stamps else None,
        )


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except (OSError, ValueError):  # ValueError: a NUL in a text that is no path at all
        return None
    return status.st_size, status.st_mtime_ns
