"""The records between a template and the parent, and descriptors that travel with them.

See README.md, "Control socket". The socket keeps record boundaries (SOCK_SEQPACKET), so a record is
sent and read whole or not at all, whoever is killed meanwhile.
"""

from __future__ import annotations

import socket
from enum import IntEnum
from struct import Struct
from typing import NamedTuple


class Kind(IntEnum):
    """What a record says. Each comment names its writer and what it uses of `Record`."""

    START = 1  # parent: fork this worker
    KILL = 2  # parent: send signal `detail` to your child `pid`
    STARTED = 3  # worker, of itself: `pid`; its pidfd travels along
    EXITED = 4  # template: child `pid` ended with `detail`, as os.waitstatus_to_exitcode gives it
    NOT_STARTED = 5  # template: fork failed with errno `detail`
    FAILED = 6  # template, or a worker that was exec'd: `text` says why it ends


class Record(NamedTuple):
    """One record. `worker` is an index; `fd` is a descriptor that came along, owned by the reader; -1 if none did."""

    kind: Kind
    worker: int = 0
    incarnation: int = 0
    pid: int = 0
    detail: int = 0
    text: str = ""
    fd: int = -1


_HEAD = Struct("<5q")
_FD = Struct("i")
_MOST = 16 << 10  # bytes of one record; longer texts are cut


def pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a control socket. Neither is inherited by exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, record: Record) -> None:
    """Send one record, with its descriptor if it has one (the sender still has to close it).

    Raises:
        BlockingIOError: The socket does not block and is full; nothing was sent.
        BrokenPipeError: The other end is gone.
    """
    head = _HEAD.pack(record.kind, record.worker, record.incarnation, record.pid, record.detail)
    text = record.text.encode(errors="replace")[: _MOST - _HEAD.size]
    rights = []
    if record.fd >= 0:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(record.fd))]
    sock.sendmsg([head, text], rights)


def receive(sock: socket.socket) -> Record | None:
    """Read one record; None when the other end is gone and everything it sent has been read.

    A descriptor that finds no room in this process's table is dropped by the kernel: `fd` is -1.

    Raises:
        BlockingIOError: The socket does not block and nothing is there.
    """
    space = socket.CMSG_SPACE(_FD.size)
    while True:
        try:
            data, rights, _, _ = sock.recvmsg(_MOST, space, socket.MSG_CMSG_CLOEXEC)
            break
        except ConnectionResetError:
            # The other end was killed before it had read all that we sent. This is told once, and
            # before what it sent itself, which is still to be read.
            continue
    if not data:
        return None
    fd = -1
    for level, kind, content in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            (fd,) = _FD.unpack(content[: _FD.size])
    kind_number, worker, incarnation, pid, detail = _HEAD.unpack_from(data)
    text = data[_HEAD.size :].decode(errors="replace")
    return Record(Kind(kind_number), worker, incarnation, pid, detail, text, fd)
