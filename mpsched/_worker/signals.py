"""Keeping a task's signal handlers out of fork-join's own sections. See README.md, "Handlers".

A handler that raises, as the usual time limit by `signal.setitimer` does, raises between any two lines of
the main thread. In the task that is what it is for. Between the lines of a steal it would leave a child
that nobody has. So signals wait there; the task's code, and every sleep, runs without that.
"""

from __future__ import annotations

import signal
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from signal import pthread_sigmask
else:
    # What `signal` wraps: it makes an enum member of each signal that it returns, 10 us a pair of calls.
    pthread_sigmask = getattr(__import__("_signal"), "pthread_sigmask", None)

_NAMES = (
    "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD",
    "SIGIO", "SIGWINCH", "SIGURG",
)  # fmt: skip
# Plain numbers, in a row: to go through a set of enum members takes half as long again as the call.
_HELD = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_BLOCK, _SET = (int(getattr(signal, name, 0)) for name in ("SIG_BLOCK", "SIG_SETMASK"))
_main = 0
_normal: AbstractSet[int] = frozenset()
_before: AbstractSet[int] | None = None
"""The mask to go back to; None while signals are not held."""


def enter() -> None:
    """Hold signals in the sections of this thread from now on: a worker's main thread, once."""
    global _main, _normal
    if pthread_sigmask is not None:
        _main = get_ident()
        _normal = pthread_sigmask(_BLOCK, ())


def refuse() -> None:
    """Leave all signals to the other threads: the helper, whose part none of them is."""
    if pthread_sigmask is not None:
        pthread_sigmask(_BLOCK, _HELD)


def held() -> bool:
    """Whether signals wait in this thread."""
    return _before is not None and get_ident() == _main


def hold() -> bool:
    """Let signals wait from here on; False if they do already, or if this is another thread."""
    global _before
    if _before is not None or get_ident() != _main:
        return False
    try:
        _before = pthread_sigmask(_BLOCK, _HELD)
    except BaseException:  # of a handler whose signal came just before
        pthread_sigmask(_SET, _normal)
        raise
    return True


def release() -> None:
    """Let them come again; here, if some have waited, and what their handlers raise is raised here."""
    global _before
    before, _before = _before, None
    if before is not None:
        pthread_sigmask(_SET, before)
