"""A launcher with a pipe on which its workers speak, and processes to wait for."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mpsched._pool import launch
from mpsched._worker import boot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0  # only a hang takes so long

E = TypeVar("E")


class Launched:
    """A launcher whose workers run a function of `tests.support.entries`."""

    def __init__(
        self, method: str, entry: str, *, config: bytes = b"", preload: tuple[str, ...] = ()
    ) -> None:
        self.read, self.write = os.pipe()
        self.spec = boot.snapshot(
            fds={"out": self.write},
            config=config,
            preload=preload,
            entry=f"tests.support.entries:{entry}",
        )
        self.seen: list[launch.Event] = []
        self._rest = b""
        try:
            self.launcher = launch.make(method, self.spec, [self.write])
        except BaseException:
            os.close(self.read)
            os.close(self.write)
            raise

    def wait(self, kind: type[E], count: int = 1) -> list[E]:
        """Return the first `count` events of this kind, taking in all that come."""
        until = time.monotonic() + DEADLINE_S
        while len(found := self._seen(kind)) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{count} x {kind.__name__} did not come; seen: {self.seen}")
            wait_readable(self.launcher.fileno(), left)
            self.seen += self.launcher.events()
        return found[:count]

    def _seen(self, kind: type[E]) -> list[E]:
        events: list[Any] = self.seen
        return [e for e in events if isinstance(e, kind)]

    def start(self, *workers: tuple[int, int]) -> list[launch.Started]:
        """Start these (index, incarnation) and wait until each exists."""
        before = sum(isinstance(e, launch.Started) for e in self.seen)
        for index, incarnation in workers:
            self.launcher.start(index, incarnation)
        return self.wait(launch.Started, before + len(workers))[before:]

    def lines(self, count: int) -> list[Any]:
        """Return the next `count` lines that workers have written."""
        until = time.monotonic() + DEADLINE_S
        while self._rest.count(b"\n") < count:
            left = until - time.monotonic()
            if left <= 0 or not wait_readable(self.read, left):
                raise TimeoutError(f"{count} lines did not come; there is {self._rest!r}")
            self._rest += os.read(self.read, 65536)
        *found, self._rest = self._rest.split(b"\n", count)
        return [json.loads(line) for line in found]

    def silent(self) -> bool:
        """Tell whether no worker has written anything that was not read."""
        return not self._rest and not wait_readable(self.read, 0)

    def close(self) -> None:
        self.launcher.close()
        os.close(self.read)
        os.close(self.write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def wait_readable(fd: int, timeout: float) -> bool:
    """Wait up to `timeout` seconds until `fd` can be read."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


class Watched:
    """Processes held by pidfd, so that their end is seen whoever reaps them."""

    def __init__(self, *pids: int) -> None:
        self._pidfds = {pid: os.pidfd_open(pid) for pid in pids}

    def alive(self) -> list[int]:
        return [pid for pid, fd in self._pidfds.items() if not wait_readable(fd, 0)]

    def alive_after(self, seconds: float) -> list[int]:
        """Wait up to `seconds` in all until each has ended; return those that have not."""
        until = time.monotonic() + seconds
        return [
            pid
            for pid, fd in self._pidfds.items()
            if not wait_readable(fd, max(0.0, until - time.monotonic()))
        ]

    def close(self) -> None:
        """Kill what a failing test has left."""
        for fd in self._pidfds.values():
            if not wait_readable(fd, 0):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)


@contextmanager
def parent_program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Run tests/support/launch_parent.py in a session of its own; yield it and its first line."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.launch_parent", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert wait_readable(program.stdout.fileno(), DEADLINE_S)
            yield program, json.loads(program.stdout.readline())
        finally:
            program.kill()


def all_pids(told: dict[str, object]) -> list[int]:
    """Return the workers and, where there is one, the template."""
    assert isinstance(told["workers"], list)
    assert isinstance(told["template"], int)
    return [*told["workers"], *([told["template"]] if told["template"] else [])]


def children_of(pid: int) -> list[int]:
    """Return the children of a process with one thread, zombies among them."""
    with open(f"/proc/{pid}/task/{pid}/children") as listing:
        return [int(child) for child in listing.read().split()]


def open_descriptors() -> dict[str, str]:
    """Return number -> target of this process's descriptors."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found
