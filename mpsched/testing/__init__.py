"""For tests of code that uses mpsched. Public; nothing else of the package imports it.

`ForkPool` runs recursive code in the test's own process, under a schedule that a seed decides.
`FaultPlan` ends, stops or interrupts real processes at named places of the scheduler's own protocols.
`ManualClock` is time that the test moves by hand.
"""

from __future__ import annotations

# `crashpoints` comes through here into processes that must not load a room before it: names are
# loaded when they are first used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mpsched.testing.crashpoints import FaultInjected
    from mpsched.testing.faultplan import Fault, FaultPlan, Strike, crash_points
    from mpsched.testing.forkpool import ForkPool
    from mpsched.testing.manualclock import ManualClock

__all__ = [
    "Fault",
    "FaultInjected",
    "FaultPlan",
    "ForkPool",
    "ManualClock",
    "Strike",
    "crash_points",
]

_HOME = {
    "Fault": "faultplan",
    "FaultInjected": "crashpoints",
    "FaultPlan": "faultplan",
    "ForkPool": "forkpool",
    "ManualClock": "manualclock",
    "Strike": "faultplan",
    "crash_points": "faultplan",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__]
