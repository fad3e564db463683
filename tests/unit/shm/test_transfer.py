"""Descriptors through a socket."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from mpsched._shm import payloads, transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    parent, worker = transfer.channel()
    with parent, worker:
        yield parent, worker


def close(message: transfer.Message | None) -> None:
    assert message is not None
    for fd in message.fds:
        os.close(fd)


def test_transfer_message_brings_its_files_in_order(pair: Pair) -> None:
    """The payload's file comes first, then the others, under the tag."""
    parent, worker = pair
    first, second = payloads.create([b"first"]), payloads.create([b"second"])
    transfer.send(worker, first, (1 << 64) - 1, also=[second.fd])
    message = transfer.receive(parent)
    assert message is not None
    assert message.tag == (1 << 64) - 1
    assert [os.pread(fd, 10, 0) for fd in message.fds] == [b"first", b"second"]
    assert not any(os.get_inheritable(fd) for fd in message.fds)
    close(message)


def test_transfer_nothing_has_come_is_none(pair: Pair) -> None:
    """Receiving never waits."""
    assert transfer.receive(pair[0]) is None


def test_transfer_closed_sender_is_the_end_after_its_messages(pair: Pair) -> None:
    """What was sent before the sender closed is received, then EOFError."""
    parent, worker = pair
    transfer.send(worker, None, 1)
    worker.close()
    assert transfer.receive(parent) == transfer.Message(1, ())
    with pytest.raises(EOFError):
        transfer.receive(parent)


def test_transfer_sender_learns_that_the_receiver_is_gone(pair: Pair) -> None:
    """Sending to a closed socket is an error and waits for nobody."""
    parent, worker = pair
    parent.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        transfer.send(worker, None, 1)


def test_transfer_too_many_files_for_a_message_say_so(pair: Pair) -> None:
    """253 files fit in a message; one more is an error that says what to do."""
    parent, worker = pair
    transfer.send(worker, None, 1, also=[0] * transfer.MOST_FDS)
    message = transfer.receive(parent)
    assert message is not None
    assert len(message.fds) == transfer.MOST_FDS
    close(message)
    with pytest.raises(OSError, match="254 memory files"):
        transfer.send(worker, None, 2, also=[0] * 254)


def test_transfer_without_descriptors_left_the_message_is_not_lost(
    pair: Pair, few_descriptors: int
) -> None:
    """No room for the files: an error names the message, nothing leaks, later ones arrive."""
    parent, worker = pair
    payload = payloads.create([b"abc"])
    transfer.send(worker, payload, 7, also=[payload.fd] * 60)
    transfer.send(worker, payload, 8)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(transfer.DescriptorsLost, match="61 memory files") as caught:
        transfer.receive(parent)
    assert caught.value.tag == 7
    assert os.listdir("/proc/self/fd") == before
    close(transfer.receive(parent))
    assert few_descriptors


def test_arrivals_find_messages_in_any_order(pair: Pair) -> None:
    """Files are found by tag, in whatever order the records are read, and closed by tag."""
    parent, worker = pair
    for tag in (1, 2, 3):
        transfer.send(worker, payloads.create([b"%d" % tag]), tag)
    arrivals = transfer.Arrivals(parent)
    for tag in (2, 1, 3):
        (fd,) = arrivals.fds(tag)
        assert arrivals.fds(tag) == (fd,)
        assert os.pread(fd, 9, 0) == b"%d" % tag
        arrivals.close(tag)
        arrivals.close(tag)
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(fd)


def test_arrivals_unknown_message_is_an_error(pair: Pair) -> None:
    """A tag of which nothing has come is a LookupError, a closed one as well."""
    parent, worker = pair
    arrivals = transfer.Arrivals(parent)
    with pytest.raises(LookupError, match="message 1"):
        arrivals.fds(1)
    transfer.send(worker, None, 1)
    assert arrivals.fds(1) == ()
    arrivals.close(1)
    with pytest.raises(LookupError, match="message 1"):
        arrivals.fds(1)


def test_arrivals_lost_message_fails_only_its_own_tag(pair: Pair, few_descriptors: int) -> None:
    """Files that found no descriptor fail each look at their tag; the next message is there."""
    parent, worker = pair
    payload = payloads.create([b"abc"])
    transfer.send(worker, payload, 1, also=[payload.fd] * 60)
    transfer.send(worker, payload, 2)
    arrivals = transfer.Arrivals(parent)
    for _ in range(2):
        with pytest.raises(transfer.DescriptorsLost):
            arrivals.fds(1)
    assert len(arrivals.fds(2)) == 1
    arrivals.close_all()
    assert few_descriptors


def test_arrivals_take_no_more_than_is_asked_for(pair: Pair) -> None:
    """Results that nobody has looked at wait in the socket and hold no descriptor."""
    parent, worker = pair
    for tag in range(1, 101):
        transfer.send(worker, payloads.create([b"%d" % tag]), tag)
    arrivals = transfer.Arrivals(parent)
    before = len(os.listdir("/proc/self/fd"))
    for tag in range(1, 101):
        arrivals.fds(tag)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        arrivals.close(tag)


class Interrupt:
    """Raises KeyboardInterrupt before the n-th call of a function, and lets the others pass."""

    def __init__(self, function: object, at: int) -> None:
        self.function, self.left = function, at

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        assert callable(self.function)
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("at", range(6))
def test_arrivals_interrupted_call_begins_again_and_misses_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Ctrl-C between any two messages loses none and leaks no descriptor."""
    parent, worker = pair
    before = os.listdir("/proc/self/fd")
    for tag in (1, 2, 3):
        transfer.send(worker, payloads.create([b"%d" % tag]), tag)
    arrivals = transfer.Arrivals(parent)

    class Socket:
        recvmsg = staticmethod(Interrupt(parent.recvmsg, at // 2 if at % 2 else 99))
        recv = staticmethod(Interrupt(parent.recv, at // 2 if not at % 2 else 99))

    monkeypatch.setattr(arrivals, "_sock", Socket)
    with pytest.raises(KeyboardInterrupt):
        arrivals.fds(3)
    for tag in (1, 2, 3):
        (fd,) = arrivals.fds(tag)
        assert os.pread(fd, 9, 0) == b"%d" % tag
    arrivals.close_all()
    assert os.listdir("/proc/self/fd") == before


def test_arrivals_of_a_dead_worker_are_closed(pair: Pair) -> None:
    """What a worker sent and no record names is closed, received or not."""
    parent, worker = pair
    before = os.listdir("/proc/self/fd")
    transfer.send(worker, payloads.create([b"a"]), 1)
    arrivals = transfer.Arrivals(parent)
    arrivals.fds(1)
    transfer.send(worker, payloads.create([b"b"]), 2)
    arrivals.close_all()
    worker.close()
    arrivals.close_all()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1
