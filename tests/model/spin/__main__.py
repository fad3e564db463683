"""All searches of all models, printed as they end: `make model`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.model.spin.models import MODELS
from tests.model.spin.search import missing, search


def main() -> int:
    """Return the exit code: 0 if all is as it has to be, or if SPIN is not installed."""
    if why := missing():
        print(f"not searched: {why}")
        return 0
    bad = 0
    for model in MODELS:
        right = [(macros, False) for macros in (model.short, *model.full)]
        wrong = [((*model.found_with, macro), True) for macro in model.wrong]
        for macros, expected in right + wrong:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as directory:
                found = search(model.name, macros, Path(directory))
            seconds = time.monotonic() - begun
            fine = bool(found.error) == expected
            bad += not fine
            what = f"{model.name} {' '.join(macros)}".strip()
            said = found.error or "no error"
            verdict = "" if fine else "  <-- WRONG"
            print(f"{what:40} {found.states:>11,} states {seconds:6.1f} s  {said}{verdict}")
            sys.stdout.flush()
    print("all as it has to be" if not bad else f"{bad} searches are not as they have to be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
