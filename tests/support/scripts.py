"""Python programs run as a user would run them, each in a session of its own.

A script that leaves a process behind fails its test, and the process is killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import leaks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

# The folder that has `tests` in it: the checkout, or the folder the tests were copied to.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ScriptResult:
    """How a script ended, and what it wrote."""

    rc: int  # exit status; negative is a signal's number
    out: str
    err: str


class Script:
    """A running script; use it in a `with`, which kills whatever is left of it.

    Attributes:
        pid: Process id of the interpreter; it leads a session of its own.
        folder: The script's current folder, empty at the start.
    """

    def __init__(
        self,
        source: str,
        *,
        stdin: bool = False,
        args: Sequence[str] = (),
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mpsched-script-")
        home = Path(self._home.name)
        self.folder = home / "cwd"
        self.folder.mkdir()
        program = home / "script.py"
        program.write_text(textwrap.dedent(source), encoding="utf-8")
        # Files and not pipes: a process left behind would hold a pipe open, and hang the reader.
        self._out = home / "out"
        self._err = home / "err"
        self._run = secrets.token_hex(8)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            leaks.RUN_VARIABLE: self._run,
            **(env or {}),
        }
        with (
            program.open("rb") if stdin else open(os.devnull, "rb") as source_of_input,
            self._out.open("wb") as out,
            self._err.open("wb") as err,
        ):
            self._process = subprocess.Popen(
                [sys.executable, *options, "-" if stdin else str(program), *args],
                stdin=source_of_input,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.kill_everything()
        finally:
            self._home.cleanup()

    @property
    def out(self) -> str:
        """What it has written to standard output so far."""
        return self._out.read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text("utf-8", "replace")

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Wait until standard output has `text`.

        Raises:
            AssertionError: The script ended, or `timeout` seconds passed, without it.
        """
        deadline = time.monotonic() + timeout
        while text not in self.out:
            ended = self._process.poll() is not None
            if text in self.out:
                return
            if ended or time.monotonic() > deadline:
                raise AssertionError(self._report(f"{text!r} was not printed"))
            time.sleep(0.01)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the interpreter, or as a terminal does to its whole process group."""
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def processes(self) -> dict[int, str]:
        """Return pid -> command line of its live processes, itself included."""
        return leaks.processes_of_session(self.pid) | leaks.processes_marked(self._run)

    def finish(self, timeout: float = 60.0, *, grace_s: float = leaks.GRACE_S) -> ScriptResult:
        """Wait for the end, and assert that no process is left.

        Args:
            timeout: Seconds to wait; a script that takes longer hangs, and fails the test with the
                stacks of its threads.
            grace_s: Seconds that its processes may take to be gone after it.

        Raises:
            AssertionError: It hangs, or has left a process.
        """
        try:
            rc = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
            self._process.wait()
            raise AssertionError(self._report(f"the script hangs ({timeout} s)")) from None
        deadline = time.monotonic() + grace_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            raise AssertionError(self._report(f"the script left processes: {left}"))
        return ScriptResult(rc, self.out, self.err)

    def kill_everything(self) -> None:
        """Kill what is left of the script, and reap the interpreter."""
        deadline = time.monotonic() + 60.0
        while left := self.processes():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.poll()
            if time.monotonic() > deadline:
                raise AssertionError(f"cannot kill {left}")
            time.sleep(0.01)
        self._process.wait()

    def _report(self, what: str) -> str:
        return f"{what}\n--- standard output\n{self.out}\n--- standard error\n{self.err}"


def run_script(
    source: str,
    *,
    stdin: bool = False,
    timeout: float = 60.0,
    args: Sequence[str] = (),
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ScriptResult:
    """Run a Python program to its end, in a session and an empty folder of its own.

    Args:
        source: The program; common indentation is removed.
        stdin: Feed it to `python -` and not as a file.
        timeout: Seconds after which it counts as hanging.
        args: Its arguments.
        options: Options of the interpreter.
        env: Environment variables on top of this process's own.

    Raises:
        AssertionError: It hangs, leaves a process, or leaves a file in its folder.
    """
    with Script(source, stdin=stdin, args=args, options=options, env=env) as script:
        result = script.finish(timeout)
        files = sorted(os.listdir(script.folder))
        assert not files, f"the script left files: {files}"
        return result
