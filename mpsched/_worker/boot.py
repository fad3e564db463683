"""From a fresh or forked interpreter to a running worker; see README.md, "Boot"."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import os
import pickle
import signal
import sys
import types
from typing import TYPE_CHECKING, Any, NoReturn

from mpsched._worker import control, lifeline
from mpsched._worker.environment import BootSpec, apply, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["BootSpec", "enter_process", "enter_worker", "load", "role", "run", "snapshot"]

# Exit code of a worker that never reached its entry; the reason travels in a FAILED record.
BOOT_FAILED = 78

_PRELOAD = "named in preload="

_OOM_SCORE = "/proc/self/oom_score_adj"
_FIRST_TO_GO = 500
"""Thousandths of the memory that a worker seems to hold more than it does; see `go_first`."""

_role = "parent"


def role() -> str:
    """Return what this process is: "parent", "template", or "worker"."""
    return _role


def load(fd: int) -> BootSpec:
    """Read the spec from its file and close `fd`.

    Many processes share the file's offset and read at the same time, so it is never moved.
    """
    try:
        size = os.fstat(fd).st_size
        data = bytearray()
        while len(data) < size:
            data += os.pread(fd, size - len(data), len(data))
    finally:
        os.close(fd)
    spec = pickle.loads(data)
    if not isinstance(spec, BootSpec):
        raise TypeError(f"the boot file holds a {type(spec).__name__}, not a BootSpec")
    return spec


def keep_only(keep: Iterable[int]) -> None:
    """Close every descriptor but 0, 1, 2 and these: what the parent left inheritable by accident."""
    kept = {0, 1, 2, *keep}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with contextlib.suppress(
                OSError
            ):  # the one that listed the directory is closed already
                os.close(fd)


def close_stdin() -> None:
    """Make standard input end at once. In a forked template; an exec'd one got it so."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the rest of the process's life


def enter_process(spec: BootSpec, new_role: str) -> None:
    """Take over the parent's environment. Once in a template, or in a worker that was exec'd.

    Raises:
        OSError: The working directory is gone.
    """
    global _role
    _role = new_role
    apply(spec)
    _reset_signals()


def preload(names: Iterable[str], check: Callable[[str], None] | None = None) -> None:
    """Import the modules that the user named, with a look by `check` after each.

    Raises:
        ImportError: One of them cannot be imported; or whatever it raised itself. A note names it.
    """
    for name in names:
        try:
            importlib.import_module(name)
            if check is not None:
                check(name)
        except BaseException as error:
            error.add_note(f"while importing {name!r}, {_PRELOAD}")
            raise


def resolve(entry: str) -> Callable[[BootSpec, int, int], object]:
    """Import and return the function that `module:function` names."""
    module, _, function = entry.partition(":")
    found: Callable[[BootSpec, int, int], object]
    found = getattr(importlib.import_module(module), function)
    return found


def enter_worker(index: int) -> None:
    """Make this process worker `index`: what must differ from the template and from its siblings."""
    global _role
    _role = "worker"
    # No user's script and no template's frame is `__main__` here. Functions from the parent's
    # `__main__` arrive by value; under fork the script's module would otherwise still be found.
    sys.modules["__main__"] = types.ModuleType("__main__")
    # What the parent or a preloaded module has registered is theirs to run.
    atexit._clear()  # noqa: SLF001 - no public way; multiprocessing does it too
    # `random` reseeds itself after a fork. NumPy does not, and its state was copied; imported
    # later it takes a seed of its own.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    own_children()
    line_by_line()
    go_first()
    name_process(f"mpsched-w{index}")


def own_children() -> None:
    """Let `multiprocessing` end the children of this process when it leaves, and no other's.

    Where it was loaded before the fork, it has registered its exit function before, and knows the
    children of the program: what it does itself in a process that it forks.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children = set()  # noqa: SLF001
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()  # noqa: SLF001
        util._run_after_forkers()  # noqa: SLF001
        atexit.register(util._exit_function)  # noqa: SLF001


def line_by_line() -> None:
    """Write each line of standard output when it ends: a worker may be killed at any time."""
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(line_buffering=True)


def name_process(name: str) -> None:
    """Show `name` (15 characters of it) in `ps` and `top`, where the platform lets us."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)


