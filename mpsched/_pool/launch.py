"""Starting, watching and ending worker processes, the same for each start method.

See README.md, "Launch". A launcher is used by one thread at a time.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mpsched._worker import children, lifeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._worker.boot import BootSpec

METHODS = ("forkserver", "spawn", "fork")


class Started(NamedTuple):
    """A worker process exists. It is not yet ready for work: its own code says that.

    `pidfd` belongs to the launcher, which closes it once it has returned the worker's end. It is
    -1 when no descriptor was left for it; `Launcher.kill` works all the same.
    """

    index: int  # type: ignore[assignment]  # not the method of a tuple
    incarnation: int
    pid: int
    pidfd: int


class Exited(NamedTuple):
    """A worker process has ended, and has been reaped.

    It may come without a `Started`: killed before it could say that it exists.
    `status` is the exit code, or minus the number of the signal; None when other code in this
    process took it (`os.wait()`). `reason` is a traceback when the worker failed before its entry.
    """

    index: int  # type: ignore[assignment]  # not the method of a tuple
    incarnation: int
    pid: int
    status: int | None
    reason: str | None = None


class NotStarted(NamedTuple):
    """No process could be made for this worker: `error` says why. It may be asked for again."""

    index: int  # type: ignore[assignment]  # not the method of a tuple
    incarnation: int
    error: OSError


class TemplateDied(NamedTuple):
    """The template has ended, and so has every worker, announced or not; none has an `Exited`.

    `reason` is a traceback when it ended by itself: a preloaded module failed, the working
    directory is gone. Then the next one would end in the same way. None when it was killed.
    """

    status: int | None
    reason: str | None


Event = Started | Exited | NotStarted | TemplateDied


class Launcher(Protocol):
    """What the supervisor needs of a start method."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something; -1 with no template."""

    def start(self, index: int, incarnation: int) -> None:
        """Ask for a worker. Its `Started`, `NotStarted` or `TemplateDied` follows."""

    def events(self) -> list[Event]:
        """Return what has happened since the last call. Never waits, but for a dying template."""

    def kill(self, pid: int, sig: int) -> bool:
        """Send `sig` to a worker; False if it has ended. It never hits another process."""

    def restart(self) -> None:
        """Make a new template after `TemplateDied`; without one, do nothing.

        Raises:
            OSError: No process or descriptor is left. It may be tried again.
        """

    def stop(self, timeout: float) -> list[Event]:
        """Wait up to `timeout` seconds until the workers have left, kill the rest, close."""

    def close(self) -> None:
        """Kill what is left, reap it, give all descriptors back. May be called again."""


def make(method: str, spec: BootSpec, pass_fds: Sequence[int]) -> Launcher:
    """Return the launcher for a start method; a template starts at once, and is not waited for.

    Args:
        method: "forkserver", "spawn" or "fork".
        spec: what each worker takes over; see `boot.snapshot`.
        pass_fds: descriptors that the template and the workers keep, under the same numbers.

    Raises:
        ValueError: There is no such method, or one of `pass_fds` is 0, 1 or 2.
        OSError: The platform lacks what the method needs, or no process or descriptor is left.
    """
    if method not in METHODS:
        raise ValueError(f"start method must be one of {', '.join(METHODS)}, not {method!r}")
    if not (children.available() and lifeline.available()):
        raise OSError(
            errno.ENOSYS,
            "worker processes need pidfds (Linux 5.3 or later); max_workers=0 runs in this process",
        )
    wrong = [fd for fd in pass_fds if fd < 3]
    if wrong:
        raise ValueError(f"descriptors {wrong} are standard input, output or error of a worker")
    if method == "spawn":
        from mpsched._pool.spawn import SpawnLauncher

        return SpawnLauncher(spec, pass_fds)
    from mpsched._pool.forkserver import TemplateLauncher

    return TemplateLauncher(spec, pass_fds, fork=method == "fork")
