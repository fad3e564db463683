"""The command line of `mpsched map`: the parser, and `Options`, its checked and frozen form."""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from mpsched.cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Options", "parse_map", "parse_size"]

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

_MOST_WORKERS: Final = 1024  # of an executor

_EPILOG: Final = """\
examples:
  mpsched map thumbs.py:make photos --glob '*.jpg' --out rows.jsonl
  find data -name '*.pdf' -print0 | mpsched map extract.py:text -0 --timeout 120
  mpsched map pkg.model:score --lines ids.txt --init pkg.model:load --arg top=5
  mpsched map logs.py:count big.log --block 64M --reduce operator:add

exit status: 0 all ok, 1 some failed, 2 nothing ran, 3 the run broke, 130 Ctrl-C, 143 SIGTERM
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for, checked as far as the command line alone can tell."""

    func: str
    inputs: tuple[str, ...]
    files: bool
    globs: tuple[str, ...]
    names_from: str | None
    null: bool
    lines: bool
    kwargs: bool
    batch: int | None
    block: int | None
    """Bytes."""
    largest_first: bool
    args: tuple[tuple[str, str], ...]
    init: str | None
    workers: int | None
    timeout: float | None
    """Seconds per input."""
    retries: int
    retry_errors: bool
    max_failures: int | None
    out: str | None
    resume: bool
    keep_failed: bool
    force: bool
    overwrite: bool
    unordered: bool
    out_dir: str | None
    suffix: str | None
    skip_existing: bool
    reduce: str | None
    capture: bool
    dry_run: bool
    quiet: bool

    @property
    def reads_files(self) -> bool:
        """Whether INPUT and `--from` name files that are read here or by range, not inputs."""
        return self.lines or self.kwargs or self.block is not None

    @property
    def form(self) -> str:
        """How an item's payload becomes FUNC's arguments: text, batch, block or kwargs."""
        if self.kwargs:
            return "kwargs"
        if self.block is not None:
            return "block"
        return "batch" if self.batch is not None else "text"


def parse_map(argv: Sequence[str]) -> Options:
    """Parse what follows `mpsched map`.

    Raises:
        Usage: The command line is wrong; the message says how.
        SystemExit: `--help` was asked for and printed.
    """
    # Intermixed, or argparse would take no INPUT behind an option once it has seen FUNC.
    parser = _parser()
    found = parser.parse_intermixed_args(list(argv))
    if not found.words:
        parser.error("FUNC is missing")
    options = Options(
        func=found.words[0],
        inputs=tuple(found.words[1:]),
        files=found.files or bool(found.globs),
        globs=tuple(found.globs),
        names_from=found.names_from,
        null=found.null,
        lines=found.lines,
        kwargs=found.kwargs,
        batch=found.batch,
        block=found.block,
        largest_first=found.largest_first,
        args=tuple(found.args),
        init=found.init,
        workers=found.workers,
        timeout=found.timeout,
        retries=found.retries,
        retry_errors=found.retry_errors,
        max_failures=1 if found.fail_fast else found.max_failures,
        out=found.out,
        resume=found.resume,
        keep_failed=found.keep_failed,
        force=found.force,
        overwrite=found.overwrite,
        unordered=found.unordered,
        out_dir=found.out_dir,
        suffix=found.suffix,
        skip_existing=found.skip_existing,
        reduce=found.reduce,
        capture=found.capture,
        dry_run=found.dry_run,
        quiet=found.quiet,
    )
    _check(options)
    return options


