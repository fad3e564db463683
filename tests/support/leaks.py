"""What a test may leave behind: nothing. Snapshots of this process, and their difference.

Looks at `/proc`; where there is none (not Linux) only threads and files are seen.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Every process that a test run starts by exec inherits this variable with the run's own value, so
# that it is found in `/proc/PID/environ` even when its parent is gone.
RUN_VARIABLE = "MPSCHED_TEST_RUN"

# Helpers that the standard library starts once per process and keeps, on purpose.
_STDLIB_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# Threads that a library starts once per process and keeps, by class.
_KEPT_THREADS = ("TMonitor",)  # tqdm's

# Ten times what is promised for the processes of a killed program: the machine may be loaded.
GRACE_S = 20.0

_PROC = Path("/proc")
_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Snapshot:
    """What this process held at one moment."""

    children: dict[int, str]  # pid -> command line
    threads: frozenset[threading.Thread]
    fds: dict[int, str]  # number -> what it is open on
    shm: frozenset[str]
    files: frozenset[str]  # in the current folder


def snapshot(run: str = "") -> Snapshot:
    """Return what this process holds now; with `run`, its orphaned descendants as well."""
    children = _children()
    if run:
        children |= processes_of_run(run)
    return Snapshot(
        children={pid: text for pid, text in children.items() if not _is_stdlib_helper(text)},
        threads=frozenset(
            t for t in threading.enumerate() if type(t).__name__ not in _KEPT_THREADS
        ),
        fds=_fds(),
        shm=frozenset(os.listdir(_SHM)) if _SHM.is_dir() else frozenset(),
        files=frozenset(os.listdir()),
    )


def left_since(before: Snapshot, *, run: str = "", grace_s: float = GRACE_S) -> list[str]:
    """Return a line for each thing held now and not before; wait up to `grace_s` for them to go.

    Child processes are counted and not compared by pid, since a pool that outlives a test may have
    replaced a worker meanwhile.
    """
    deadline = time.monotonic() + grace_s
    found = _difference(before, snapshot(run))
    while found and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
        found = _difference(before, snapshot(run))
    return found


def _difference(before: Snapshot, now: Snapshot) -> list[str]:
    found = []
    if len(now.children) > len(before.children):
        new = {pid: text for pid, text in now.children.items() if pid not in before.children}
        found += [f"process {pid}: {text}" for pid, text in new.items()]
    found += [f"thread {thread.name}" for thread in now.threads - before.threads]
    found += [f"fd {fd}: {now.fds[fd]}" for fd in now.fds.keys() - before.fds.keys()]
    found += [
        f"/dev/shm/{name}" for name in now.shm - before.shm if not _mapped_elsewhere(_SHM / name)
    ]
    found += [f"file {name} in the current folder" for name in now.files - before.files]
    return found


def processes_of_run(run: str) -> dict[int, str]:
    """Return pid -> command line of the live processes that were started in the run `run`.

    Those that were exec'd carry the run's mark. Those that were forked from this process share its
    process group and its command line.
    """
    me = os.getpid()
    group, command = str(os.getpgrp()), _command_line(me)
    live = _live()
    forked = {
        pid: command
        for pid, fields in live.items()
        if fields[2] == group and pid != me and _command_line(pid) == command
    }
    return _marked(run, live) | forked


def processes_marked(run: str) -> dict[int, str]:
    """Return pid -> command line of the live processes with the mark of `run`.

    A forked process has the mark of the exec'd one that it comes from.
    """
    return _marked(run, live_pids())


def _marked(run: str, pids: Iterable[int]) -> dict[int, str]:
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = {}
    for pid in pids:
        try:
            environ = _read(pid, "environ")
        except OSError:  # gone meanwhile, or another user's
            continue
        if mark in environ and mark in environ.split(b"\0"):
            found[pid] = _command_line(pid)
    return found


def processes_of_session(session: int) -> dict[int, str]:
    """Return pid -> command line of the live processes in a session."""
    return {pid: _command_line(pid) for pid, fields in _live().items() if fields[3] == str(session)}


def children_of(pid: int) -> list[int]:
    """Return the live children of a process."""
    return [child for child, fields in _live().items() if fields[1] == str(pid)]


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()] if _PROC.is_dir() else []


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the command name; [] if it is gone."""
    try:
        text = _read(pid, "stat")
    except OSError:
        return []
    return text.rpartition(b")")[2].decode("ascii").split()


def _read(pid: int, name: str) -> bytes:
    # Every test looks at every process of the machine, twice: `pathlib` would be most of the time.
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()


def _live() -> dict[int, list[str]]:
    """Return pid -> fields of `stat` of all processes but those that only wait to be reaped."""
    found = {pid: _stat(pid) for pid in _all_pids()}
    return {pid: fields for pid, fields in found.items() if fields and fields[0] not in {"Z", "X"}}


def live_pids() -> list[int]:
    """Return all processes but those that have ended and only wait to be reaped."""
    return list(_live())


def _group_of(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[2]) if fields else -1


def _command_line(pid: int) -> str:
    try:
        raw = _read(pid, "cmdline")
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip() or "(no command line)"


def _children() -> dict[int, str]:
    """Return the children of this process, those that nobody has waited for included."""
    pids: list[int] = []
    for task in (_PROC / "self" / "task").glob("*/children"):
        try:
            pids += [int(word) for word in task.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return {pid: _command_line(pid) for pid in pids}


def _is_stdlib_helper(command_line: str) -> bool:
    return any(name in command_line for name in _STDLIB_HELPERS)


def _fds() -> dict[int, str]:
    """Return what this process has open, without what the standard library keeps open for ever."""
    folder = _PROC / "self" / "fd"
    if not folder.is_dir():
        return {}
    kept = _stdlib_fds()
    found = {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(folder / name)
        except OSError:  # the descriptor of the listing itself
            continue
    return {fd: target for fd, target in found.items() if fd not in kept}


def _stdlib_fds() -> set[int]:
    """Return the descriptors by which the standard library's helpers notice our end."""
    kept = set()
    for module, instance, attributes in (
        ("multiprocessing.resource_tracker", "_resource_tracker", ("_fd",)),
        ("multiprocessing.forkserver", "_forkserver", ("_forkserver_alive_fd",)),
    ):
        helper = getattr(sys.modules.get(module), instance, None)
        kept |= {fd for name in attributes if (fd := getattr(helper, name, None)) is not None}
    return kept


def _mapped_elsewhere(path: Path) -> bool:
    """Tell whether a process outside this one maps the file: then it is not ours.

    Other programs on the machine may use `/dev/shm` while the tests run.
    """
    me = os.getpid()
    ours = {me, *_children()}
    for pid in _all_pids():
        try:
            if pid not in ours and str(path) in (_PROC / str(pid) / "maps").read_text():
                return True
        except OSError:  # gone meanwhile, or another user's
            continue
    return not path.exists()
