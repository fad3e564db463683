"""What a suite is made of, and how a figure comes about.

A *sample* is one value of one measure on one system, taken in a process of its own
(`benchmarks.sample`): so no system's threads, memory or idle workers are in another's way, and a
pool that forks does so before there is any thread. A *round* is one sample of each system, one
after the other; a figure is the median of the rounds, with the lowest and the highest. So a
machine that slows down for a while slows all systems down.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from . import peers
from .calm import Sample, calmest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
OURS = "mpsched"
# A sample lasts seconds. One that takes this long hangs; it is ended and reported.
SAMPLE_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach: mpsched's value against a peer's, or by itself.

    Attributes:
        op: Which side of the bound is good.
        bound: A factor of the peer's value, or a value in the measure's unit.
        against: The peer; None compares the value itself.
    """

    op: Literal[">=", "<="]
    bound: float
    against: str | None = None

    def holds(self, value: float) -> bool:
        """Tell whether a ratio (or a value, without a peer) is good enough."""
        return value >= self.bound if self.op == ">=" else value <= self.bound


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of a suite's table.

    Attributes:
        name: What is measured; stable, for it is the key under which results are compared.
        unit: Of the value, such as "tasks/s".
        systems: Who is measured, mpsched first.
        targets: The figures to reach; none means that the value is only reported.
        sample: Takes one value. Runs in a process of its own.
    """

    suite: str
    name: str
    unit: str
    systems: tuple[str, ...]
    targets: tuple[Target, ...]
    sample: Callable[[Run], float]


class Suite:
    """A named list of measures, each made by decorating its sampling function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.measures: list[Measure] = []

    def measure(
        self, name: str, unit: str, systems: Iterable[str], *targets: Target
    ) -> Callable[[Callable[[Run], float]], Callable[[Run], float]]:
        """Add the decorated function as a measure. See `Measure` for the arguments."""

        def add(sample: Callable[[Run], float]) -> Callable[[Run], float]:
            self.measures.append(
                Measure(self.name, name, unit, tuple(systems), tuple(targets), sample)
            )
            return sample

        return add


