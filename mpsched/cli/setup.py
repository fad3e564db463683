"""Everything that is found out before anything runs: from the command line to a `Job`.

Whatever is wrong is a `Usage`, and nothing has been written. See README.md, "The run", step 1.
"""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpsched.cli import companion, func, outdir
from mpsched.cli.bind import Bound, bind
from mpsched.cli.inputs import Inputs, Item
from mpsched.cli.out import StreamSink
from mpsched.cli.partial import FileSink, Rows, partial_path
from mpsched.cli.plan import Plan
from mpsched.cli.problems import Usage
from mpsched.cli.resume import Counts, Resumption, check_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpsched.cli.args import Options
    from mpsched.cli.out import Sink

__all__ = ["Job", "dry_run", "prepare"]


@dataclass(kw_only=True)
class Job:
    """A run that can begin."""

    options: Options
    argv: Sequence[str]
    plan: Plan
    bound: Bound
    inputs: Inputs
    sink: Sink
    is_stream: bool
    """Whether the rows go to standard output."""
    held: Sequence[Item] = ()
    """With `--out-dir`: the items to be run."""
    existing: Sequence[tuple[Item, dict[str, object]]] = ()
    """With `--skip-existing`: the items whose files are there, and their results."""
    counts: Counts = field(default_factory=Counts)
    resumption: Resumption | None = None

    @property
    def kept(self) -> int:
        """How many rows of an earlier run stand."""
        return self.counts.kept

    @property
    def kept_failed(self) -> int:
        """How many of them are of inputs that failed."""
        return self.counts.kept_failed

    def total(self) -> int | None:
        """Return the number of inputs, or a guess, rows of an earlier run included."""
        guess = self.inputs.guess()
        return None if guess is None else guess + self.kept

    def resume_command(self) -> str:
        """Return the command that runs what this run has not."""
        argv = [word for word in self.argv if word not in {"--overwrite", "--resume"}]
        program = ["mpsched"]
        if sys.argv[:1] and os.path.basename(sys.argv[0]) == "__main__.py":
            program = [os.path.basename(sys.executable) or "python", "-m", "mpsched"]
        said = shlex.join([*program, "map", *argv, "--resume"])
        if not self.options.inputs and self.options.names_from in {None, "-"}:
            said += "   # with the same standard input"
        return said

    def close(self) -> None:
        """Give up what is open."""
        self.inputs.close()
        self.sink.close()
        if self.resumption is not None:
            self.resumption.close()


def prepare(
    options: Options, argv: Sequence[str], rows: int | None, note: Callable[[str], object]
) -> Job:
    """Check everything that can be checked without running FUNC.

    Args:
        options: The command line.
        argv: The words that it was made of.
        rows: The descriptor for rows; None if standard output is closed.
        note: Is told what the user should know.

    Raises:
        Usage: Something is wrong; the message says what.
    """
    path = sys.path[:]
    ref, function = func.find(options.func)
    bound = bind(function, options.func, options.form, options.args)
    plan = _plan(options, ref, bound)
    if options.workers != 0:
        # FUNC is called elsewhere. Its folder may hold a `random.py` or a `queue.py`, which what
        # is imported from here on, in this process and the pool's template, must not find.
        sys.path[:] = path
    if options.out is not None:
        check_out(options.out, resume=options.resume, overwrite=options.overwrite)
    if options.workers == 0 and options.timeout is not None:
        note("--timeout has no effect with -j 0: there is no other process to end the call")
    if options.out is None and rows is None:
        raise Usage("standard output is closed; --out FILE writes the rows to a file")
    inputs = Inputs(
        options,
        as_bytes=plan.convert == "line",
        stamps=options.out is not None,
        note=note,
    )
    resumption = None
    try:
        if options.kwargs:
            bound.check_kwargs(str(inputs.first.text))
        held = _with_targets(options, inputs)
        header = companion.header_of(options, ref)
        if options.out is not None and options.resume and _has_rows(options.out):
            resumption = Resumption(
                options.out,
                header,
                inputs,
                keep_failed=options.keep_failed,
                force=options.force,
                note=note,
            )
            inputs.replace_items(resumption.items(), resumption.counts.to_run)
            if options.out_dir is not None:
                held = inputs.hold()
        held, existing = _without_existing(options, inputs, held)
        if options.largest_first:
            largest = sorted(inputs.hold(), key=_largeness, reverse=True)
            inputs.replace_items(largest, len(largest))
        return Job(
            options=options,
            argv=argv,
            plan=plan,
            bound=bound,
            inputs=inputs,
            sink=_sink(options, rows, header, resumption),
            is_stream=options.out is None,
            held=held,
            existing=existing,
            counts=Counts() if resumption is None else resumption.counts,
            resumption=resumption,
        )
    except BaseException:
        inputs.close()
        if resumption is not None:
            resumption.close()
        raise


