"""What a process does under a fault plan: its rooms have their crash points, and some of them strike.

See README.md, "Fault plans". `import mpsched` loads this module where `MPSCHED_FAULT_PLAN` is set, before
any room, and calls `enter`. It imports nothing of the package: that would be loaded without its points.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FrameType, ModuleType

VARIABLE: Final = "MPSCHED_FAULT_PLAN"
"""Environment variable: the folder of the plan under which this process and all that it starts run."""

POINT: Final = re.compile(rb"^([ \t]*)# crash-point: ([a-z]+(?:[.-][a-z]+)*)[ \t]*$", re.MULTILINE)
"""A point in the source: a comment on a line of its own, indented as the statement after it."""

_HOOK: Final = "_crash_point"
_PACKAGE: Final = __name__.partition(".")[0]
_SUPERVISOR: Final = "mpsched-supervisor"
_HELPER: Final = "mpsched-helper"


class FaultInjected(Exception):
    """What a fault raises that is told to "raise"."""


class Who(NamedTuple):
    """Who stands at a point. `worker` and `incarnation` are -1 where there is no worker."""

    role: str
    worker: int
    incarnation: int


class Armed(NamedTuple):
    """A fault as the afflicted process sees it; the fields are those of `Fault`."""

    point: str
    action: str
    role: str | None
    worker: int | None
    incarnation: int | None
    hit: int
    times: int
    seconds: float


_folder = ""
_faults: list[Armed] = []
_first = 0  # number of the first of them: those of an earlier `arm` have their own marks
_counts: list[int] = []
_seen: set[tuple[str, str]] = set()


# --- loading ------------------------------------------------------------------------------------------


def rewritten(source: bytes) -> bytes:
    """Return the source of a module with calls where its crash points are; no line moves."""
    return POINT.sub(rb"\1" + _HOOK.encode() + rb'("\2")', source)


class _Loader(SourceFileLoader):
    """Loads a module of the package with its points. Its bytecode is not kept anywhere."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        if not POINT.search(source):
            return super().get_code(fullname)
        code: CodeType = compile(rewritten(source), path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _HOOK, hit)
        super().exec_module(module)


class _Finder:
    """Finds the package's own modules, and has them loaded by `_Loader`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(_PACKAGE + "."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def enter() -> None:
    """Run this process under the plan that the environment names. Before any room is loaded.

    Does nothing where the plan is over: a pool that outlives it goes on starting workers.
    """
    global _folder
    folder = os.environ[VARIABLE]
    try:
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            faults = json.load(file)
    except FileNotFoundError:
        return
    _folder = folder
    arm(Armed(**fault) for fault in faults)
    sys.meta_path.insert(0, _Finder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def arm(faults: Iterable[Armed]) -> None:
    """Let these faults strike in this process from now on, and no others."""
    global _faults, _first, _counts
    _first += len(_faults)
    armed = list(faults)
    _counts = [0] * len(armed)
    _faults = armed


def _forked() -> None:
    global _counts
    _counts = [0] * len(_faults)
    _seen.clear()


# --- striking -----------------------------------------------------------------------------------------


def hit(point: str) -> None:
    """Be at a crash point. Called from the package's own code alone."""
    who = _who()
    if who is None:
        return
    if (point, who.role) not in _seen:
        _seen.add((point, who.role))
        _note("reached", f"{point} {who.role}\n")
    for number, fault in enumerate(_faults):
        if not _matches(fault, point, who):
            continue
        _counts[number] += 1
        if _counts[number] == fault.hit and _claimed(_first + number, fault.times):
            _counts[number] = 0
            _strike(fault, point, who)


def _matches(fault: Armed, point: str, who: Who) -> bool:
    if fault.point != point and not (
        fault.point.endswith("*") and point.startswith(fault.point[:-1])
    ):
        return False
    return (
        fault.role in {None, who.role}
        and fault.worker in {None, who.worker}
        and fault.incarnation in {None, who.incarnation}
    )


def _claimed(number: int, times: int) -> bool:
    """Whether this strike is one of the fault's `times`, in whatever process the others were."""
    for strike in range(times):
        path = os.path.join(_folder, f"strike-{number}-{strike}")
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # the plan may be over
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return True
    return False


def _strike(fault: Armed, point: str, who: Who) -> None:
    line = f"{point} {fault.action} {who.role} {who.worker} {who.incarnation} {os.getpid()}"
    _note("struck", f"{line} {fault.seconds!r}\n")
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        # To this thread: no other one runs on for a moment, and neither does it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif fault.action == "pause":
        time.sleep(fault.seconds)
    elif fault.action == "interrupt":
        raise KeyboardInterrupt(f"at crash point {point}")
    else:
        raise FaultInjected(f"at crash point {point}")


def _note(name: str, line: str) -> None:
    """Append one line to a file of the plan; whole, whoever else writes."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):  # the plan is over
        fd = os.open(os.path.join(_folder, name), flags, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


# --- who -----------------------------------------------------------------------------------------------


def _module(name: str) -> Any:
    return sys.modules.get(f"{_PACKAGE}.{name}")


def _who() -> Who | None:
    """Return who is at a point; None in a process that a task has forked, which is nobody."""
    boot = _module("_worker.boot")
    kind = "parent" if boot is None else boot.role()
    if kind == "parent":
        if threading.current_thread().name == _SUPERVISOR:
            return Who("supervisor", -1, -1)
        # A worker of the start method spawn is a parent of nobody until it has read what it is.
        return _newborn() or Who("caller", -1, -1)
    context = _module("_worker.context")
    worker = None if context is None else context._worker  # noqa: SLF001 - it may be too early to ask
    if worker is None:
        return _newborn() or Who("template", -1, -1)
    if worker.pid != os.getpid():
        return None
    helper = threading.current_thread().name == _HELPER
    role = "helper" if helper else _role(sys._getframe(2))
    return Who(role, worker.index, worker.incarnation)


def _newborn() -> Who | None:
    """Return the worker that this process is about to become, by the frame that says so."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in {"_become_worker", "spawned"}:
            found = frame.f_locals
            if "incarnation" in found:
                return Who("newborn", found["index"], found["incarnation"])
        frame = frame.f_back
    return None


def _role(frame: FrameType | None) -> str:
    """Return what the runtime's own frames above the task's (or above the main loop) are doing."""
    role = "owner"
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == f"{_PACKAGE}._worker.awaiting":
            return "waiter"
        if name == f"{_PACKAGE}._worker.stolen" or frame.f_code.co_name == "_steal":
            role = "thief"
        elif not name.startswith(_PACKAGE + ".") and name != "contextlib":
            break  # the task's own code: what it does below is done as the owner of its stack
        frame = frame.f_back
    return role
