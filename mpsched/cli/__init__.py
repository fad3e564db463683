"""The command `mpsched`; see README.md, and docs/map.md for how to use it.

Workers import parts of this package by name, so nothing is loaded here before it is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_USAGE: Final = """\
usage: mpsched map FUNC [INPUT...] [options]
       mpsched --version

commands:
  map    call a Python function once for each input, on all cores (mpsched map --help)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The words of the command line behind the program's name; None: those of this process.

    Returns:
        The exit status; README.md, "Exit status", has the table.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help"}:
        print(_USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in {"-V", "--version"}:
        from mpsched._version import __version__

        print(f"mpsched {__version__}")
        return 0
    if words[0] != "map":
        print(f"mpsched: there is no command {words[0]!r}\n{_USAGE}", end="", file=sys.stderr)
        return 2
    from mpsched.cli.run import run_map

    return run_map(words[1:])
