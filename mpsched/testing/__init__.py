"""For tests of code that uses mpsched. Public; nothing else of the package imports it.

`ForkPool` runs recursive code in the test's own process, under a schedule that a seed decides.
`ManualClock` is time that the test moves by hand.
"""

from __future__ import annotations

from mpsched.testing.forkpool import ForkPool
from mpsched.testing.manualclock import ManualClock

__all__ = ["ForkPool", "ManualClock"]