def dry_run(job: Job) -> str:
    """Return what would run, for people; reads the inputs to their end."""
    options = job.options
    count, last = 0, None
    for item in job.inputs:
        count += 1
        last = item
    lines = [f"function  {job.bound.describe()}"]
    if job.plan.fixed:
        values = ", ".join(f"{name}={value!r}" for name, value in job.plan.fixed.items())
        lines.append(f"with      {values}")
    what = {"text": "inputs", "batch": "batches", "block": "ranges", "kwargs": "lines"}
    lines.append(f"{what[options.form]:9} {count:,} to run")
    if job.resumption is not None:
        lines.append(f"resume    {job.counts}")
    if job.existing:
        lines.append(f"skipped   {len(job.existing):,}, whose files are there")
    if last is not None:
        lines.append(f"last      {last.text!s:.200}")
    target = options.out or "standard output"
    if options.out_dir is not None:
        target = f"{options.out_dir}, rows to {target}"
    lines.append(f"output    {target}")
    return "\n".join(lines) + "\n"


def _plan(options: Options, ref: func.FuncRef, bound: Bound) -> Plan:
    init = reduce = None
    if options.init is not None:
        init, function = func.find(options.init)
        _check_call(function, f"--init {options.init}", 0)
    if options.reduce is not None:
        reduce, function = func.find(options.reduce)
        _check_call(function, f"--reduce {options.reduce}", 2)
    convert = bound.first
    if options.form == "block" and convert != "path":
        convert = "text"
    elif convert == "bytes":
        convert = "line" if options.lines else "content"
    return Plan(
        func=ref,
        init=init,
        reduce=reduce,
        form=options.form,
        convert=convert,
        fixed=bound.fixed,
        paths=bound.paths,
        capture=options.capture,
        suffix=options.suffix,
        error_attempts=1
        if options.workers == 0 or not options.retry_errors
        else options.retries + 1,
    )


def _check_call(function: Callable[..., Any], what: str, count: int) -> None:
    """Refuse a function that cannot be called with `count` arguments."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # C functions that do not tell
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        raise Usage(f"{what}: it is called with {count} arguments; {error}") from None


def _has_rows(out: str) -> bool:
    return os.path.exists(out) or os.path.exists(partial_path(out))


def _with_targets(options: Options, inputs: Inputs) -> Sequence[Item]:
    """With `--out-dir`: give each item its file.

    Raises:
        Usage: Two inputs have one file.
    """
    if options.out_dir is None:
        return ()
    if os.path.lexists(options.out_dir) and not os.path.isdir(options.out_dir):
        raise Usage(f"--out-dir {options.out_dir}: this is not a folder")
    targets = outdir.Targets(options.out_dir)
    owners: dict[str, Item] = {}
    items = inputs.hold()
    for item in items:
        item.target = targets.of(item.i, item.place)
        other = owners.setdefault(item.target, item)
        if other is not item:
            raise Usage(
                f"--out-dir: {other.text} and {item.text} would have one file, {item.target}"
                f"{options.suffix or '.*'}"
            )
    return items


def _without_existing(
    options: Options, inputs: Inputs, held: Sequence[Item]
) -> tuple[Sequence[Item], Sequence[tuple[Item, dict[str, object]]]]:
    """With `--skip-existing`: part the items into those to run and those whose file is there."""
    if not options.skip_existing:
        return held, ()
    to_run: list[Item] = []
    there: list[tuple[Item, dict[str, object]]] = []
    for item in held:
        assert item.target is not None
        result = outdir.existing(item.target, options.suffix)
        if result is None:
            to_run.append(item)
        else:
            there.append((item, result))
    inputs.replace_items(to_run, len(to_run))
    return to_run, there


def _largeness(item: Item) -> int:
    return item.size if item.stamp is None else item.stamp[0]


def _sink(
    options: Options, rows: int | None, header: companion.Header, resumption: Resumption | None
) -> Sink:
    if options.out is None:
        assert rows is not None
        return StreamSink(rows, ordered=not options.unordered)
    out = options.out

    def begin() -> tuple[companion.Companion, Rows]:
        if resumption is not None:
            return resumption.apply()
        # First no rows, then what makes rows: never rows of one thing and the name of another.
        with open(partial_path(out), "wb"):
            pass
        return companion.Companion(out, header), Rows()

    return FileSink(out, begin, ordered=not options.unordered)
