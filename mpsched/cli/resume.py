"""`--resume`: which old rows stand, and what is to be run.

See README.md, "OUT, OUT.partial, OUT.mpsched", whose steps of Resume are named here. Nothing is written before `Resumption.apply`.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import tempfile
from array import array
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from mpsched.cli import companion
from mpsched.cli.companion import Companion, Header, Stamps, identity
from mpsched.cli.files import is_locked, replace_file
from mpsched.cli.partial import Rows, in_use, partial_path, temporary_path
from mpsched.cli.problems import Broken, Usage
from mpsched.cli.rows import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched.cli.inputs import Item

__all__ = ["Counts", "Resumption", "check_out"]

_NONE: Final = -1
_LARGEST: Final = 10**9  # a position above it is no position, and would cost gigabytes of table
_POSITION: Final = re.compile(rb'\{"i": \d+')

# What is known of the row at an old position.
_NO_ROW, _FAILED, _OK = range(3)


@dataclass(slots=True)
class Counts:
    """How the old rows and the inputs fit together."""

    kept: int = 0
    kept_failed: int = 0
    missing: int = 0
    failed: int = 0
    changed: int = 0
    gone: int = 0

    @property
    def to_run(self) -> int:
        """How many inputs are to be run."""
        return self.missing + self.failed + self.changed

    def __str__(self) -> str:
        parts = [f"{self.kept:,} {_rows(self.kept)} kept"]
        if self.kept_failed:
            parts.append(f"of them {self.kept_failed:,} failed")
        for number, what in (
            (self.missing, "missing"),
            (self.failed, "failed"),
            (self.changed, "changed"),
        ):
            if number:
                parts.append(f"{number:,} {what}")
        if self.gone:
            parts.append(
                f"{self.gone:,} {_rows(self.gone)} of inputs that are gone, kept at the end"
            )
        return ", ".join(parts)


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def check_out(out: str, *, resume: bool, overwrite: bool) -> None:
    """Look whether OUT may be written.

    Raises:
        Usage: It is there already and neither option is given; or it cannot be a file of rows.
    """
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder):
        raise Usage(f"--out {out}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Usage(f"--out {out}: the folder {folder} is not writable")
    if os.path.lexists(out) and not os.path.isfile(out):
        raise Usage(
            f"--out {out}: this is not a regular file; rows go to standard output without it"
        )
    if is_locked(partial_path(out)):
        raise Usage(in_use(out))
    if resume or overwrite:
        return
    if os.path.lexists(partial_path(out)):
        raise Usage(
            f"{partial_path(out)} is there, of a run that has not ended:"
            " --resume goes on with it, --overwrite starts afresh"
        )
    if os.path.lexists(out):
        raise Usage(
            f"{out} exists: --resume runs what is missing, failed or changed;"
            " --overwrite replaces it"
        )


class _OldRows:
    """Step 2: the rows of an earlier run, by their positions then."""

    def __init__(self, path: str, note: Callable[[str], object]) -> None:
        self.path = path
        self.rows = Rows()
        self.offsets = array("q")
        self.identities = array("q")
        self.state = bytearray()
        self.size = 0
        """Bytes up to the end of the last whole row."""
        self.damaged = False
        """Whether there are lines that are not rows; a torn last one aside."""
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    note(f"{path}: the last line is cut short; its input runs again")
                    break
                row = _parsed_row(line)
                if row is None:
                    note(f"{path}, line {number:,}: not a row; left out, its input runs again")
                    self.damaged = True
                else:
                    self._add(row, self.size)
                self.size += len(line)

    def __len__(self) -> int:
        return len(self.state)

    def _add(self, row: tuple[int, int, bool], offset: int) -> None:
        i, text, ok = row
        if i >= len(self.state):
            more = i + 1 - len(self.state)
            self.offsets.extend(array("q", [_NONE]) * more)
            self.identities.extend(array("q", [0]) * more)
            self.state.extend(bytes(more))
        self.rows.add(i, offset)
        self.offsets[i] = offset
        self.identities[i] = text
        self.state[i] = _OK if ok else _FAILED


class Resumption:
    """What `--resume` has found; `apply` makes it so on the disk."""

    def __init__(
        self,
        out: str,
        header: Header,
        inputs: Iterable[Item],
        *,
        keep_failed: bool,
        force: bool,
        note: Callable[[str], object],
    ) -> None:
        """Compare the companion, read the old rows and all inputs. Steps 1 to 4.

        Args:
            out: The file that the user wants.
            header: What makes the rows of this run.
            inputs: All items, with stamps.
            keep_failed: Whether failed rows stand.
            force: Whether to go on although the header differs.
            note: Is told what the user should know.

        Raises:
            Usage: Something else made the old rows.
        """
        self._out = out
        self._header = header
        self._keep_failed = keep_failed
        self.counts = Counts()
        path = partial_path(out) if os.path.exists(partial_path(out)) else out
        self._old: _OldRows | None = None
        self._stamps: Stamps | None = {}
        if os.path.exists(path):
            self._stamps = _compared(out, header, force, note)
            self._old = _OldRows(path, note)
        old_length = 0 if self._old is None else len(self._old)
        self._source = array("q")  # position now -> position then
        self._used = bytearray(old_length)
        self._todo: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - see `close`
            prefix="mpsched-todo-"
        )
        try:
            self._match(inputs)
        except BaseException:
            self._todo.close()
            raise

    def items(self) -> Iterator[Item]:
        """Return the items to run. May be called once, before `close`."""
        self._todo.seek(0)
        for _ in range(self.counts.to_run):
            item: Item = pickle.load(self._todo)
            yield item

    def is_complete(self) -> bool:
        """Whether OUT is finished, and as a run would leave it: there is nothing to write."""
        old = self._old
        return (
            self.counts.to_run == 0
            and old is not None
            and old.path == self._out
            and self._stands_as_it_is(old)
        )

    def apply(self) -> tuple[Companion, Rows]:
        """Write `OUT.partial` and the companion for the run to go on with. Step 5.

        Raises:
            Broken: They cannot be written; the old ones are as they were.
        """
        old = self._old
        if old is None:
            return Companion(self._out, self._header), Rows()
        moved = self._moved(old)
        rows = old.rows
        try:
            if old.path == partial_path(self._out) and self._stands_as_it_is(old):
                os.truncate(old.path, old.size)
            else:
                rows = self._rewritten(old, moved)
        except OSError as error:
            raise Broken(f"{partial_path(self._out)}: {error.strerror}") from None

        def new_position(i: int) -> int | None:
            return moved[i] if i < len(moved) and moved[i] != _NONE else None

        lines = companion.moved_lines(self._out, self._stamps or {}, new_position)
        return Companion(self._out, self._header, lines), rows

    def close(self) -> None:
        """Give up the list of items."""
        self._todo.close()

    def _match(self, inputs: Iterable[Item]) -> None:
        """Find the row of each item, and put the items to run into `_todo`. Steps 3 and 4."""
        old = self._old
        with tempfile.TemporaryFile(prefix="mpsched-open-") as unmatched:
            left = 0
            # First each at its own position: in the ordinary case that settles all but what is
            # missing, and the table by texts below stays small.
            for item in inputs:
                source = _NONE
                if (
                    old is not None
                    and item.i < len(old)
                    and old.state[item.i] != _NO_ROW
                    and old.identities[item.i] == identity(item.text)
                ):
                    source = item.i
                    self._used[source] = 1
                self._source.append(source)
                if source == _NONE or self._must_run(item, source):
                    pickle.dump(item, unmatched, 5)
                    left += 1
            by_text = self._unused_by_text()
            unmatched.seek(0)
            for _ in range(left):
                item = pickle.load(unmatched)
                if self._source[item.i] == _NONE and (same := by_text.get(identity(item.text))):
                    source = same.pop()
                    self._source[item.i] = source
                    self._used[source] = 1
                self._count(item)
        self.counts.kept = len(self._source) - self.counts.to_run
        if old is not None:
            self.counts.gone = sum(
                1 for i, state in enumerate(old.state) if state != _NO_ROW and not self._used[i]
            )
            self.counts.kept_failed = sum(
                1
                for source in self._source
                if self._keep_failed and source != _NONE and old.state[source] == _FAILED
            )

    def _count(self, item: Item) -> None:
        source = self._source[item.i]
        if source == _NONE:
            self.counts.missing += 1
        elif not self._must_run(item, source):
            return
        elif self._old is not None and self._old.state[source] == _FAILED:
            self.counts.failed += 1
        else:
            self.counts.changed += 1
        pickle.dump(item, self._todo, 5)

    def _must_run(self, item: Item, source: int) -> bool:
        assert self._old is not None
        if self._old.state[source] == _FAILED:
            return not self._keep_failed
        if self._stamps is None:  # not known, and the user has said to go on
            return False
        return item.stamp != self._stamps.get((source, identity(item.text)))

    def _unused_by_text(self) -> dict[int, list[int]]:
        """Return the positions of rows that no input has taken, the first one last."""
        found: dict[int, list[int]] = {}
        if self._old is not None:
            for i in range(len(self._old) - 1, -1, -1):
                if self._old.state[i] != _NO_ROW and not self._used[i]:
                    found.setdefault(self._old.identities[i], []).append(i)
        return found

    def _stands_as_it_is(self, old: _OldRows) -> bool:
        return (
            not old.damaged
            and old.rows.clean
            and self.counts.gone == 0
            and all(source in {_NONE, i} for i, source in enumerate(self._source))
            and (old.path != self._out or old.size == os.path.getsize(old.path))
        )

    def _moved(self, old: _OldRows) -> array[int]:
        """Return position then -> position now; rows whose inputs are gone are numbered on."""
        moved = array("q", [_NONE]) * len(old)
        for now, source in enumerate(self._source):
            if source != _NONE:
                moved[source] = now
        number = len(self._source)
        for i, state in enumerate(old.state):
            if state != _NO_ROW and moved[i] == _NONE:
                moved[i] = number
                number += 1
        return moved

    def _rewritten(self, old: _OldRows, moved: array[int]) -> Rows:
        """Write the rows anew, in the order and with the positions of now."""
        order = itertools.chain(
            (source for source in self._source if source != _NONE),
            (i for i in range(len(old)) if moved[i] >= len(self._source)),
        )
        rows = Rows()
        offset = 0
        temporary = temporary_path(self._out)
        with open(old.path, "rb") as source, open(temporary, "wb") as target:
            for i in order:
                source.seek(old.offsets[i])
                line = _renumbered(source.readline(), moved[i])
                target.write(line)
                rows.add(moved[i], offset)
                offset += len(line)
            target.flush()
            os.fsync(target.fileno())
        replace_file(temporary, partial_path(self._out))
        return rows


def _compared(
    out: str, header: Header, force: bool, note: Callable[[str], object]
) -> Stamps | None:
    """Step 1: return the stamps, if the same thing made the old rows; None if they are not known."""
    try:
        old, stamps = companion.read(out)
    except Usage as refusal:
        if not force:
            raise
        note(str(refusal).partition(";")[0])
        return None
    differences = old.differences(header)
    if differences and not force:
        raise Usage(
            f"{out} was made by something else:\n  "
            + "\n  ".join(differences)
            + "\n--overwrite starts afresh, --force resumes all the same"
        )
    for difference in differences:
        note(f"{difference} (--force)")
    if old.source != header.source:
        note(
            "the source of FUNC has changed; the rows that are kept come from the older one"
            " (--overwrite runs all again)"
        )
    return stamps


def _parsed_row(line: bytes) -> tuple[int, int, bool] | None:
    """Return position, hash of the input's text and success of a row, None if it is no row."""
    try:
        row: Any = json.loads(line)
        i, text, ok = row["i"], row["input"], row["ok"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(i) is not int or not 0 <= i <= _LARGEST or not isinstance(ok, bool):
        return None
    if not isinstance(text, str) and not (
        isinstance(text, list) and all(isinstance(part, str) for part in text)
    ):
        return None
    return i, identity(text), ok


def _renumbered(line: bytes, i: int) -> bytes:
    new, count = _POSITION.subn(b'{"i": %d' % i, line, count=1)
    if count and line.startswith(b'{"i": '):
        return new
    # Not as we write it: another program has formatted the row.
    return dumps({**json.loads(line), "i": i}) + b"\n"
