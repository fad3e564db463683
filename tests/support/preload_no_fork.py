"""A module after whose import the first fork fails, for `preload`."""

from __future__ import annotations

import errno
import os

_fork = os.fork


def _fail_once() -> int:
    os.fork = _fork
    raise OSError(errno.EAGAIN, "no process is left")


os.fork = _fail_once
