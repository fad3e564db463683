"""Workers forked by a template: the start methods forkserver and fork; see README.md, "Launch"."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING, final

from mpsched._pool import forkguard
from mpsched._pool.interpreter import execute, spec_file
from mpsched._pool.launch import Event, Exited, NotStarted, Started, TemplateDied
from mpsched._worker import children, control, lifeline
from mpsched._worker.control import Kind, Record

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from mpsched._worker.boot import BootSpec

# Seconds for a process to be gone after SIGKILL; only one that the kernel cannot stop takes longer.
_PATIENCE_S = 5.0


@final
class TemplateLauncher:
    """Asks a template for workers, and hears from it how they ended.

    Args:
        fork: fork this process for the first template instead of running a fresh interpreter.
    """

    def __init__(self, spec: BootSpec, pass_fds: Sequence[int], *, fork: bool) -> None:
        self._spec = spec
        self._pass_fds = tuple(pass_fds)
        self._owner = os.getpid()
        # pid -> pidfd, or -1 where no descriptor was left when it started
        self._workers: dict[int, int] = {}
        self._ended: list[int] = []  # pidfds of workers whose end has been returned
        self._reason: str | None = None
        self._socket: socket.socket | None = None
        self.template_pid = 0
        self._pidfd = -1
        self._held = -1
        self._begin(fork=fork)
        forkguard.watch(self)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something; -1 with no template."""
        return -1 if self._socket is None else self._socket.fileno()

    def start(self, index: int, incarnation: int) -> None:
        """Ask for a worker. The template may still be importing: the request waits in the socket."""
        if self._socket is None:
            raise RuntimeError("start() without a template: restart() comes first")
        # BrokenPipeError: the template has died; TemplateDied is what follows.
        with contextlib.suppress(BrokenPipeError):
            control.send(self._socket, Record(Kind.START, index, incarnation))

    def events(self) -> list[Event]:
        """Return what has happened since the last call; see `Launcher`."""
        self._close_ended()
        result: list[Event] = []
        while self._socket is not None:
            if not _readable(self._socket):
                break
            record = control.receive(self._socket)
            if record is None:
                result.append(self._template_died())
            elif record.kind is Kind.STARTED:
                self._workers[record.pid] = record.fd
                result.append(Started(record.worker, record.incarnation, record.pid, record.fd))
            elif record.kind is Kind.EXITED:
                self._ended.append(self._workers.pop(record.pid, -1))
                result.append(Exited(record.worker, record.incarnation, record.pid, record.detail))
            elif record.kind is Kind.NOT_STARTED:
                error = OSError(record.detail, os.strerror(record.detail))
                result.append(NotStarted(record.worker, record.incarnation, error))
            elif record.kind is Kind.FAILED:
                self._reason = record.text
            else:
                raise RuntimeError(f"a template never sends {record!r}")
        return result

    def kill(self, pid: int, sig: int) -> bool:
        """Send `sig` to a worker; False if it has ended."""
        pidfd = self._workers.get(pid)
        if pidfd is None:
            return False
        try:
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, sig)
            elif self._socket is not None:
                control.send(self._socket, Record(Kind.KILL, pid=pid, detail=sig))
        except (ProcessLookupError, BrokenPipeError):
            return False
        return True

    def restart(self) -> None:
        """Make a new template after `TemplateDied`.

        A fresh interpreter for `fork` too: this process has threads by now, and a fork could copy a
        lock that one of them holds.
        """
        if self._socket is None:
            self._begin(fork=False)

    def stop(self, timeout: float) -> list[Event]:
        """Wait up to `timeout` seconds until the workers have left, kill the rest, close."""
        result: list[Event] = []
        if os.getpid() == self._owner:
            until = time.monotonic() + timeout
            while self._socket is not None and self._workers:
                if not _readable(self._socket, until - time.monotonic()):
                    break
                result += self.events()
            # End-of-file for the template: it kills and reaps what is left, tells how, and ends.
            # By shutdown and not by close, because a fork of this process may have a copy.
            if self._socket is not None:
                import socket

                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            until = time.monotonic() + _PATIENCE_S
            while self._socket is not None:
                if not _readable(self._socket, until - time.monotonic()):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                    until = time.monotonic() + _PATIENCE_S
                    continue
                result += [e for e in self.events() if not isinstance(e, TemplateDied)]
        self.let_go()
        return result

    def close(self) -> None:
        """Kill what is left, reap it, give all descriptors back. May be called again."""
        self.stop(0.0)

    def let_go(self) -> None:
        """Close all descriptors and touch no process: also what a fork of this process does."""
        self._ended += self._workers.values()
        self._workers.clear()
        self._close_ended()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for fd in (self._pidfd, self._held):
            if fd >= 0:
                os.close(fd)
        self._pidfd = self._held = -1

    def _begin(self, *, fork: bool) -> None:
        run = self._fork if fork else self._execute
        with contextlib.ExitStack() as undo:
            ours, theirs = control.pair()
            undo.callback(ours.close)
            with theirs:
                line, held = lifeline.create()
                undo.callback(os.close, held)
                try:
                    pid = run(theirs, line, (ours.fileno(), held))
                finally:
                    os.close(line)
            undo.callback(_discard, pid)
            self._pidfd = os.pidfd_open(pid)
            undo.pop_all()
        self._socket, self._held, self.template_pid, self._reason = ours, held, pid, None

    def _execute(self, theirs: socket.socket, line: int, _ours: tuple[int, int]) -> int:
        spec_fd = spec_file(self._spec)
        try:
            numbers = (theirs.fileno(), line, spec_fd)
            keep = ",".join(map(str, self._pass_fds))
            return execute(
                "mpsched._worker.template:main",
                [*map(str, numbers), keep],
                self._spec,
                (*numbers, *self._pass_fds),
            )
        finally:
            os.close(spec_fd)

    def _fork(self, theirs: socket.socket, line: int, ours: tuple[int, int]) -> int:
        # Imported here, where other threads can still finish an import that they are in the midst of.
        from mpsched._worker import template

        importlib.import_module(self._spec.entry.partition(":")[0])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # or each worker would print the rest as well
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            with warnings.catch_warnings():
                # That a fork copies held locks is why `fork` is not the default, and written there.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                template.forked(theirs, line, ours, self._spec)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def _template_died(self) -> TemplateDied:
        """Make sure that template and workers are gone; reap; forget them."""
        # Every worker that can run a task has announced itself before its copy of the socket was
        # closed, and end-of-file came after that: these are all.
        pidfds = [fd for fd in self._workers.values() if fd >= 0]
        for pidfd in (*pidfds, self._pidfd):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        status = None
        if children.ended(self._pidfd, _PATIENCE_S):
            status = children.reap(self._pidfd)
        for pidfd in pidfds:
            # Where this process adopts orphans (it is number 1 of a container), they are its to reap,
            # from the moment when the template has ended.
            if children.ended(pidfd, _PATIENCE_S):
                children.reap(pidfd)
        died = TemplateDied(status, self._reason)
        self.let_go()
        return died

    def _close_ended(self) -> None:
        while self._ended:
            if (pidfd := self._ended.pop()) >= 0:
                os.close(pidfd)


def _discard(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # our child and not reaped: nobody else has its number
    os.waitpid(pid, 0)


def _readable(sock: socket.socket, timeout: float = 0.0) -> bool:
    import select

    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout) * 1000.0))