def go_first() -> None:
    """Have the kernel end this process before the program when there is no memory left.

    Its death costs a task, which may have retries; the program's costs everything, and the program may
    well hold more. Where it holds half of all memory more it is ended itself, since no worker's end
    would help for long. Not 1000, the most there is: then whatever eats up the machine's memory
    would outlive all workers.
    """
    # No such file on other systems; there the kernel has its own opinion.
    with contextlib.suppress(OSError), open(_OOM_SCORE, "r+b", buffering=0) as score:
        mine = min(int(score.read()) + _FIRST_TO_GO, 1000)
        score.seek(0)
        score.write(b"%d" % mine)


def run(
    entry: Callable[[BootSpec, int, int], object], spec: BootSpec, index: int, incarnation: int
) -> NoReturn:
    """Run the worker's main function and end the process: its exit status tells how that went.

    0 after a return, 1 after an exception (its traceback on standard error), the code of a
    SystemExit, and 120 when the output could not be flushed, as Python itself does.
    """
    status = 1
    try:
        entry(spec, index, incarnation)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    leave(status)


def leave(status: int) -> NoReturn:
    """Run what was registered with `atexit` in this worker, flush, and end the process."""
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - as for _clear
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except BaseException:  # it may be a task's own object
                status = status or 120
        os._exit(status & 0xFF)


def spawned() -> NoReturn:
    """Be a worker that the parent exec'd: `python -c ... LIFELINE REPORT SPEC INDEX INC KEEP PATH...`."""
    line, report_fd, spec_fd, index, incarnation = map(int, sys.argv[1:6])
    keep = [int(fd) for fd in sys.argv[6].split(",") if fd]
    keep_only([line, report_fd, spec_fd, *keep])
    import socket

    report = socket.socket(fileno=report_fd)
    try:
        lifeline.tie(line)
        # crash-point: newborn.exec-tied
        spec = load(spec_fd)
        enter_process(spec, "worker")
        enter_worker(index)
        preload(spec.preload)
        entry = resolve(spec.entry)
    except BaseException as error:
        text = explain(error)
        control.send(
            report, control.Record(control.Kind.FAILED, index, incarnation, os.getpid(), text=text)
        )
        os._exit(BOOT_FAILED)
    report.close()
    run(entry, spec, index, incarnation)


def explain(error: BaseException) -> str:
    """Return the error with its traceback, as a text; of a preloaded module only with its own lines."""
    import traceback

    whole = traceback.TracebackException.from_exception(error)
    if any(_PRELOAD in note for note in getattr(error, "__notes__", ())):
        runtime = (
            os.path.dirname(__file__),
            os.path.dirname(importlib.__file__),
            "<frozen importlib",
        )
        whole.stack[:] = [one for one in whole.stack if not one.filename.startswith(runtime)]
    text = "".join(whole.format()).rstrip()
    return text if whole.stack else text.removeprefix("Traceback (most recent call last):\n")


def _ignore_interrupt(_number: int, _frame: object) -> None:
    """Do nothing: Ctrl-C reaches the whole process group, and the parent decides what it means."""


def _reset_signals() -> None:
    """Give every signal the action a fresh program has, but let SIGINT pass without effect.

    SIGINT gets a Python function and not SIG_IGN, which the programs that a task starts would
    inherit: Ctrl-C could not end those. Where the parent itself ignores it (`nohup`, a background
    job), it stays so.
    """
    signal.set_wakeup_fd(-1)  # a forked template has that of the parent's event loop
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore_interrupt)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # SIGINT came in blocked, so that it could not end an interpreter that was still starting.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
