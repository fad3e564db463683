"""Entries of worker processes for the tests of the launchers; see `BootSpec.entry`."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpsched._worker.boot import BootSpec


def report(spec: BootSpec, *values: object) -> None:
    """Write one line to the test's pipe, which is short enough never to be torn."""
    os.write(spec.fds["out"], (" ".join(map(str, values)) + "\n").encode())


def hello(spec: BootSpec, index: int, incarnation: int) -> None:
    report(spec, index, incarnation, os.getpid())


def idle(spec: BootSpec, index: int, incarnation: int) -> None:
    hello(spec, index, incarnation)
    while True:
        signal.pause()


def busy(spec: BootSpec, index: int, incarnation: int) -> None:
    hello(spec, index, incarnation)
    if index % 3 == 0:
        re.match(r"(a+)+$", "a" * 60 + "b")  # in C for longer than the test
    elif index % 3 == 1:
        time.sleep(1000)
    else:
        while True:
            pass
