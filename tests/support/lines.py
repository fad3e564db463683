"""Something happens in the middle: another thread's turn, a finalizer, Ctrl-C.

Between two bytecodes of a function anything may come. `before_line` puts it before the k-th line that a
function executes, so a test can try every k.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType


class Lines:
    """Counts the lines that were executed of one function.

    Attributes:
        count: how many were begun.
    """

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def before_line(
    function: Callable[..., object], line: int, action: Callable[[], object]
) -> Iterator[Lines]:
    """Do `action` before the `line`-th line (from 0) that `function` executes in this thread.

    What `action` raises comes out of that line, as KeyboardInterrupt does.
    """
    code: CodeType = function.__code__
    seen = Lines()

    def local(_frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            seen.count += 1
            if seen.count == line + 1:
                sys.settrace(None)  # not while `action` runs, and not again
                action()
        return local

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        return local if frame.f_code is code else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def lines_of(function: Callable[..., object], call: Callable[[], object]) -> int:
    """Return how many lines of `function` a call executes."""
    with before_line(function, -1, lambda: None) as seen:
        call()
    return seen.count
