"""A second Python process for tests, which answers calls until it is closed.

It is exec'd and not forked: NumPy starts threads, with which a fork is not safe.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from mpsched._shm import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROOT = Path(__file__).resolve().parents[2]
_HANG_S = 60.0


@final
class Elsewhere:
    """Another process; use it in a `with`, which ends it.

    Attributes:
        pid: Its process id.
        channel: This side's end of a socket by which it sends descriptors; never blocks. The other
            process has its end as `tests.support.elsewhere.channel`.
    """

    def __init__(self) -> None:
        self.channel, theirs = transfer.channel()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.elsewhere", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Begin a call of an importable function there."""
        assert self._process.stdin is not None
        pickle.dump((function.__module__, function.__qualname__, args), self._process.stdin, 5)
        self._process.stdin.flush()

    def result(self) -> Any:
        """Wait for the call that was begun; raises what it raised."""
        assert self._process.stdout is not None
        ok, value = pickle.load(self._process.stdout)
        if not ok:
            raise value
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call an importable function there, and return what it returns."""
        self.start(function, *args)
        return self.result()

    def kill(self) -> None:
        """End it as the kernel would for want of memory."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_HANG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_HANG_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


channel: socket.socket


def _serve(fd: int) -> None:
    # Under its real name, so that the functions of the tests find `channel`.
    this = importlib.import_module("tests.support.elsewhere")
    this.channel = socket.socket(fileno=fd)  # type: ignore[attr-defined]
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            module, name, args = pickle.load(calls)
        except EOFError:
            return
        answer: Sequence[Any]
        try:
            answer = True, getattr(importlib.import_module(module), name)(*args)
            data = pickle.dumps(answer, 5)
        except BaseException as error:
            traceback.print_exc()
            data = pickle.dumps((False, error), 5)
        answers.write(data)
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
