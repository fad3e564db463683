"""An interactive Python in a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from types import TracebackType

_PROMPT = "READY> "


class Terminal:
    """`python -i` on a pseudo-terminal; use it in a `with`, which ends it.

    Attributes:
        pid: Process id of the interpreter, which leads a session of its own.
    """

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._master, slave = pty.openpty()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TERM": "dumb",
            "PYTHON_BASIC_REPL": "1",  # from 3.13 on: no colours, no cursor movements
            "PYTHON_COLORS": "0",
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-q", "-i"],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        self.pid = self._process.pid
        self._until(">>> ")
        self._send(f"import sys; sys.ps1 = {_PROMPT!r}; sys.ps2 = ''\n")
        self._until("\n" + _PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def run(self, text: str) -> str:
        """Type a statement (with an empty line behind a block); return what it printed."""
        self._send(text.rstrip("\n") + ("\n\n" if "\n" in text.strip() else "\n"))
        shown = self._until(_PROMPT)
        while _PROMPT not in shown[-len(_PROMPT) :]:
            shown += self._until(_PROMPT)
        # The terminal shows what is typed as well: everything before the last typed line.
        lines = shown.removesuffix(_PROMPT).splitlines()
        typed = len(text.rstrip("\n").splitlines()) + (1 if "\n" in text.strip() else 0)
        return "\n".join(line for line in lines[typed:] if line.strip())

    def end(self) -> int:
        """Type end-of-file; return the exit status."""
        self._send("\x04")
        deadline = time.monotonic() + self._timeout_s
        while self._process.poll() is None:
            self._read(0.05)
            if time.monotonic() > deadline:
                raise AssertionError("the interpreter does not end")
        return self._process.returncode

    def _send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _read(self, timeout_s: float) -> str:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return ""
        try:
            return os.read(self._master, 65536).decode("utf-8", "replace").replace("\r", "")
        except OSError:  # the other end is closed
            return ""

    def _until(self, text: str) -> str:
        shown = ""
        deadline = time.monotonic() + self._timeout_s
        while not shown.endswith(text):
            shown += self._read(0.1)
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} was not shown, but: {shown}")
        return shown
