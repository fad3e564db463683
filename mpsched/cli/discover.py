"""INPUT on the command line: files, globs and folders become names.

See README.md, "Inputs".
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from mpsched.cli.outdir import relative
from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Name", "discover", "named"]

_MAGIC = re.compile(r"[*?\[]")
_NUMBER = re.compile(r"(\d+)")


class Name(NamedTuple):
    """One text that the user gave or that was found for him."""

    text: str
    place: str | None
    """Where its file goes below `--out-dir`; None if it is no path."""


def discover(
    inputs: Sequence[str], *, files: bool, globs: Sequence[str], note: Callable[[str], object]
) -> list[Name]:
    """Return what each INPUT stands for, in the order given; found names in natural order.

    Args:
        inputs: The texts of the command line.
        files: Whether folders are descended into, and every INPUT must exist.
        globs: Patterns that a folder's files must match, any of them; empty: all files.
        note: Is told what was left out: folders that cannot be read.

    Raises:
        Usage: A pattern or a folder without files, a folder without `files`, no such file.
    """
    names: list[Name] = []
    for text in inputs:
        if os.path.isdir(text):
            if not files:
                raise Usage(f"{text} is a folder; --files takes the files in and below it")
            found = _in_folder(text, globs, note)
            if not found:
                matching = f" that matches {' or '.join(map(repr, globs))}" if globs else ""
                raise Usage(f"{text}: there is no file in it{matching}")
            names += found
        elif os.path.lexists(text):
            names.append(Name(text, relative(text)))
        elif _MAGIC.search(text):
            names += _matching(text, files, globs, note)
        elif files:
            raise Usage(f"{text}: no such file or folder (current folder: {os.getcwd()})")
        else:
            names.append(Name(text, None))
    return names


def named(texts: Iterable[str]) -> Iterator[Name]:
    """Return names for texts that came from a list."""
    for text in texts:
        yield Name(text, relative(text) if os.path.lexists(text) else None)


def _matching(
    pattern: str, files: bool, globs: Sequence[str], note: Callable[[str], object]
) -> list[Name]:
    """Return the files that a pattern matches, and with `files` those below its folders."""
    magic = _MAGIC.search(pattern)
    fixed = os.path.dirname(pattern[: magic.start()]) if magic else ""
    names: list[Name] = []
    folders = 0
    for path in sorted(set(glob.glob(pattern, recursive=True)), key=_natural):
        if not os.path.isdir(path):
            names.append(Name(path, relative(os.path.relpath(path, fixed or os.curdir))))
        elif files and not _is_recursive(pattern):
            names += _in_folder(path, globs, note)
        else:
            folders += 1
    if not names:
        hint = ""
        if folders:
            hint = f" ({folders:,} folders do; --files takes the files in and below them)"
        elif not files:
            hint = "; a text that looks like a pattern: give it with --from"
        raise Usage(f"{pattern}: no file matches (current folder: {os.getcwd()}){hint}")
    return names


def _is_recursive(pattern: str) -> bool:
    """Whether a pattern finds what lies below a folder by itself."""
    return "**" in pattern.split(os.sep)


def _in_folder(folder: str, globs: Sequence[str], note: Callable[[str], object]) -> list[Name]:
    """Return the files in and below a folder, hidden ones left out, in natural order.

    A pattern with a slash is matched against the path below the folder, `**` any depth; one
    without against the file's name, at any depth.
    """
    found: set[str] = set()
    names = [pattern for pattern in globs if os.sep not in pattern]
    for pattern in globs:
        if os.sep in pattern:
            below = glob.glob(pattern, root_dir=folder, recursive=True)
            found.update(os.path.join(folder, path) for path in below)
    if names or not globs:
        found.update(
            path
            for path in _walk(folder, note)
            if not names or any(fnmatch.fnmatchcase(os.path.basename(path), n) for n in names)
        )
    # A socket, a pipe, a link to nothing is no input.
    paths = sorted(filter(os.path.isfile, found), key=_natural)
    return [Name(path, relative(os.path.relpath(path, folder))) for path in paths]


def _walk(folder: str, note: Callable[[str], object]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        note(f"left out: {error.filename}: {error.strerror}")

    for above, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield os.path.join(above, name)


def _natural(path: str) -> list[tuple[int, int, str]]:
    """Sort key that puts `a2` before `a10`, and a folder's files together."""
    key = []
    for part in path.split(os.sep):
        # Three fields, so that a number is never compared with a text.
        key += [
            (0, int(piece), piece) if piece.isdecimal() else (1, 0, piece)
            for piece in _NUMBER.split(part)
        ]
        key.append((-1, 0, ""))
    return key
