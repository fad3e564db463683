"""Take one sample, in this process, and print it as one line of JSON.

`python -m benchmarks.sample SUITE MEASURE SYSTEM`; started by the harness, and by whoever wants to
profile a measure. What anything prints meanwhile goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import traceback

from . import calm, peers
from .harness import Run
from .suites import SUITES


def main(argv: list[str] | None = None) -> int:
    """Take the sample; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sample", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("measure")
    parser.add_argument("system")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    named = [m for m in SUITES[options.suite].measures if m.name == options.measure]
    if not named:
        parser.error(f"the suite {options.suite!r} has no measure {options.measure!r}")
    answer_to = os.dup(1)
    os.dup2(2, 1)
    run = Run(options.system, options.workers, options.quick)
    meter = calm.Meter()
    try:
        value = named[0].sample(run)
        answer: dict[str, float | str] = {"value": value, "stolen": meter.stolen()}
    except peers.Missing as missing:
        answer = {"missing": str(missing)}
    except BaseException:
        # At once: leaving in order would wait for what the measure left running.
        traceback.print_exc()
        os._exit(1)
    # Before the system is closed: one that cannot end has been measured all the same.
    os.write(answer_to, json.dumps(answer).encode() + b"\n")
    run.close()
    if run.abandoned:
        os._exit(0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
