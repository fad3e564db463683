"""Run the benchmarks: `python -m benchmarks [SUITE ...] [--json FILE] [--quick]`."""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from pathlib import Path

from . import picture, report
from .harness import Gap, Measure, Row, as_json, collect, from_json, machine, take_calm
from .suites import SUITES


def main(argv: list[str] | None = None) -> int:
    """Run the suites; returns 1 if a sample failed (a missing peer is no failure)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table of README.md"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the speed-ups as SVG")
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="measure nothing: take the rows of a file that --json has written",
    )
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the tasks")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each measure; 5")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="of each system; 2")
    parser.add_argument("--only", default="", metavar="TEXT", help="measures whose name has TEXT")
    parser.add_argument(
        "--stolen",
        type=float,
        default=2.0,
        metavar="PERCENT",
        help="a sample during which a hypervisor kept more of the CPUs' time is taken again; 2",
    )
    parser.add_argument("--tries", type=int, default=5, metavar="N", help="so often at most; 5")
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="these systems only")
    options = parser.parse_args(argv)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"unknown suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    rounds = options.rounds or (1 if options.quick else 5)
    measures = [
        measure
        for name in options.suites or SUITES
        for measure in SUITES[name].measures
        if options.only in measure.name
    ]
    if not measures:
        parser.error(f"no measure has {options.only!r} in its name")
    if options.rows:
        return show(options, measures)
    taken_on = machine()
    print(f"{taken_on}; {options.workers} workers; median of {rounds}, lowest - highest")
    # Ended by its default the sample's processes would go on, beside whatever is measured next.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    take = partial(
        take_calm,
        workers=options.workers,
        quick=options.quick,
        limit=options.stolen / 100,
        tries=1 if options.quick else options.tries,
    )
    rows: list[Row] = []
    failed = False
    for measure in measures:
        systems = [s for s in measure.systems if not options.systems or s in options.systems]
        outcomes = list(collect(measure, systems, rounds, take, show_progress))
        show_progress("")
        print()
        for line in report.table(measure, outcomes):
            print(line, flush=True)
        rows += [outcome for outcome in outcomes if isinstance(outcome, Row)]
        failed |= any(isinstance(outcome, Gap) and not outcome.missing for outcome in outcomes)
        if options.json:  # after each measure: what was taken is not lost when a run is ended
            options.json.write_text(as_json(rows, taken_on), encoding="utf-8")
    write(options, measures, rows, taken_on)
    return int(failed)


def show(options: argparse.Namespace, measures: list[Measure]) -> int:
    """Show rows that were taken before."""
    taken = from_json(options.rows.read_text(encoding="utf-8"))
    rows = [row for row, _ in taken]
    measures = [measure for measure in measures if any(row.measure == measure.name for row in rows)]
    for measure in measures:
        print()
        print(
            *report.table(measure, [row for row in rows if row.measure == measure.name]), sep="\n"
        )
    write(options, measures, rows, "; ".join(dict.fromkeys(machine for _, machine in taken)))
    return 0


def write(
    options: argparse.Namespace, measures: list[Measure], rows: list[Row], taken_on: str
) -> None:
    """Write the files that were asked for, and print how many figures are reached."""
    if options.markdown:
        lines = report.markdown(measures, rows, taken_on)
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.picture:
        drawn = picture.speed_ups(measures, rows, taken_on)
        options.picture.write_text("\n".join(drawn) + "\n", encoding="utf-8")
    print()
    for line in report.summary(measures, rows):
        print(line)


def show_progress(text: str) -> None:
    """Overwrite the terminal's last line; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
