"""Descriptors from one process to another."""

from __future__ import annotations

import os

from mpsched._shm import transfer
from tests.support import payload_calls as calls
from tests.support.elsewhere import Elsewhere


def test_transfer_sender_waits_for_a_receiver_that_is_behind() -> None:
    """More messages than a socket holds are sent while the receiver takes them, all in order."""
    count = 2000
    with Elsewhere() as other:
        other.start(calls.send_results, [[b"abc"]] * count, 0)
        _receive_in_order(other, count)
        assert len(other.result()) == count


def test_transfer_sender_waits_out_the_kernel_s_limit_of_files_in_flight() -> None:
    """The kernel's limit of files in flight (ETOOMANYREFS) delays a sender and fails nothing."""
    count = 200
    with Elsewhere() as other:
        other.start(calls.send_as_nobody, count)
        _receive_in_order(other, count)
        assert other.result() == count


def _receive_in_order(other: Elsewhere, count: int) -> None:
    other.channel.settimeout(60)
    for tag in range(count):
        message = transfer.receive(other.channel)
        assert message is not None
        assert message.tag == tag
        for fd in message.fds:
            assert os.pread(fd, 9, 0) == b"abc"
            os.close(fd)
