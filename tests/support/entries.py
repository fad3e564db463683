"""Entries of worker processes for the tests of the launchers; see `BootSpec.entry`.

Each writes lines to the descriptor `out`, each line in one write and short enough not to be torn.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsched._worker.boot import BootSpec


def tell(spec: BootSpec, *values: object) -> None:
    os.write(spec.fds["out"], (json.dumps(values) + "\n").encode())


def hello(spec: BootSpec, index: int, incarnation: int) -> None:
    tell(spec, index, incarnation, os.getpid())


def idle(spec: BootSpec, index: int, incarnation: int) -> None:
    """Do nothing but answer SIGUSR1."""
    signal.signal(signal.SIGUSR1, lambda _number, _frame: tell(spec, "woken"))
    hello(spec, index, incarnation)
    while True:
        signal.pause()


def busy(spec: BootSpec, index: int, incarnation: int) -> None:
    """Be asleep, in C code that takes longer than any test, in Python code, or stopped."""
    hello(spec, index, incarnation)
    if index == 0:
        time.sleep(1000)
    elif index == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    elif index == 2:
        while True:
            pass
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def end(spec: BootSpec, index: int, incarnation: int) -> None:
    """End in the way that the config says."""
    print("printed and not flushed", end="")
    how = spec.config.decode()
    if how == "raise":
        raise RuntimeError("on purpose")
    if how.startswith("exit "):
        sys.exit(int(how.split()[1]))
    if how == "exit-text":
        sys.exit("a message")
    if how.startswith("_exit "):
        os._exit(int(how.split()[1]))
    if how.startswith("signal "):
        os.kill(os.getpid(), int(how.split()[1]))
        signal.pause()


def surroundings(spec: BootSpec, index: int, incarnation: int) -> None:
    """Tell what the parent's settings have become here."""
    import logging

    raised = []
    for category in (ResourceWarning, UserWarning):
        try:
            warnings.warn("probe", category, stacklevel=1)
        except category:
            raised.append(category.__name__)
    tell(
        spec,
        {
            "cwd": os.getcwd(),
            "path": sys.path,
            "environ": dict(os.environ),
            "argv": sys.argv,
            "recursion": sys.getrecursionlimit(),
            "log": logging.getLogger().level,
            "raised": raised,
            "stdin": [sys.stdin.read(), os.read(0, 1).decode()],
            "main": sorted(n for n in vars(sys.modules["__main__"]) if not n.startswith("__")),
            "optimize": sys.flags.optimize,
        },
    )


def seeds(spec: BootSpec, index: int, incarnation: int) -> None:
    import numpy as np

    tell(spec, random.random(), float(np.random.random()))


def descriptors(spec: BootSpec, index: int, incarnation: int) -> None:
    """Tell number -> target of what is open here."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    tell(spec, found)


def signals_of_a_program(spec: BootSpec, index: int, incarnation: int) -> None:
    """Tell which signals a program that a task starts blocks and ignores, as masks."""
    status = subprocess.run(
        ["cat", "/proc/self/status"], check=True, capture_output=True, text=True
    ).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    tell(spec, int(fields["SigBlk"], 16), int(fields["SigIgn"], 16))


def at_exit(spec: BootSpec, index: int, incarnation: int) -> None:
    atexit.register(tell, spec, "registered in the worker")


def log(spec: BootSpec, index: int, incarnation: int) -> None:
    import logging

    logging.getLogger("worker").warning("a line")
