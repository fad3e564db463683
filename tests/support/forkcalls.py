"""Functions that spawn, for pools to run."""

from __future__ import annotations

from mpsched._worker.hot import spawn


def fib(n: int) -> int:
    if n < 2:
        return n
    a = spawn(fib, n - 1)
    return fib(n - 2) + a.join()
