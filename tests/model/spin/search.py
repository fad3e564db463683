"""One search: SPIN makes a C program of a model, the compiler an executable, which visits every state."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
COMPILER: Final = "gcc"
"""SPIN calls it for the macros too."""
_LIMIT_S: Final = 1800
_MEGABYTES: Final = 4000


class Found(NamedTuple):
    """What a search found.

    Attributes:
        states: different ones that it has seen.
        error: "" if nothing is wrong, else what is: an assertion, or processes that wait for ever.
    """

    states: int
    error: str


def missing() -> str:
    """Return one line that says which programs are not installed; "" if all are."""
    gone = [program for program in ("spin", COMPILER) if shutil.which(program) is None]
    if not gone:
        return ""
    return f"the models need {' and '.join(gone)} (Debian, Ubuntu: apt-get install spin gcc)"


def search(model: str, macros: tuple[str, ...], directory: Path) -> Found:
    """Visit every state of a model, or stop at the first error.

    Args:
        model: name of a file here, without `.pml`.
        macros: defined for it.
        directory: where the programs are made; nothing else lies there.

    Raises:
        RuntimeError: The search did not come to an end: a program failed, or there is too little memory.
    """
    defines = [f"-D{macro}" for macro in macros]
    _run(["spin", "-a", *defines, str(HERE / f"{model}.pml")], directory)
    # SAFETY: no cycles are asked for. COLLAPSE: half of the memory.
    options = ["-O1", "-w", "-DSAFETY", "-DNOFAIR", "-DCOLLAPSE", f"-DMEMLIM={_MEGABYTES}"]
    _run([COMPILER, *options, "-o", "pan", "pan.c"], directory)
    text = _run(["./pan", "-m1000000", "-n"], directory)
    states = re.search(r"(\d+) states, stored", text)
    errors = re.search(r"errors: (\d+)", text)
    partial = "Search not completed" in text
    if states is None or errors is None or (partial and errors[1] == "0"):
        raise RuntimeError(f"{model} {macros}: the search did not come to an end:\n{text}")
    said = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", text, re.MULTILINE)
    error = "" if errors[1] == "0" else said[1] if said is not None else text
    return Found(int(states[1]), error)


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    text = done.stdout + done.stderr
    # `pan` ends with 0 also when it found an error.
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{text}")
    return text
