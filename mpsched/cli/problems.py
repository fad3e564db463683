"""The two ways in which a run ends other than by its rows.

`Usage` is found before anything runs, `Broken` while it runs; see README.md, "Exit status".
"""

from __future__ import annotations

__all__ = ["Broken", "Usage"]


class Usage(Exception):
    """Nothing has run: the command line, FUNC, its arguments or the inputs are wrong. Status 2."""


class Broken(Exception):
    """The run cannot go on although FUNC and its inputs are right: disk full, pool failed. Status 3.

    Unlike a failed input, which is a row, and unlike `Usage`, after which nothing has been written.
    """
