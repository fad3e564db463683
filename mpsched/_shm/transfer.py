"""Descriptors on their way from a worker to the parent, through a socket (SCM_RIGHTS).

See README.md, "Transfer". A message holds a file after its sender has closed it, or was killed.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._shm.payloads import Payload

# tag, number of descriptors
_HEADER: Final = struct.Struct("<QQ")
_INT_BYTES: Final = array.array("i").itemsize

# Most descriptors of one message: the kernel's limit (SCM_MAX_FD).
MOST_FDS: Final = 253

_IS_LINUX: Final = sys.platform == "linux"
_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
# Whether the kernel hands out the descriptors of a message that stays.
_CAN_PEEK: Final = _IS_LINUX
# The longest wait of a sender that the kernel has told to try again later, in seconds.
_LONGEST_WAIT_S: Final = 0.02


class Message(NamedTuple):
    """What `receive` returns; who has it closes its descriptors."""

    tag: int
    fds: tuple[int, ...]


@final
class DescriptorsLost(OSError):
    """A message came, but this process has no descriptors left to take its files; they are gone.

    Not pickled: the parent makes that result's future fail with it.

    Attributes:
        tag: What the sender had named the message.
    """

    def __init__(self, tag: int, sent: int) -> None:
        super().__init__(
            errno.EMFILE,
            f"{os.strerror(errno.EMFILE)}: a result of {sent} memory files could not be received; "
            "raise the limit (ulimit -n) or close files",
        )
        self.tag = tag


def channel() -> tuple[socket.socket, socket.socket]:
    """Return (the parent's end, which never blocks; a worker's end, which does).

    Raises:
        OSError: No descriptor is left.
    """
    # Both kinds keep messages apart. Only the first tells its reader that the other end is closed
    # (SEQPACKET is missing in macOS), which the pool learns from the worker's exit anyway.
    kind = socket.SOCK_SEQPACKET if _IS_LINUX else socket.SOCK_DGRAM
    parent, worker = socket.socketpair(socket.AF_UNIX, kind)
    parent.setblocking(False)
    return parent, worker


def send(
    sock: socket.socket, payload: Payload | None, tag: int, *, also: Sequence[int] = ()
) -> None:
    """Send a payload's file, and other descriptors behind it, under a number.

    Waits while the receiver is behind. The sender may close all of them when it returns.

    Args:
        sock: A worker's end.
        payload: Its descriptor comes first; None: there is only `also`.
        tag: Below 2**64; new in each message of this sender.
        also: Further descriptors, for shared arrays in the result.

    Raises:
        OSError: More than 253 descriptors (`EMSGSIZE`); or the receiver is gone (`EPIPE`,
            `ECONNRESET`).
    """
    fds = [*([] if payload is None else [payload.fd]), *also]
    if len(fds) > MOST_FDS:
        raise OSError(
            errno.EMSGSIZE,
            f"a result refers to {len(fds)} memory files and a message takes {MOST_FDS}: put the "
            "arrays into one shared array, or return fewer at once",
        )
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    wait_s = 0.000_5
    while True:
        try:
            sock.sendmsg([_HEADER.pack(tag, len(fds))], rights)
        except OSError as error:
            if error.errno not in {errno.ETOOMANYREFS, errno.ENOBUFS, errno.EAGAIN}:
                raise
            # The kernel limits the files in flight of a whole user, and full buffers of some
            # systems do not block. There is nothing to wait on: try again, less and less often.
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        else:
            return


def receive(sock: socket.socket, *, peek: bool = False) -> Message | None:
    """Return the next message, None if none has come yet. The caller closes its descriptors.

    Args:
        sock: The parent's end.
        peek: Leave it there, so that the next call returns it again with new descriptors.

    Raises:
        DescriptorsLost: It came without its files; the next ones can be received.
        EOFError: The sender's end is closed and everything was received.
    """
    room = socket.CMSG_SPACE(MOST_FDS * _INT_BYTES)
    flags = _CLOEXEC | (socket.MSG_PEEK if peek else 0)
    try:
        data, ancillary, _flags, _address = sock.recvmsg(_HEADER.size, room, flags)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        data, ancillary = b"", []
    fds = array.array("i")
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(rights[: len(rights) - len(rights) % _INT_BYTES])
    if not data:
        raise EOFError("the other end of the channel is closed")
    tag, sent = _HEADER.unpack(data)
    if len(fds) < sent:
        for fd in fds:
            os.close(fd)
        raise DescriptorsLost(tag, sent)
    if not _CLOEXEC:
        for fd in fds:
            os.set_inheritable(fd, False)
    return Message(tag, tuple(fds))


@final
class Arrivals:
    """The parent's end of one worker's channel: what has come, by tag.

    A worker sends the files of a result before it publishes the result's record, so whoever has read
    the record finds them here. They stay until `close`, and a message leaves the socket only after
    it was noted here: who is interrupted (Ctrl-C) at any point begins again and misses nothing.

    Context:
        Parent, under the leader's lock. The sender's tags increase.
    """

    __slots__ = ("_here", "_last", "_lost", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._here: dict[int, tuple[int, ...]] = {}
        self._lost: dict[int, DescriptorsLost] = {}
        self._last = -1  # tag of the last message that was noted

    def fds(self, tag: int) -> tuple[int, ...]:
        """Return the descriptors of one message; they belong to this object until `close`.

        Raises:
            DescriptorsLost: They could not be received.
            LookupError: No such message has come, or it is closed.
        """
        # Not further: what is behind it waits in the socket, where it takes no descriptor of ours.
        while tag > self._last and self._receive_one():
            continue
        if tag in self._lost:
            raise self._lost[tag]
        if tag not in self._here:
            raise LookupError(f"no open message {tag} has come from this worker")
        return self._here[tag]

    def close(self, tag: int) -> None:
        """Close the descriptors of one message. Nothing happens if that was done."""
        self._lost.pop(tag, None)
        for fd in self._here.pop(tag, ()):
            os.close(fd)

    def close_all(self) -> None:
        """Close everything that is here or still comes.

        For a worker that died: whatever no record names was sent before its record was written.
        """
        while True:
            for tag in [*self._here]:
                self.close(tag)
            self._lost.clear()
            if not self._receive_one():
                return

    def _receive_one(self) -> bool:
        """Note the next message; False if there is none."""
        try:
            message = receive(self._sock, peek=_CAN_PEEK)
            if message is None:
                return False
            if message.tag > self._last:
                self._here[message.tag] = message.fds
                self._last = message.tag
            else:  # noted by a call that was interrupted before it could take the message
                for fd in message.fds:
                    os.close(fd)
        except DescriptorsLost as lost:
            if lost.tag > self._last:
                self._lost[lost.tag] = lost
                self._last = lost.tag
        except EOFError:
            return False
        if _CAN_PEEK:
            self._sock.recv(_HEADER.size)  # the files go with it: it asks for none
        return True
