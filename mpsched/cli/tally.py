"""What has become of the inputs, counted, and the summary at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mpsched.cli.progress import duration

if TYPE_CHECKING:
    from mpsched.cli.engine import Outcome, Totals

__all__ = ["Tally"]

# From this number on, calls that are this short are worth a word about batches.
_MANY: Final = 10_000
_SHORT_SECONDS: Final = 200e-6
_TELLING: Final = 0.25
"""Seconds of work per second of the run above which the speed-up is worth a word."""


@dataclass(slots=True)
class Tally:
    """Counts of one run. Main thread only."""

    done: int = 0
    """Inputs that have ended in this run."""
    failed: int = 0
    skipped: int = 0
    """With `--skip-existing`: inputs whose file was there."""
    seconds: float = 0.0
    """Run time of all calls together."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Failures by their `why`."""
    first_failure: str | None = None
    no_value: str | None = None
    """With `--reduce`: why there is no value."""
    started: float = field(default_factory=time.monotonic)

    def add(self, text: object, outcome: Outcome) -> None:
        """Count an input that has ended."""
        self.done += 1
        self.seconds += outcome.seconds or 0.0
        if outcome.kind in {"ok", "value"}:
            return
        self.failed += 1
        error = json.loads(outcome.fragment)
        self.kinds[error["why"]] += 1
        if self.first_failure is None:
            shown = text if isinstance(text, str) else f"{len(text)} inputs"  # type: ignore[arg-type]
            self.first_failure = f"{shown:.200}: {error['type']}: {error['message']:.300}"

    def summary(self, totals: Totals, total: int | None) -> str:
        """Return the lines that end a run, for people.

        Args:
            totals: What the workers have done.
            total: How many inputs were to be run; None if that is not known.
        """
        wall = time.monotonic() - self.started
        of = f" of {total:,}" if total is not None and total != self.done else ""
        noun = "input" if (total or self.done) == 1 else "inputs"
        lines = [f"{self.done:,}{of} {noun} in {duration(wall)}: {self.done - self.failed:,} ok"]
        if self.failed:
            whys = ", ".join(f"{count:,} {why}" for why, count in self.kinds.most_common())
            lines[0] += f", {self.failed:,} failed ({whys})"
        if self.skipped:
            lines[0] += f"; {self.skipped:,} skipped, their files are there"
        if self.first_failure is not None:
            lines.append(f"first failure: {self.first_failure}")
        if self.no_value is not None:
            lines.append(f"--reduce: {self.no_value}")
        if self.done and wall > 0:
            work = f"{duration(self.seconds)} of work"
            if self.seconds > _TELLING * wall:  # else the start of the pool is all that it measures
                work = f"{self.seconds / wall:.2f} x the speed of one worker ({work})"
            lines.append(
                f"{totals.workers} worker{'s' * (totals.workers != 1)}: {work}, "
                f"{totals.steals:,} stolen" + (f", {totals.deaths:,} died" if totals.deaths else "")
            )
        if self.done >= _MANY and self.seconds / self.done < _SHORT_SECONDS:
            each = 1e6 * self.seconds / self.done
            lines.append(
                f"calls of {each:.0f} us each: --batch or --block would cost less per input"
            )
        return "\n".join(lines)
