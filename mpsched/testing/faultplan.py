"""Faults at named places of the scheduler's own protocols, for tests of what your code does then.

See README.md, "Fault plans".
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import signal
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

from mpsched.testing.crashpoints import POINT, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

__all__ = ["ACTIONS", "ROLES", "Fault", "FaultPlan", "Strike", "crash_points"]

ACTIONS: Final = ("kill", "stop", "pause", "raise", "interrupt")

ROLES: Final = (
    *("caller", "supervisor"),
    *("template", "newborn", "owner", "thief", "waiter", "helper"),
)

_LOOK_S: Final = 0.005
"""Seconds between looks for processes that have stopped themselves."""


@functools.cache
def crash_points() -> tuple[str, ...]:
    """Return the names of all crash points, sorted."""
    package = Path(__file__).parents[1]
    found = {
        name.decode()
        for path in package.rglob("*.py")
        for _, name in POINT.findall(path.read_bytes())
    }
    return tuple(sorted(found))


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: where, who, on which hit, and what happens.

    Attributes:
        point: name of a crash point; with `*` at its end, all that begin so.
        action: "kill": the process ends by SIGKILL. "stop": SIGSTOP, and SIGCONT after `seconds`.
            "pause": the thread sleeps for `seconds`. "raise": FaultInjected. "interrupt":
            KeyboardInterrupt.
        role: who has to be there; None: anybody. See README.md, "Roles".
        worker: index of the worker; None: any.
        incarnation: 0 for the first process of this index; None: any.
        hit: on which matching hit in a process it strikes, and then again after as many.
        times: how often it strikes at most, all processes together.
        seconds: of a "stop" or a "pause".

    Raises:
        ValueError: There is no such point, action or role, or a number is out of range.
    """

    point: str
    action: str
    role: str | None = None
    worker: int | None = None
    incarnation: int | None = None
    hit: int = 1
    times: int = 1
    seconds: float = 0.05

    def __post_init__(self) -> None:
        """Refuse what could never strike."""
        points = crash_points()
        prefix = self.point.removesuffix("*")
        if self.point not in points and not (
            prefix != self.point and any(name.startswith(prefix) for name in points)
        ):
            near = difflib.get_close_matches(self.point, points, n=3, cutoff=0.4)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ValueError(f"there is no crash point {self.point!r}{hint}")
        if self.action not in ACTIONS:
            raise ValueError(f"action={self.action!r}: it is one of {', '.join(ACTIONS)}")
        if self.role is not None and self.role not in ROLES:
            raise ValueError(f"role={self.role!r}: it is None or one of {', '.join(ROLES)}")
        if self.hit < 1 or self.times < 1 or self.seconds < 0:
            raise ValueError(
                f"hit={self.hit} and times={self.times} count from 1, and seconds={self.seconds} "
                "cannot be negative"
            )


class Strike(NamedTuple):
    """A fault that has struck: where, what, who. `worker` is -1 where there is no worker."""

    point: str
    action: str
    role: str
    worker: int
    incarnation: int
    pid: int


@final
class FaultPlan:
    """Faults for the pools that are made while this context is open, and for programs that you start.

    Workers and templates that are started inside the `with` run under the plan; start methods
    forkserver and spawn. The threads of this process do only if it was itself started with
    `environment()`, because the package has to be loaded under the plan:

        >>> from mpsched import WorkStealingExecutor
        >>> from mpsched.testing import Fault, FaultPlan
        >>> with FaultPlan(Fault("result.made", "kill", hit=3)) as plan:
        ...     with WorkStealingExecutor(1) as ex:
        ...         futures = [ex.options(retries=1).submit(abs, -n) for n in range(10)]
        ...         print([future.result() for future in futures])
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> [(strike.point, strike.role) for strike in plan.struck]
        [('result.made', 'owner')]

    Not re-entrant; one plan at a time. Whatever it has stopped goes on when the context is left.
    """

    def __init__(self, *faults: Fault) -> None:
        """Make a plan of these faults; without any, it only notes which points are reached."""
        self._faults = faults
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._struck: list[Strike] = []
        self._reached: frozenset[tuple[str, str]] = frozenset()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: str | None = None

    def __enter__(self) -> Self:
        """Begin; raises RuntimeError if another plan is open."""
        if self._home is not None:
            raise RuntimeError("this plan is open already")
        self._home = tempfile.TemporaryDirectory(prefix="mpsched-faults-")
        (self._folder / "plan.json").write_text(json.dumps([asdict(f) for f in self._faults]))
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self._home.name
        self._over.clear()
        self._thread = threading.Thread(target=self._wake_stopped, name="mpsched-fault-plan")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End: processes that still run under the plan are struck no more."""
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        home, self._home = self._home, None
        if home is not None:
            folder = Path(home.name)
            self._struck, self._reached = _strikes(folder), _reached(folder)
            home.cleanup()
            # Whoever stopped between the thread's last look and the end of the folder.
            for strike in self._struck:
                _resume(strike)

    @property
    def _folder(self) -> Path:
        assert self._home is not None
        return Path(self._home.name)

    @property
    def struck(self) -> list[Strike]:
        """The strikes so far, in order."""
        return self._struck if self._home is None else _strikes(self._folder)

    @property
    def reached(self) -> frozenset[tuple[str, str]]:
        """(point, role) of all points that were reached so far, whether or not a fault struck."""
        return self._reached if self._home is None else _reached(self._folder)

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which to start a program that is to run under this plan."""
        return {VARIABLE: str(self._folder)}

    def _wake_stopped(self) -> None:
        """Send SIGCONT to what the plan has stopped, when its time has come."""
        known = 0
        pending: list[tuple[float, Strike]] = []
        over = False
        while not over:
            over = self._over.wait(_LOOK_S)
            stops = _stops(self._folder)
            now = time.monotonic()
            pending += [(now + after, strike) for strike, after in stops[known:]]
            known = len(stops)
            pending = [
                (due, strike)
                for due, strike in pending
                if (now < due and not over) or not _resume(strike)
            ]


def _lines(folder: Path, name: str) -> list[list[str]]:
    try:
        text = (folder / name).read_text("utf-8")
    except FileNotFoundError:
        return []
    return [line.split() for line in text.splitlines()]


def _strikes(folder: Path) -> list[Strike]:
    return [
        Strike(point, action, role, int(worker), int(incarnation), int(pid))
        for point, action, role, worker, incarnation, pid, _ in _lines(folder, "struck")
    ]


def _stops(folder: Path) -> list[tuple[Strike, float]]:
    seconds = [float(line[-1]) for line in _lines(folder, "struck")]
    return [
        (strike, after)
        for strike, after in zip(_strikes(folder), seconds, strict=False)
        if strike.action == "stop"
    ]


def _reached(folder: Path) -> frozenset[tuple[str, str]]:
    return frozenset((point, role) for point, role in _lines(folder, "reached"))


def _resume(strike: Strike) -> bool:
    """Let a stopped process go on; False if it has not stopped yet (it says so before it does)."""
    if strike.action != "stop":
        return True
    try:
        text = Path(f"/proc/{strike.pid}/stat").read_text("utf-8", "replace")
    except FileNotFoundError:
        return True  # it was killed meanwhile
    if text.rpartition(")")[2].split()[0] != "T":
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(strike.pid, signal.SIGCONT)
    return True
