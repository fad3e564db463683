"""`OUT.mpsched`: what made the rows of OUT, and the stamps of the files that they came from.

JSON lines: one header, then one line per input that is a file. See README.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mpsched.cli.files import replace_file, write_all
from mpsched.cli.problems import Broken, Usage
from mpsched.cli.rows import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mpsched.cli.args import Options
    from mpsched.cli.func import FuncRef
    from mpsched.cli.inputs import Item

__all__ = [
    "Companion",
    "Header",
    "Stamps",
    "companion_path",
    "header_of",
    "identity",
    "moved_lines",
    "read",
]

_VERSION: Final = 1

Stamps = dict[tuple[int, int], tuple[int, int]]
"""(position, hash of the input's text) -> (size in bytes, time of change in ns)."""


def companion_path(out: str) -> str:
    """Return where the companion of OUT is."""
    return out + ".mpsched"


@dataclass(frozen=True, slots=True)
class Header:
    """What must be the same, or at least be told, if rows are to be added to."""

    func: str
    source: str | None
    """Digest of FUNC's file; None if it has none."""
    args: Mapping[str, str]
    shape: Mapping[str, Any] = field(default_factory=dict)
    """The options that decide what an input or a result is."""

    def differences(self, new: Header) -> list[str]:
        """Return, for a person, in what `new` differs, the source aside."""
        said = []
        if self.func != new.func:
            said.append(f"FUNC was {self.func}, is {new.func}")
        for what, old, now in (
            ("--arg ", self.args, new.args),
            ("--", self.shape, new.shape),
        ):
            for name in sorted(old.keys() | now.keys()):
                before, after = old.get(name), now.get(name)
                if before != after:
                    said.append(f"{what}{name} was {_shown(before)}, is {_shown(after)}")
        return said


class Companion:
    """The companion of a run that writes rows. Main thread only."""

    def __init__(self, out: str, header: Header, lines: Iterable[bytes] = ()) -> None:
        """Write a new companion in place of the old one.

        Args:
            out: The file that the rows are for.
            header: What makes the rows.
            lines: Stamps that are known already, from `stamp_line`.

        Raises:
            Broken: It cannot be written.
        """
        self._path = companion_path(out)
        temporary = self._path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(_header_line(header))
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            replace_file(temporary, self._path)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise Broken(f"{self._path} cannot be written: {error.strerror}") from None

    def append(self, items: Iterable[Item]) -> None:
        """Add the stamps of these items.

        Raises:
            OSError: They cannot be written. A torn line is no harm: `read` passes it over.
        """
        write_all(
            self._descriptor,
            b"".join(
                stamp_line(item.i, item.text, item.stamp)
                for item in items
                if item.stamp is not None
            ),
        )

    def sync(self) -> None:
        """Bring it to the disk; OSError if that fails."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def header_of(options: Options, ref: FuncRef) -> Header:
    """Return the header of a run with this command line."""
    shape: dict[str, Any] = {
        "lines": options.lines,
        "kwargs": options.kwargs,
        "batch": options.batch,
        "block": options.block,
        "out-dir": None if options.out_dir is None else os.path.abspath(options.out_dir),
        "suffix": options.suffix,
        "init": options.init,
        "capture": options.capture,
    }
    # In a file, `extract.py:text` and `./extract.py:text` are the same function.
    func = f"{ref.module}:{ref.names}" if ref.path is None else f"{ref.path}:{ref.names}"
    source = None
    path = ref.source_file()
    if path is not None and os.path.isfile(path):
        with open(path, "rb") as file:
            source = hashlib.file_digest(file, "sha256").hexdigest()
    return Header(func, source, dict(options.args), shape)


def read(out: str) -> tuple[Header, Stamps]:
    """Return what the companion of OUT says.

    Raises:
        Usage: There is none, or it is not one.
    """
    path = companion_path(out)
    stamps: Stamps = {}
    try:
        with open(path, "rb") as file:
            header = _parsed_header(path, file.readline())
            for line in file:
                _add_stamp(stamps, line)
    except FileNotFoundError:
        raise Usage(
            f"{path} is missing, so it is not known what made the rows of {out};"
            " --force resumes all the same, --overwrite starts afresh"
        ) from None
    except OSError as error:
        raise Usage(f"{path} cannot be read: {error.strerror}") from None
    return header, stamps


def identity(text: object) -> int:
    """Return what stands for an input's text: equal texts, equal numbers, in this process."""
    return hash(tuple(text)) if isinstance(text, list) else hash(text)


def moved_lines(out: str, stamps: Stamps, moved: Callable[[int], int | None]) -> Iterator[bytes]:
    """Return the stamp lines of a companion for rows that have other positions now.

    Args:
        out: The file that the companion belongs to; its companion is read.
        stamps: What `read` has returned: of several lines for one row the last counts.
        moved: The new position of an old one; None if its row is not kept.
    """
    try:
        with open(companion_path(out), "rb") as file:
            for line in file:
                one: Stamps = {}
                _add_stamp(one, line)
                for (i, text), stamp in one.items():
                    new = moved(i) if stamps.get((i, text)) == stamp else None
                    if new is not None:
                        yield stamp_line(new, json.loads(line)["input"], stamp)
    except FileNotFoundError:
        return


def stamp_line(i: int, text: object, stamp: tuple[int, int]) -> bytes:
    """Return the line for one input."""
    return dumps({"i": i, "input": text, "size": stamp[0], "mtime_ns": stamp[1]}) + b"\n"


def _header_line(header: Header) -> bytes:
    return (
        dumps(
            {
                "mpsched": _VERSION,
                "func": header.func,
                "source": header.source,
                "args": dict(header.args),
                "shape": dict(header.shape),
            }
        )
        + b"\n"
    )


def _parsed_header(path: str, line: bytes) -> Header:
    try:
        values = json.loads(line)
        if values["mpsched"] != _VERSION:
            raise Usage(
                f"{path} is of another version of mpsched ({values['mpsched']}, not {_VERSION});"
                " --force resumes all the same"
            )
        return Header(values["func"], values["source"], values["args"], values["shape"])
    except (ValueError, KeyError, TypeError):
        raise Usage(f"{path} is damaged: its first line is not a header; --force goes on") from None


def _add_stamp(stamps: Stamps, line: bytes) -> None:
    """Take one line; a torn or foreign one is passed over, and its input runs again."""
    try:
        values = json.loads(line)
        stamps[values["i"], identity(values["input"])] = (values["size"], values["mtime_ns"])
    except (ValueError, KeyError, TypeError):
        return


def _shown(value: object) -> str:
    if value is None or value is False:
        return "not given"
    return "given" if value is True else repr(value)
