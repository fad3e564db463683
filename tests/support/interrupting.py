"""KeyboardInterrupt at a chosen line of the library's own code, as Ctrl-C may strike there."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PACKAGE = Path(mpsched.__file__).parent
POOL = (f"{_PACKAGE / '_pool'}/", str(_PACKAGE / "executor.py"))
SCHEDULER = (
    f"{_PACKAGE / '_schedule'}/",
    f"{_PACKAGE / '_timers'}/",
    str(_PACKAGE / "scheduler.py"),
)


@functools.cache
def _with_blocks(filename: str) -> dict[int, int]:
    """Return first line -> last line of each `with` statement in a file."""
    tree = ast.parse(Path(filename).read_text("utf-8"))
    return {
        node.lineno: node.end_lineno or node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
    }


def _is_lost(frame: FrameType | None) -> bool:
    """Whether the interpreter drops what is raised there: in a finalizer, or what that calls."""
    while frame is not None:
        if frame.f_code.co_name in {"__del__", "on_dropped"}:
            return True
        frame = frame.f_back
    return False


class Interruption:
    """Raises KeyboardInterrupt once, when the calling thread is about to run the `at`-th line.

    Lines are counted in some files alone, those of the pool for instance, in the order in which they run. The interpreter
    comes back to the line of a `with` when it leaves the block; there an exception from a trace
    function would skip the exit, which no signal can do, so it is not counted.

    Attributes:
        where: "file:line function" that was interrupted, or None if the call had fewer lines.
        lines: how many lines were counted.
    """

    def __init__(self, at: int, files: tuple[str, ...] = POOL) -> None:
        self.at = at
        self._files = files
        self.lines = 0
        self.where: str | None = None

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function`; return what it returns, or the KeyboardInterrupt."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return function()
        except KeyboardInterrupt as interrupt:
            if self.where is None:
                raise  # of the person at the keyboard
            return interrupt
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self.where is not None or not code.co_filename.startswith(self._files):
            return None
        if _is_lost(frame):
            return None
        withs = _with_blocks(code.co_filename)
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line" and self.where is None:
                number = frame.f_lineno
                leaving = number < last <= withs.get(number, 0)
                if not leaving:
                    last = number
                    self.lines += 1
                    if self.lines == self.at:
                        name = Path(code.co_filename).name
                        self.where = f"{name}:{number} {code.co_name}"
                        raise KeyboardInterrupt(self.where)
            return line

        return line
