"""The template: a small process with one thread, of which workers are forked; see README.md.

It imports once what every worker needs, forks on request, and tells the parent how each worker
ended. It ends all of them when the parent is gone, and they end by themselves when it is gone.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn, final

from mpsched._worker import boot, children, lifeline
from mpsched._worker.control import Kind, Record, receive, send

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> NoReturn:
    """Be a template that the parent exec'd: `python -c ... CONTROL LINE SPEC KEEP PATH...`."""
    gc.disable()  # what is imported lives as long as the process does
    control_fd, line, spec_fd = map(int, sys.argv[1:4])
    keep = [int(fd) for fd in sys.argv[4].split(",") if fd]
    boot.keep_only([control_fd, line, spec_fd, *keep])
    _serve(socket.socket(fileno=control_fd), line, boot.load(spec_fd))


def forked(
    control: socket.socket, line: int, parents: tuple[int, ...], spec: boot.BootSpec
) -> NoReturn:
    """Be a template that was forked off the parent; never returns into the caller's frames.

    `parents` are descriptors that only the parent may have.
    """
    try:
        for fd in parents:
            os.close(fd)
        boot.close_stdin()
        _serve(control, line, spec)
    finally:
        os._exit(1)


def _serve(control: socket.socket, line: int, spec: boot.BootSpec) -> NoReturn:
    """Be the template until the parent is gone; never returns into the caller's frames."""
    status = 1
    try:
        tied = lifeline.tie(line)
        # The kernel ends us with the parent, even in a preloaded module that takes long to import.
        # A fork of the parent that Python did not see may hold a copy of the lifeline, though: the
        # pidfd tells of the parent itself.
        parent = os.pidfd_open(spec.parent_pid)
        # Still our parent after the pidfd was made: so it is the parent's, whoever gets its number.
        if os.getppid() == spec.parent_pid:
            boot.enter_process(spec, "template")
            boot.name_process("mpsched-templ")
            boot.preload(spec.preload, check=_refuse_threads)
            entry = boot.resolve(spec.entry)
            gc.freeze()  # no collection in a worker writes to the pages that they all share
            gc.enable()
            _Template(control, (tied, parent), spec, entry).run()
        status = 0
    except BaseException as error:
        with contextlib.suppress(OSError):  # the parent is gone as well
            send(control, Record(Kind.FAILED, text=boot.explain(error)))
    finally:
        os._exit(status)


def _refuse_threads(module: str) -> None:
    """Refuse a preloaded module that has started a thread: a fork would lose it.

    Raises:
        RuntimeError: It has; the message names it.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(
            f"preload={module!r} leaves {threads - 1} thread(s) running, and a process with "
            "threads cannot be forked safely: take it out of preload, or use "
            'mp_context="spawn"'
        )


class _Child(NamedTuple):
    worker: int
    incarnation: int
    pid: int


@final
class _Template:
    def __init__(
        self,
        control: socket.socket,
        of_parent: tuple[int, int],  # what ties this process to it, its pidfd
        spec: boot.BootSpec,
        entry: Callable[[boot.BootSpec, int, int], object],
    ) -> None:
        self._control = control
        self._of_parent = of_parent
        self._spec = spec
        self._entry = entry
        self._children: dict[int, _Child] = {}  # by pidfd
        # Records that found no room. The template never waits in a send: it would not see the
        # parent's death, and both would wait for ever if the parent sent just then.
        self._unsent: collections.deque[Record] = collections.deque()
        self._line, self._held = lifeline.create()
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._poller.register(of_parent[1], select.POLLIN)
        control.setblocking(False)

    def run(self) -> None:
        """Serve until the parent is gone or has closed its end; then end all workers."""
        try:
            while self._step():
                pass
        finally:
            self._end_all()

    def _step(self) -> bool:
        for fd, ready in self._poller.poll():
            if fd == self._of_parent[1]:
                return False
            if fd == self._control.fileno():
                if ready & select.POLLOUT:
                    self._flush()
                if ready & ~select.POLLOUT and not self._serve_one():
                    return False
            else:
                self._bury(fd)
        return True

    def _serve_one(self) -> bool:
        record = receive(self._control)
        if record is None:
            return False
        if record.kind is Kind.START:
            # crash-point: template.asked
            self._fork(record.worker, record.incarnation)
        elif record.kind is Kind.KILL:
            for child in self._children.values():
                if child.pid == record.pid:  # not reaped yet, so the number is still its own
                    os.kill(child.pid, record.detail)
        else:
            raise RuntimeError(f"a template is never sent {record!r}")
        return True

    def _fork(self, index: int, incarnation: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(
                Record(Kind.NOT_STARTED, index, incarnation, detail=error.errno or errno.EAGAIN)
            )
            return
        if pid == 0:
            self._become_worker(index, incarnation)
        # crash-point: template.forked
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Child(index, incarnation, pid)
        self._poller.register(pidfd, select.POLLIN)

    def _become_worker(self, index: int, incarnation: int) -> NoReturn:
        """Run in the fork: introduce itself, let go of all that is the template's, and work."""
        try:
            # crash-point: newborn.forked
            # First, because it keeps the siblings alive as long as it is open anywhere.
            os.close(self._held)
            # The worker itself says that it exists, before it does anything else, and closes its
            # copy of the socket after that. So when the parent reads end-of-file, every worker that
            # will ever run a task has been announced: none can act unseen after the template died.
            me = os.pidfd_open(os.getpid())
            self._control.setblocking(True)
            started = Record(Kind.STARTED, index, incarnation, os.getpid(), fd=me)
            send(self._control, started)
            # crash-point: newborn.announced
            for fd in (me, *self._of_parent, *self._children):
                os.close(fd)
            lifeline.tie(self._line)
            # crash-point: newborn.tied
            self._control.close()
            boot.enter_worker(index)
            boot.run(self._entry, self._spec, index, incarnation)
        except BaseException as error:
            with contextlib.suppress(OSError, ValueError):
                os.write(2, (boot.explain(error) + "\n").encode(errors="replace"))
        finally:
            os._exit(boot.BOOT_FAILED)

    def _bury(self, pidfd: int) -> None:
        child = self._children.pop(pidfd)
        self._poller.unregister(pidfd)
        status = children.reap(pidfd)
        # crash-point: template.reaped
        os.close(pidfd)
        if status is None:
            raise RuntimeError(f"another piece of code in the template has reaped {child}")
        self._tell(Record(Kind.EXITED, child.worker, child.incarnation, child.pid, status))

    def _tell(self, record: Record) -> None:
        self._unsent.append(record)
        # crash-point: template.telling
        self._flush()

    def _flush(self) -> None:
        wanted = select.POLLIN
        try:
            while self._unsent:
                send(self._control, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            wanted |= select.POLLOUT
        except BrokenPipeError:  # the parent is gone: its pidfd or end-of-file says so next
            self._unsent.clear()
        self._poller.modify(self._control, wanted)

    def _end_all(self) -> None:
        self._control.setblocking(True)
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in list(self._children):
            children.ended(pidfd, timeout=None)
            self._bury(pidfd)
