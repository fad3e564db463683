"""Payloads between two real processes."""

from __future__ import annotations

import gc
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from mpsched._shm import payloads, transfer
from tests.support import payload_calls as calls
from tests.support.elsewhere import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def other() -> Iterator[Elsewhere]:
    with Elsewhere() as process:
        yield process


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1])
def test_payloads_reach_another_process(other: Elsewhere, size: int) -> None:
    """A buffer of any size is read by another process, which changes nothing here."""
    parcel = payloads.pack([bytes([3]) * size, b"\1\2"])
    assert other.call(calls.sums, os.getpid(), parcel.files()) == [3 * size, 3]
    assert other.call(calls.fill_and_sum, os.getpid(), parcel.files(), 7) == [7 * size, 14]
    assert other.call(calls.sums, os.getpid(), parcel.files()) == [3 * size, 3]


def test_payloads_kept_view_survives_the_sender_s_freeing(other: Elsewhere) -> None:
    """Views that are kept stay valid when the sender frees its side and sends many others."""
    parcel = payloads.pack([bytes([5]) * (2 * MIB), bytes([6]) * 1000])
    expected = [5 * 2 * MIB, 6000]
    assert other.call(calls.sums, os.getpid(), parcel.files()) == expected
    parcel.close()
    for value in range(20):
        more = [payloads.pack([bytes([value]) * (2 * MIB)]) for _ in range(2)]
        other.call(calls.fetch_many, os.getpid(), [one.files() for one in more])
    assert other.call(calls.sums_of_kept) == expected


@pytest.mark.slow
def test_payloads_kept_view_survives_a_gigabyte_of_others(other: Elsewhere) -> None:
    """A kept view stays valid while 1 GB of other payloads passes."""
    parcel = payloads.pack([bytes([5]) * (2 * MIB)])
    other.call(calls.sums, os.getpid(), parcel.files())
    parcel.close()
    for value in range(16):
        parcel = payloads.pack([bytes([value]) * (64 * MIB)])
        assert other.call(calls.fetch_many, os.getpid(), [parcel.files()]) == 64 * MIB
        parcel.close()
    assert other.call(calls.sums_of_kept) == [5 * 2 * MIB]


def test_payloads_reading_costs_the_receiver_no_memory(other: Elsewhere) -> None:
    """A receiver that reads a large buffer has it in common with the sender."""
    parcel = payloads.pack([bytes([1]) * (32 * MIB)])
    grown = other.call(calls.own_bytes_of_mapping, os.getpid(), parcel.files())
    assert grown < 4 * MIB


def test_payloads_leave_no_descriptor_in_either_process(other: Elsewhere) -> None:
    """A hundred parcels there and back leave as many descriptors as before, on both sides."""

    def one_round(tag: int) -> None:
        parcel = payloads.pack([bytes(2 * MIB), bytes(10)])
        other.call(calls.fetch_many, os.getpid(), [parcel.files()])
        other.call(calls.send_results, [[b"abc"]], tag)
        arrivals.fds(tag)
        arrivals.close(tag)

    arrivals = transfer.Arrivals(other.channel)
    one_round(0)
    theirs, mine = other.call(calls.open_fds), calls.open_fds()
    for tag in range(1, 100):
        one_round(tag)
    gc.collect()
    assert (other.call(calls.open_fds), calls.open_fds()) == (theirs, mine)


def test_payloads_of_a_process_that_is_gone_are_an_error(other: Elsewhere) -> None:
    """What a dead process had open, or closed, cannot be opened: FileNotFoundError."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(FileNotFoundError):
        payloads.open_of(gone.pid, 0)
    with pytest.raises(FileNotFoundError):
        payloads.open_of(other.pid, 999)


def test_payloads_file_that_took_a_freed_number_is_noticed(other: Elsewhere) -> None:
    """A number that means another file by now is not taken for the one that was meant."""
    payload = payloads.create([b"abc"])
    fd, identity = payload.fd, payload.identity
    payload.close()
    again = payloads.create([b"xyz"])
    assert again.fd == fd
    with pytest.raises(FileNotFoundError):
        payloads.open_of(os.getpid(), fd, identity)
    assert other.call(calls.sums, os.getpid(), [(again.fd, again.spans)]) == [sum(b"xyz")]


def test_payloads_come_by_socket_after_their_sender_was_killed(other: Elsewhere) -> None:
    """A result's file that was sent is there although its sender has closed it and is dead."""
    (spans,) = other.call(calls.send_results, [[bytes([9]) * MIB, b"end"]], 4)
    other.kill()
    arrivals = transfer.Arrivals(other.channel)
    views = payloads.map_private(arrivals.fds(4)[0], spans)
    arrivals.close_all()
    assert [bytes(view) for view in views] == [bytes([9]) * MIB, b"end"]


def test_payloads_fallback_file_that_does_not_fit_is_an_error(
    other: Elsewhere, tmp_path: Path
) -> None:
    """Where there are no memory files, a full disk is an OSError and kills nobody."""
    if os.getuid():
        pytest.skip("mounting a small file system takes root")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        assert other.call(calls.fill_disk_file, str(tmp_path), MIB) == f"made {MIB}"
        for call in (calls.fill_disk_file, calls.reserve_on_disk):
            text = other.call(call, str(tmp_path), 8 * MIB)
            assert "cannot get 8,388,608 bytes of shared memory: No space left" in text
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_payloads_forked_child_closes_nothing_of_its_parent(other: Elsewhere) -> None:
    """What is freed in a forked child leaves alone the files that have its numbers there."""
    assert other.call(calls.fork_and_free) == 0
