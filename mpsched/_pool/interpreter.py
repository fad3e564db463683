"""Running a fresh interpreter that becomes a template or a worker; see README.md, "Launch"."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING

from mpsched._shm.segment import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._worker.boot import BootSpec

# sys.path is set before the first import: mpsched may be found only on the parent's path. It comes
# as arguments, after those that the started function reads.
_CODE = "import sys; n = int(sys.argv.pop(1)); sys.path[:] = sys.argv[n:]; "


def spec_file(spec: BootSpec) -> int:
    """Return a nameless file with the pickled spec, readable by every process that gets it."""
    data = pickle.dumps(spec, protocol=5)
    fd = anonymous_file("mpsched-boot", len(data))
    try:
        view = memoryview(data)
        while view:
            view = view[os.pwrite(fd, view, len(data) - len(view)) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def interpreter_path() -> str:
    """Return the interpreter to run: what `multiprocessing.set_executable` was given, or this one's.

    Raises:
        OSError: It is not known. A frozen program is not one either: run again it would make a pool
            again, whose template would be the program once more, without end.
    """
    spawn = sys.modules.get("multiprocessing.spawn")
    path = sys.executable if spawn is None else spawn.get_executable()
    if path == sys.executable and (not path or getattr(sys, "frozen", False)):
        raise OSError(
            f"sys.executable ({path!r}) is not a Python interpreter that workers could run: name one "
            'by multiprocessing.set_executable(), or use mp_context="fork"'
        )
    return os.fsdecode(path)


def execute(function: str, arguments: Sequence[str], spec: BootSpec, keep: Sequence[int]) -> int:
    """Start `module:function` in a fresh interpreter; return its pid, to be reaped by the caller.

    Args:
        function: takes no argument and reads `arguments` from `sys.argv[1:]`.
        arguments: its arguments.
        spec: for path, flags, variables.
        keep: descriptors it inherits, under the same numbers; it has to close all others itself.

    Raises:
        OSError: No process or memory is left, or there is no interpreter to run.
    """
    executable = interpreter_path()
    module, _, name = function.partition(":")
    return os.posix_spawn(
        executable,
        [
            executable,
            *spec.flags,
            "-c",
            f"{_CODE}from {module} import {name}; {name}()",
            str(len(arguments) + 1),
            *arguments,
            *spec.sys_path,
        ],
        spec.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            # Onto itself: takes away close-on-exec.
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in keep),
        ],
        # Ctrl-C must not end an interpreter that is still starting; boot unblocks it.
        setsigmask=(signal.SIGINT,),
        # Inherited as ignored, the kernel would reap the children and drop their status.
        setsigdef=(signal.SIGCHLD,),
    )
