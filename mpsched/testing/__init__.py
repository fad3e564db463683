"""For tests of code that uses mpsched. Public; nothing else of the package imports it.

`ForkPool` runs recursive code in the test's own process, under a schedule that a seed decides.
"""

from __future__ import annotations

from mpsched.testing.forkpool import ForkPool

__all__ = ["ForkPool"]
