"""Who may look into a pool: its owner's processes, and nobody else; and nothing of it has a name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpsched import shared_array
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    assert_full_width,
    pids,
    pool,
    release,
    template_of,
    wait_for_holders,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mpsched

LARGE = 3 << 20


@pytest.fixture
def busy(start_method: str, tmp_path: Path) -> Iterator[list[int]]:
    """The processes of a pool with everything in use: payloads, a shared array, results on their way."""
    numpy = pytest.importorskip("numpy")
    with pool(2, start_method) as ex:
        assert_full_width(ex, tmp_path)  # who still imports has the modules' files open
        array = shared_array(100, "f8", fill=1.0)
        value = ex.submit(calls.echo, numpy.zeros(LARGE // 8)).result(DEADLINE_S)
        assert value.nbytes == LARGE
        task = ex.submit(calls.hold_with, array, bytes(LARGE), str(tmp_path), "one")
        wait_for_holders(tmp_path, "one")
        yield _processes(ex, start_method)
        release(tmp_path, "one")
        assert task.result(DEADLINE_S) == "one"


def _processes(ex: mpsched.WorkStealingExecutor, method: str) -> list[int]:
    found = [os.getpid(), *pids(ex)]
    return found if method == "spawn" else [*found, template_of(ex)]


def _open_files(pid: int) -> dict[str, str]:
    """Return what each descriptor of a process is open on."""
    folder, found = Path(f"/proc/{pid}/fd"), {}
    for number in os.listdir(folder):
        try:
            found[str(folder / number)] = os.readlink(folder / number)
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return found


def test_private_memory_is_its_owners_only(busy: list[int]) -> None:
    """Each memory file has mode 0600: not even by way of /proc does anybody else open it."""
    seen = set()
    for pid in busy:
        for path, target in _open_files(pid).items():
            if target.startswith("/memfd:mpsched"):
                seen.add(target)
                try:
                    found = os.stat(path)
                except FileNotFoundError:
                    continue  # closed meanwhile
                assert found.st_mode & 0o777 == 0o600, target
                assert found.st_uid == os.geteuid()
    assert len(seen) > 2  # segment, locks, payloads


def test_private_nothing_has_a_name(busy: list[int]) -> None:
    """No file in a folder, no socket with an address: there is nothing to guess, or to connect to."""
    own = _open_files(os.getpid()).values()
    for pid in busy[1:]:
        for target in _open_files(pid).values():
            nameless = target.startswith(("/memfd:", "pipe:", "socket:", "anon_inode:"))
            assert nameless or target == "/dev/null" or target in own, target
    sockets = {
        target.removeprefix("socket:[").rstrip("]")
        for pid in busy
        for target in _open_files(pid).values()
        if target.startswith("socket:[")
    }
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path("/proc/net", table)
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        assert not sockets & {line.split()[9] for line in lines}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in sockets:
            assert len(fields) == 7, f"a socket with a name: {line}"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user")
def test_private_another_user_opens_nothing(busy: list[int]) -> None:
    """Tried as nobody: each of the descriptors is refused."""
    paths = [
        path
        for pid in busy
        for path, target in _open_files(pid).items()
        if target.startswith(("/memfd:mpsched", "pipe:"))
    ]
    assert paths
    # A shell, since the interpreter may lie where only we may go.
    tried = subprocess.run(
        ["/bin/sh", "-c", 'for p; do (: < "$p") 2>&- && echo "$p"; done; echo tried', "sh", *paths],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert tried.stdout == "tried\n"