def parse_size(text: str) -> int:
    """Return a number of bytes: digits, and K, M, G or T for powers of 1024 (`64M`, `1GiB`).

    Raises:
        ValueError: `text` is not such a size, or is zero.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size; write a number of bytes, or 64K, 64M, 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _check(options: Options) -> None:
    """Refuse what cannot go together, with what to write instead."""
    rules = [
        (options.lines and options.kwargs, "--lines and --kwargs: --kwargs reads lines by itself"),
        (
            options.block is not None and (options.lines or options.kwargs),
            "--block passes byte ranges, --lines and --kwargs read lines: choose one",
        ),
        (
            options.batch is not None and (options.kwargs or options.block is not None),
            "--batch makes lists of texts; it does not go with --kwargs or --block",
        ),
        (
            options.block is not None and options.largest_first,
            "--largest-first: the ranges of --block are of one size",
        ),
        (
            options.names_from is not None and bool(options.inputs),
            "INPUT and --from: give the inputs in one way",
        ),
        (options.resume and options.out is None, "--resume needs the file: --out FILE"),
        (options.overwrite and options.out is None, "--overwrite needs the file: --out FILE"),
        (options.resume and options.overwrite, "--resume and --overwrite: choose one"),
        (
            (options.keep_failed or options.force) and not options.resume,
            "--keep-failed and --force say how to --resume",
        ),
        (
            options.reduce is not None and options.resume,
            "--reduce keeps no rows, so there is nothing to --resume",
        ),
        (
            options.reduce is not None and options.out_dir is not None,
            "--reduce folds results, --out-dir writes them to files: choose one",
        ),
        (
            options.out_dir is None and (options.suffix is not None or options.skip_existing),
            "--suffix and --skip-existing need the folder: --out-dir DIR",
        ),
        (
            options.suffix is not None and not re.fullmatch(r"\.[^/\0]*[^./\0]", options.suffix),
            f"--suffix {options.suffix!r}: it starts with a dot, as .jpg does",
        ),
        (
            options.out_dir is not None and options.batch is not None,
            "--out-dir needs one file per input, --batch passes many inputs at once",
        ),
    ]
    for wrong, message in rules:
        if wrong:
            raise Usage(message)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().rstrip()
        raise Usage(f"{message}{self._meant(message)}\n{usage} (--help lists them)")

    def _meant(self, message: str) -> str:
        """Return the option that a misspelt one is nearest to, as the end of a sentence."""
        kind, _, words = message.partition(": ")
        word = words.partition(" ")[0].partition("=")[0]
        if kind != "unrecognized arguments" or not word.startswith("--"):
            return ""
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        return f"; did you mean {near[0]}?" if near else ""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mpsched map",
        usage="mpsched map FUNC [INPUT...] [options]",
        description="Call a Python function once for each input, on all cores; one JSON line each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "words",
        metavar="FUNC INPUT",
        nargs="*",
        help="FUNC: package.module:name or path/to/file.py:name; INPUT: file, quoted glob, folder"
        " (--files) or text",
    )

    add = parser.add_argument_group("inputs").add_argument
    add("--files", action="store_true", help="take the files in and below each folder")
    add(
        "--glob",
        dest="globs",
        metavar="PATTERN",
        action="append",
        default=[],
        help="of a folder's files, those that match (repeatable; implies --files)",
    )
    add(
        "--from", dest="names_from", metavar="FILE", help="inputs from FILE, one per line; -: stdin"
    )
    add("-0", "--null", action="store_true", help="inputs from --from or stdin end in NUL")
    add("--lines", action="store_true", help="each line of the files named, or of stdin")
    add("--kwargs", action="store_true", help="each line is a JSON object: keyword arguments")
    add("--batch", type=_positive, metavar="N", help="FUNC gets lists of N")
    add("--block", type=_size, metavar="SIZE", help="FUNC gets path, start, stop of ranges")
    add("--largest-first", action="store_true", help="start with the largest files")

    add = parser.add_argument_group("calling").add_argument
    add(
        "--arg",
        dest="args",
        metavar="NAME=VALUE",
        type=_named,
        action="append",
        default=[],
        help="another parameter: JSON if it parses, else text (repeatable)",
    )
    add("--init", metavar="FUNC", help="called once in each worker, before its first input")
    add("-j", "--workers", type=_workers, metavar="N", help="processes; 0: in this one, to debug")
    add("--timeout", type=_seconds, metavar="S", help="seconds per input")
    add("--retries", type=_count, default=0, metavar="N", help="again after a death or a timeout")
    add("--retry-errors", action="store_true", help="... and after an exception")

    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="FILE", help="rows to FILE, safe from kills; default: standard output")
    add("--resume", action="store_true", help="run what is missing, failed or changed")
    add("--keep-failed", action="store_true", help="... but not what failed")
    add("--force", action="store_true", help="... although FUNC or its arguments differ")
    add("--overwrite", action="store_true", help="replace FILE when the run has ended")
    add("--unordered", action="store_true", help="rows as they come")
    add("--out-dir", metavar="DIR", help="the worker writes bytes, text, arrays to files")
    add("--suffix", metavar=".EXT", help="of those files; default: by type")
    add("--skip-existing", action="store_true", help="not the inputs whose file is there")
    add("--reduce", metavar="FUNC", help="fold the results with FUNC(a, b)")
    add("--capture", action="store_true", help="what FUNC prints goes into the row")

    add = parser.add_argument_group("running").add_argument
    add("--dry-run", action="store_true", help="check everything, run nothing")
    add("--max-failures", type=_positive, metavar="N", help="stop when N have failed")
    add("--fail-fast", action="store_true", help="stop at the first failure")
    add("-q", "--quiet", action="store_true", help="no progress, no summary")
    # `-0` makes argparse take every negative number for an option, and `-j -1` for one without its number.
    parser._has_negative_number_optionals.clear()  # noqa: SLF001 - there is no other way to say so
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def _workers(text: str) -> int:
    if (number := _count(text)) > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is too many; at most {_MOST_WORKERS:,}")
    return number


def _positive(text: str) -> int:
    if (number := _count(text)) == 0:
        raise argparse.ArgumentTypeError("0 is too small")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value
