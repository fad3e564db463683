"""What a task's own fork may still do: everything but being a worker. See README.md, "Forks"."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn, cast, final

from mpsched._worker import awaiting, long, publish
from mpsched._worker.chunk import Chunk

if TYPE_CHECKING:
    from mpsched._tasks.records import ResultWriter
    from mpsched._worker.worker import Worker

CAME_BACK: Final = 70
"""Exit code of a fork that left its task as if it were the worker."""


def watch(worker: Worker) -> None:
    """From now on a process that is forked off this one is no worker."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _disown(worker))


def _disown(worker: Worker) -> None:
    # Whatever a run does next in the runtime, it wants to publish something.
    worker.results = cast("ResultWriter", _NoRing())
    # The helper thread, which is not in this process, may have held it.
    worker.write_lock = threading.Lock()
    worker.ring_lock = threading.Lock()
    # What it spawns it runs at once; what it had spawned runs in the worker, and here if joined here.
    publish.leave()
    awaiting.leave()
    long.leave()
    if isinstance(worker.chunk, Chunk):
        worker.chunk.end = worker.chunk.started


@final
class _NoRing:
    """Stands where the result ring was: who writes to it, or asks what fits, ends the process."""

    def write(self, *_record: object) -> NoReturn:
        """End."""
        _end()

    def write_payload(self, *_record: object) -> NoReturn:
        """End."""
        _end()

    @property
    def largest(self) -> NoReturn:
        """End."""
        _end()


def _end() -> NoReturn:
    problem = sys.exception()
    if isinstance(problem, SystemExit):
        code = problem.code
        if code is not None and not isinstance(code, int):
            os.write(2, f"{code}\n".encode())
            code = 1
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except (OSError, ValueError):
                continue  # closed, or nobody reads it
        os._exit((code or 0) & 255)
    os.write(
        2,
        b"mpsched: a task forked, and the child left the task as if it were the worker; it ends "
        b"here. End such a child with os._exit() or sys.exit()\n",
    )
    os._exit(CAME_BACK)
