"""Analyse every `.py` file of this Python's standard library with three systems; compare them.

Prints how long threads, `ProcessPoolExecutor` and mpsched took over the same work at the same
width, what each worker did, and what the analysis found. Exits with 1 if any row differs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import sysconfig
from pathlib import Path

from . import report
from .analysis import prepare
from .systems import SYSTEMS, run


def library_files(root: Path, every: int) -> list[str]:
    """The library's source files in a fixed order; what others installed is left out."""
    files = sorted(root.rglob("*.py"))
    return [str(path) for path in files if "site-packages" not in path.parts][::every]


def main(argv: list[str] | None = None) -> int:
    """Run the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.stdlib_report", description=__doc__)
    parser.add_argument("--workers", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth file")
    options = parser.parse_args(argv)
    root = Path(sysconfig.get_paths()["stdlib"])
    prepare()
    paths = library_files(root, options.every)
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {usable_cores()} cores:"
        f" {len(paths):,} files of its standard library, {options.workers} workers each"
    )

    outcomes = []
    for system in SYSTEMS:
        print(f"  {system} ...", flush=True)
        outcomes.append(run(system, options.workers, paths))
    differences = report.disagreements(outcomes)
    sections = {
        "Time from nothing to the last row (defaults, the start of the pool included)": (
            report.times(outcomes)
        ),
        "What each worker did": report.worker_shares(outcomes),
        "What was found": report.findings(outcomes[-1], root),
    }
    for title, lines in sections.items():
        print(f"\n{title}")
        for line in lines:
            print(f"  {line}")
    if differences:
        print(f"\n{len(differences)} rows DISAGREE:", *differences[:10], sep="\n  ")
        return 1
    rows = len(outcomes[0].files) + len(outcomes[0].shapes)
    print(f"\nAll three agree on each of {rows:,} rows.")
    return 0


def usable_cores() -> int:
    """How many cores this process may use, where the system tells; else how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