@dataclass
class Run:
    """One sample being taken: who is measured, how wide, how much."""

    system: str
    workers: int = 2
    quick: bool = False
    abandoned: bool = False
    _open: list[peers.System] = field(default_factory=list)

    def open(self, workers: int | None = None) -> peers.System:
        """Start the system and run enough on it that every worker is up. Closed by `close`."""
        system = peers.SYSTEMS[self.system](workers or self.workers)
        self._open.append(system)
        system.warm()
        return system

    def opened(self) -> peers.System:
        """Return the system that was opened last."""
        return self._open[-1]

    def tasks(self, wanted: int, rate: float = math.inf) -> int:
        """How many tasks to measure with: fewer for a system that would take many seconds.

        Args:
            wanted: The number for a fast system.
            rate: Tasks per second that the system makes, roughly.
        """
        number = int(min(wanted, rate * 5))
        return max(number // 10 if self.quick else number, 10)

    def abandon(self) -> None:
        """Say that the system holds work that never ends: it is to be killed, not closed."""
        self.abandoned = True

    def close(self) -> None:
        """Close what `open` opened, unless it was abandoned."""
        while self._open and not self.abandoned:
            self._open.pop().close()


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: the median of the rounds, and their lowest and highest.

    Attributes:
        stolen: The largest share of the CPUs' time that the hypervisor kept during one of its samples.
    """

    suite: str
    measure: str
    system: str
    value: float
    unit: str
    low: float
    high: float
    stolen: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """A figure that could not be had, and why."""

    measure: str
    system: str
    missing: bool
    why: str


def summarise(measure: Measure, system: str, samples: Sequence[Sample]) -> Row:
    """Make a row of a system's samples; there is at least one."""
    values = [sample.value for sample in samples]
    return Row(
        measure.suite,
        measure.name,
        system,
        statistics.median(values),
        measure.unit,
        min(values),
        max(values),
        max(sample.stolen for sample in samples),
    )


def collect(
    measure: Measure,
    systems: Sequence[str],
    rounds: int,
    take: Callable[[Measure, str], Sample | Gap],
    progress: Callable[[str], None],
) -> Iterator[Row | Gap]:
    """Take the samples of one measure in interleaved rounds.

    A system that fails once is left out of the later rounds.

    Args:
        measure: What to sample.
        systems: Those of its systems that are wanted.
        rounds: How many samples of each.
        take: Takes one sample; `take_calm` with its settings.
        progress: Told what is being done, before each sample.
    """
    samples: dict[str, list[Sample]] = {system: [] for system in systems}
    gaps: dict[str, Gap] = {}
    for number in range(rounds):
        for system in systems:
            if system not in gaps:
                progress(f"{measure.name}: {system}, round {number + 1} of {rounds}")
                outcome = take(measure, system)
                if isinstance(outcome, Gap):
                    gaps[system] = outcome
                else:
                    samples[system].append(outcome)
    for system in systems:
        yield gaps[system] if system in gaps else summarise(measure, system, samples[system])


class _Failed(Exception):
    """A sample could not be taken: the `Gap`."""


def take_calm(
    measure: Measure, system: str, *, workers: int, quick: bool, limit: float, tries: int
) -> Sample | Gap:
    """Take one sample, and again while the hypervisor keeps too much; see `calm.calmest`."""

    def take() -> Sample:
        outcome = take_sample(measure, system, workers=workers, quick=quick)
        if isinstance(outcome, Gap):
            raise _Failed(outcome)
        return outcome

    try:
        return calmest(take, limit=limit, tries=tries)
    except _Failed as failed:
        gap: Gap = failed.args[0]
        return gap


def take_sample(measure: Measure, system: str, *, workers: int, quick: bool) -> Sample | Gap:
    """Take one sample in a new process, and leave none of its processes behind."""
    command = [sys.executable, "-m", "benchmarks.sample", measure.suite, measure.name, system]
    command += ["--workers", str(workers), *(["--quick"] if quick else [])]
    # Files, not pipes: a worker that outlives the sampling process would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        late = ""
        try:
            process.wait(SAMPLE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            late = f"not done after {SAMPLE_TIMEOUT_S} s"
        finally:
            process.kill()
            if hasattr(os, "killpg"):  # elsewhere, workers end with their parent or stay
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        told, errors = out.read().strip(), err.read().strip()
    if not told:
        last = errors.splitlines()[-1] if errors else f"exit status {process.returncode}"
        return Gap(measure.name, system, missing=False, why=late or last)
    answer = json.loads(told.splitlines()[-1])
    if "missing" in answer:
        return Gap(measure.name, system, missing=True, why=answer["missing"])
    return Sample(float(answer["value"]), float(answer["stolen"]))


def machine() -> str:
    """Say in one line what the figures were taken on."""
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}"
        f" {platform.machine()}, {usable_cpus()} CPUs, commit {commit}"
    )


def usable_cpus() -> int:
    """How many CPUs this process may use, where the system tells; else how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def as_json(rows: Iterable[Row], taken_on: str) -> str:
    """The rows as a JSON array; each also says what it was taken on, so that files can be joined."""
    return json.dumps([asdict(row) | {"machine": taken_on} for row in rows], indent=1) + "\n"


def from_json(text: str) -> list[tuple[Row, str]]:
    """The rows of `as_json`, or of several such arrays joined, and what each was taken on.

    Raises:
        ValueError: It is something else.
    """
    names = [name for name in Row.__dataclass_fields__ if name != "stolen"]
    try:
        return [
            (
                Row(**{name: entry[name] for name in names}, stolen=entry.get("stolen", 0.0)),
                str(entry["machine"]),
            )
            for entry in json.loads(text)
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"these are no rows of a benchmark: {error!r}") from error
