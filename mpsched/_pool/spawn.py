"""Workers that are fresh interpreters, children of the parent; see README.md, "Launch"."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple, final

from mpsched._pool import forkguard
from mpsched._pool.interpreter import execute, spec_file
from mpsched._pool.launch import Event, Exited, NotStarted, Started
from mpsched._worker import children, control, lifeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._worker.boot import BootSpec


class _Worker(NamedTuple):
    number: int
    incarnation: int
    pid: int
    pidfd: int


@final
class SpawnLauncher:
    """Runs one interpreter per worker and waits for each by its pidfd."""

    def __init__(self, spec: BootSpec, pass_fds: Sequence[int]) -> None:
        self._spec = spec
        self._pass_fds = tuple(pass_fds)
        self._owner = os.getpid()
        self._workers: dict[int, _Worker] = {}  # by pidfd
        self._waiting: list[Event] = []
        self._reasons: dict[int, str] = {}  # by pid
        self._ended: list[int] = []  # pidfds of workers whose end has been returned
        self._closed = False
        with contextlib.ExitStack() as undo:
            self._spec_fd = spec_file(spec)
            undo.callback(os.close, self._spec_fd)
            self._line, self._held = lifeline.create()
            undo.callback(os.close, self._line)
            undo.callback(os.close, self._held)
            self._reports, self._report = control.pair()
            undo.callback(self._reports.close)
            undo.callback(self._report.close)
            self._wake = os.eventfd(0)
            undo.callback(os.close, self._wake)
            self._epoll = select.epoll()
            undo.callback(self._epoll.close)
            for fd in (self._wake, self._reports.fileno()):
                self._epoll.register(fd, select.EPOLLIN)
            self._undo = undo.pop_all()
        self._reports.setblocking(False)
        forkguard.watch(self)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something."""
        return -1 if self._closed else self._epoll.fileno()

    def start(self, index: int, incarnation: int) -> None:
        """Start a worker; its `Started` or `NotStarted` waits in `events`."""
        inherited = (self._line, self._report.fileno(), self._spec_fd, *self._pass_fds)
        keep = ",".join(map(str, self._pass_fds))
        arguments = [*map(str, (*inherited[:3], index, incarnation)), keep]
        try:
            pid = execute("mpsched._worker.boot:spawned", arguments, self._spec, inherited)
            pidfd = self._watch(pid)
        except OSError as error:
            self._waiting.append(NotStarted(index, incarnation, error))
        else:
            self._workers[pidfd] = _Worker(index, incarnation, pid, pidfd)
            self._waiting.append(Started(index, incarnation, pid, pidfd))
        os.eventfd_write(self._wake, 1)

    def _watch(self, pid: int) -> int:
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # our child and not reaped: nobody else has its number
            os.waitpid(pid, 0)
            if pidfd >= 0:
                os.close(pidfd)
            raise
        return pidfd

    def events(self) -> list[Event]:
        """Return what has happened since the last call; never waits."""
        self._close_ended()
        if self._closed:
            return []
        ready = [fd for fd, _ in self._epoll.poll(0)]
        if self._wake in ready:
            os.eventfd_read(self._wake)
        result, self._waiting = self._waiting, []
        self._read_reasons()
        result += [self._bury(self._workers[fd]) for fd in ready if fd in self._workers]
        return result

    def kill(self, pid: int, sig: int) -> bool:
        """Send `sig` to a worker; False if it has ended."""
        for worker in self._workers.values():
            if worker.pid == pid and not children.ended(worker.pidfd):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker.pidfd, sig)
                    return True
        return False

    def restart(self) -> None:
        """Do nothing: there is no template."""

    def stop(self, timeout: float) -> list[Event]:
        """Wait up to `timeout` seconds until the workers have left, kill the rest, close."""
        result: list[Event] = []
        if os.getpid() == self._owner and not self._closed:
            until = time.monotonic() + timeout
            result += self.events()
            while self._workers and (left := until - time.monotonic()) > 0:
                self._epoll.poll(left)
                result += self.events()
            for worker in self._workers.values():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            for worker in list(self._workers.values()):
                children.ended(worker.pidfd, timeout=None)
                self._read_reasons()
                result.append(self._bury(worker))
        self.let_go()
        return result

    def close(self) -> None:
        """Kill what is left, reap it, give all descriptors back. May be called again."""
        self.stop(0.0)

    def let_go(self) -> None:
        """Close all descriptors and touch no process: also what a fork of this process does."""
        if not self._closed:
            self._closed = True
            self._ended += self._workers
            self._workers.clear()
            self._close_ended()
            self._undo.close()

    def _bury(self, worker: _Worker) -> Exited:
        self._epoll.unregister(worker.pidfd)
        del self._workers[worker.pidfd]
        self._ended.append(worker.pidfd)
        status = children.reap(worker.pidfd)
        reason = self._reasons.pop(worker.pid, None)
        return Exited(worker.number, worker.incarnation, worker.pid, status, reason)

    def _read_reasons(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while (record := control.receive(self._reports)) is not None:
                self._reasons[record.pid] = record.text

    def _close_ended(self) -> None:
        while self._ended:
            os.close(self._ended.pop())
