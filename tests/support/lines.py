"""Something happens in the middle: another thread's turn, a finalizer, Ctrl-C.

Between two bytecodes of a function anything may come. `before_line` puts it before the k-th line that a
function executes, so a test can try every k.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

    Function = Callable[..., object] | tuple[Callable[..., object], ...]


class Lines:
    """Counts the lines that were executed of one function.

    Attributes:
        count: how many were begun.
    """

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def before_line(function: Function, line: int, action: Callable[[], object]) -> Iterator[Lines]:
    """Do `action` before the `line`-th line (from 0) that `function` executes in this thread.

    What `action` raises comes out of that line, as KeyboardInterrupt does.
    """
    with before_lines(function, {line: action}) as seen:
        yield seen


@contextmanager
def before_lines(
    function: Function, actions: Mapping[int, Callable[[], object]], unit: str = "line"
) -> Iterator[Lines]:
    """Do several things, each before its line; otherwise as `before_line`.

    Of several functions the lines are counted together, in the order in which they are executed. With "opcode"
    as `unit` bytecodes are counted in place of lines. (CPython 3.12 shows those of calls after the first one that
    asks for them.)
    """
    functions = function if isinstance(function, tuple) else (function,)
    codes: set[CodeType] = {one.__code__ for one in functions}
    seen = Lines()

    def local(_frame: FrameType, event: str, _arg: object) -> Any:
        if event == unit:
            seen.count += 1
            action = actions.get(seen.count - 1)
            if action is not None:
                sys.settrace(None)  # not while `action` runs
                action()
                sys.settrace(trace)
        return local

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = unit == "opcode"
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def apart(call: Callable[[], Any]) -> Any:
    """Return what `call` does, in which an exception comes before some bytecode.

    Where that is one that only takes a handled exception off its stack, CPython leaves that one there, for ever
    the context of all others. No handler of a signal is called there. A generator has a stack of its own for them.
    """

    def own() -> Iterator[Any]:
        yield call()

    (value,) = own()
    return value


def lines_of(function: Function, call: Callable[[], object]) -> int:
    """Return how many lines of `function` a call executes."""
    with before_line(function, -1, lambda: None) as seen:
        call()
    return seen.count


class Paused:
    """Another thread, which stands before some lines of a function until it is told to go on.

    Attributes:
        result: what its call has returned, once it is done.
    """

    def __init__(
        self, function: Function, lines: tuple[int, ...], call: Callable[[], object]
    ) -> None:
        self._function = function
        self._lines = lines
        self._call = call
        self._stands = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.result: object = None

    def start(self) -> None:
        """Let it run to its first line, or to its end if it has fewer."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._wait()

    def go_on(self) -> None:
        """Let it run to its next line, or to its end; does nothing if it does not stand."""
        if self._thread is not None and self._thread.is_alive():
            self._go.release()
            self._wait()

    def finish(self) -> None:
        """Let it run to its end, if it was started; may be called again."""
        for _ in self._lines:
            self.go_on()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive(), "the other thread does not end"

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=60), "the other thread neither stands nor ends"

    def _run(self) -> None:
        actions: dict[int, Callable[[], object]] = dict.fromkeys(self._lines, self._stand)
        try:
            with before_lines(self._function, actions):
                self.result = self._call()
        finally:
            # Nobody waits for it any more, however often: it may look alive for a moment yet.
            self._stands.release(1000)

    def _stand(self) -> None:
        self._stands.release()
        assert self._go.acquire(timeout=60)


class Yielding:
    """A lock that another, paused thread may have: whoever wants it lets that thread finish first."""

    def __init__(self, paused: Paused) -> None:
        self._lock = threading.Lock()
        self._paused = paused

    def acquire(self) -> bool:
        if not self._lock.acquire(blocking=False):
            self._paused.finish()
            return self._lock.acquire(timeout=60)
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        assert self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
