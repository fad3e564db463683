"""`--out-dir`: the file that belongs to an input, and how a worker writes it.

See README.md, "`--out-dir`".
"""

from __future__ import annotations

import contextlib
import os
from typing import IO, Any, Final

from mpsched.cli.rows import NotJson

__all__ = ["Targets", "existing", "remove_unfinished", "write"]

_BY_TYPE: Final = (".txt", ".bin", ".npy")


class Targets:
    """The parent's side: one file, without its suffix, for each input."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)

    def of(self, i: int, place: str | None) -> str:
        """Return the path, without suffix, of an input's file.

        Args:
            i: Its position.
            place: Its relative path, from `relative`; None if the input is not a path.
        """
        if place is None:
            return os.path.join(self._folder, f"{i:08d}")
        return os.path.join(self._folder, os.path.splitext(place)[0])


def relative(path: str) -> str:
    """Return a path without root, `.` and `..`: where it goes below the folder."""
    _, path = os.path.splitdrive(path)
    parts = [part for part in path.split(os.sep) if part not in {"", os.curdir, os.pardir}]
    return os.path.join(*parts) if parts else "_"


def existing(target: str, suffix: str | None) -> dict[str, object] | None:
    """Return the result of an input whose file is there already, None if there is none."""
    for ending in _BY_TYPE if suffix is None else (suffix,):
        try:
            return {"path": _shown(target + ending), "bytes": os.stat(target + ending).st_size}
        except FileNotFoundError:
            continue
    return None


def write(value: Any, target: str, suffix: str | None) -> dict[str, object] | None:
    """Write what FUNC returned to its file; the file appears under its name when it is whole.

    Context:
        A worker.

    Returns:
        The row's result: path and size in bytes. None if FUNC returned None.

    Raises:
        NotJson: The value has no file form.
        OSError: It cannot be written.
    """
    if value is None:
        return None
    ending = _ending(value)
    path = target + (ending if suffix is None else suffix)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    unfinished = _unfinished(target)
    try:
        with open(unfinished, "wb") as file:
            _write_value(file, value)
            file.flush()
            os.fsync(file.fileno())  # a row that says ok must not outlive its file in a power cut
            size = file.tell()
        os.replace(unfinished, path)
    except BaseException:
        remove_unfinished(target)
        raise
    return {"path": _shown(path), "bytes": size}


def remove_unfinished(target: str) -> None:
    """Remove what a call that was ended may have left; only after its worker is gone."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(_unfinished(target))


def _unfinished(target: str) -> str:
    folder, stem = os.path.split(target)
    return os.path.join(folder, f".{stem}.mpsched-part")


def _ending(value: Any) -> str:
    if isinstance(value, str):
        return ".txt"
    if isinstance(value, bytes | bytearray | memoryview):
        return ".bin"
    if any(
        kind.__module__ == "numpy" and kind.__name__ == "ndarray" for kind in type(value).__mro__
    ):
        return ".npy"
    raise NotJson(
        f"result: {type(value).__qualname__} has no file form; --out-dir takes bytes, str and"
        " NumPy arrays, and None if FUNC writes for itself"
    )


def _write_value(file: IO[bytes], value: Any) -> None:
    if isinstance(value, str):
        try:
            file.write(value.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise NotJson(f"result: {error}; return bytes") from None
    elif isinstance(value, bytes | bytearray | memoryview):
        file.write(value)
    else:
        import numpy as np

        np.save(file, value, allow_pickle=False)


def _shown(path: str) -> str:
    """Return the path as the user would write it: relative, if it is below the current folder."""
    shown = os.path.relpath(path)
    return path if shown.startswith(os.pardir) else shown
