"""The command `mpsched`, run as a user runs it: in a folder, with a terminal or without."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tests.support import leaks
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    rc: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its standard output as rows; every line must be JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """A running `python -m mpsched`, in a session of its own; use it in a `with`.

    Attributes:
        pid: Process id of the command; it leads its session.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        stdin: bytes | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it.

        Args:
            folder: Its current folder.
            words: Its command line.
            stdin: What it reads; None: nothing at all.
            stdout: Where it writes; None: a file that `out` reads.
            stderr: The same.
            env: Environment variables on top of this process's own.
            prefix: A program that gets the command as its arguments and turns into it.
        """
        self._run = secrets.token_hex(8)
        # Files and not pipes: a process left behind would hold a pipe open, and hang the reader.
        self._files = [folder / f".{self._run}.{name}" for name in ("out", "err", "in")]
        self._files[2].write_bytes(stdin or b"")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            leaks.RUN_VARIABLE: self._run,
            **(env or {}),
        }
        with contextlib.ExitStack() as stack:
            given = self._files[2] if stdin is not None else Path(os.devnull)
            source = stack.enter_context(given.open("rb"))
            out = self._files[0].open("wb") if stdout is None else stdout
            err = self._files[1].open("wb") if stderr is None else stderr
            for stream in (out, err):
                if stream not in {stdout, stderr} and not isinstance(stream, int):
                    stack.enter_context(stream)
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "mpsched", *words],
                stdin=source,
                stdout=out,
                stderr=err,
                cwd=folder,
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
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for file in self._files:
            file.unlink(missing_ok=True)

    @property
    def out(self) -> str:
        """What it has written to standard output so far."""
        return self._read(0)

    @property
    def err(self) -> str:
        """What it has written to standard error so far."""
        return self._read(1)

    def processes(self) -> dict[int, str]:
        """Return pid -> command line of its live processes, itself included."""
        return leaks.processes_of_session(self.pid) | leaks.processes_marked(self._run)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the command, or as a terminal does to its whole process group."""
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def wait_until(self, true: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until something is so, and fail if the command ends before or it takes too long."""
        deadline = time.monotonic() + timeout
        while not true():
            ended = self._process.poll() is not None
            if true():
                return
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"it did not happen\n{self.out}\n{self.err}")
            time.sleep(0.01)

    def finish(self, timeout: float = 120.0, *, grace_s: float = leaks.GRACE_S) -> Result:
        """Wait for the end, and assert that no process is left.

        Args:
            timeout: Seconds after which it counts as hanging.
            grace_s: Seconds that its processes may take to be gone after it.
        """
        try:
            rc = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler writes all stacks
            self._process.wait()
            raise AssertionError(f"it hangs ({timeout} s)\n{self.out}\n{self.err}") from None
        deadline = time.monotonic() + grace_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, f"processes are left: {left}\n{self.err}"
        return Result(rc, self.out, self.err)

    def _read(self, which: int) -> str:
        path = self._files[which]
        return path.read_text("utf-8", "replace") if path.exists() else ""


def run_command(
    folder: Path, *words: str, stdin: bytes | None = None, timeout: float = 120.0, **more: Any
) -> Result:
    """Run the command to its end; see `Command` and `Command.finish`."""
    with Command(folder, *words, stdin=stdin, **more) as command:
        return command.finish(timeout)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; every line must be whole and JSON."""
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def whole_lines(path: Path) -> int:
    """Return how many whole lines a file has; 0 if there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def positions(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of rows."""
    return [row["i"] for row in rows]
