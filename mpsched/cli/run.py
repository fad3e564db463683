"""The order of a whole run, and its exit status. See README.md, "The run" and "Exit status"."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from mpsched.cli import engine as engines, outdir, rows
from mpsched.cli.args import parse_map
from mpsched.cli.capture import lines_above, rows_apart
from mpsched.cli.inputs import Item
from mpsched.cli.out import ReaderGone
from mpsched.cli.problems import Broken, Usage
from mpsched.cli.progress import Bar, Screen, open_progress
from mpsched.cli.reduce import Tree
from mpsched.cli.setup import Job, dry_run, prepare
from mpsched.cli.signals import Signals
from mpsched.cli.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpsched.cli.engine import Engine, Outcome
    from mpsched.cli.progress import Progress

__all__ = ["run_map"]

_LOOK_SECONDS: Final = 1.0  # between two looks at the workers' loads


def run_map(argv: Sequence[str], *, make_executor: Callable[..., object] | None = None) -> int:
    """Run `mpsched map` with these arguments.

    Args:
        argv: What follows `mpsched map`.
        make_executor: Makes the executor; for tests.

    Returns:
        The exit status.
    """
    try:
        options = parse_map(argv)
    except Usage as problem:
        print(f"mpsched map: {problem}", file=sys.stderr)
        return 2
    except SystemExit:  # --help, which has been printed
        return 0
    with rows_apart() as rows_descriptor:
        screen = Screen()
        try:
            job = prepare(
                options, argv, rows_descriptor, lambda text: screen.say(f"mpsched: {text}")
            )
            try:
                if job.options.dry_run:
                    print_to = rows_descriptor if rows_descriptor is not None else 2
                    with contextlib.suppress(BrokenPipeError):
                        os.write(print_to, dry_run(job).encode("utf-8", "backslashreplace"))
                    return 0
                return _Run(job, screen, make_executor).go()
            finally:
                job.close()
        except Usage as problem:
            screen.say(f"mpsched map: {problem}")
            return 2
        except Broken as problem:
            screen.say(f"mpsched map: {problem}")
            return 3
        except KeyboardInterrupt:  # before the run began, or while it was put in order
            return 130
        finally:
            screen.close()


class _Run:
    """One run, from the first call to the last row."""

    def __init__(
        self, job: Job, screen: Screen, make_executor: Callable[..., object] | None
    ) -> None:
        self._job = job
        self._options = job.options
        self._sink = job.sink
        self._make_executor = make_executor
        self._tally = Tally(skipped=len(job.existing))
        self._signals = Signals(self._wake)
        self._engine: Engine | None = None
        self._screen = screen
        self._progress: Progress = open_progress(
            screen, quiet=self._options.quiet, bar=self._options.workers != 0
        )
        self._tree = Tree() if self._options.reduce is not None else None
        self._answer: Outcome | None = None
        self._interrupted = False
        self._given_up = False
        self._ended = False
        """Whether the tree knows how many inputs there were."""
        self._looked = 0.0
        self._loads: list[float] = []
        self._unfinished: dict[int, str] = {}
        """With `--out-dir`: the files of the inputs that have not ended."""

    def go(self) -> int:
        """Run, finish the output, say what was; return the exit status."""
        if self._job.resumption is not None:
            self._screen.say(f"mpsched: {self._job.counts}")
        if self._job.inputs.total == 0:
            return self._nothing_to_run()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals.catch())
            if isinstance(self._progress, Bar):
                stack.enter_context(lines_above(self._progress.say))
            stack.callback(self._progress.close)
            self._put_existing()
            self._unfinished = {item.i: item.target for item in self._job.held if item.target}
            engine = self._engine = self._made_engine()
            stack.callback(engine.close)
            return self._run(engine)

    def _made_engine(self) -> Engine:
        plan, options = self._job.plan, self._options
        if options.workers != 0:
            return engines.Pool(plan, options, self._make_executor)
        try:
            # Ctrl-C may interrupt FUNC here, where it runs in this process.
            return engines.Serial(plan, options, self._signals.may_raise)
        except engines.PoolBroken as problem:
            raise Usage(str(problem)) from None

    def _nothing_to_run(self) -> int:
        """Finish the output of an earlier run, or of inputs whose files are all there."""
        resumption = self._job.resumption
        self._put_existing()
        if self._job.existing or resumption is None or not resumption.is_complete():
            self._sink.finish()
        return self._status()

    def _run(self, engine: Engine) -> int:
        self._progress.start(self._job.kept, self._job.total())
        try:
            self._loop(engine)
            self._finish()
        except ReaderGone:
            engine.abandon()
            return self._status()
        except engines.PoolBroken as problem:
            engine.abandon()
            if not self._tally.done:
                raise Usage(str(problem)) from None
            self._say_end(engine)
            raise
        except Broken:
            engine.abandon()
            self._say_end(engine)
            raise
        except Usage:  # the first call was refused
            engine.abandon()
            raise
        finally:
            self._remove_unfinished()
        self._say_end(engine)
        return self._status()

    def _loop(self, engine: Engine) -> None:
        """Take outcomes until all items have ended or the run is to stop."""
        draining = False
        try:
            for outcomes in engine.outcomes(self._job.inputs):
                # Job managers may send SIGTERM to the workers as well: the input has not failed.
                self._take(one for one in outcomes if one.answered or not self._signals.drain)
                self._write()
                if self._signals.abandon or self._too_many_failed():
                    break
                if self._signals.drain and not draining:
                    draining = True
                    engine.drain()
                self._end_tree(engine)
                self._show(engine)
            else:
                return
        except KeyboardInterrupt:  # in FUNC with -j 0, or in a write to a slow reader
            self._interrupted = True
        self._given_up = True
        self._sink.hurry()
        # A failure now may be the stop's own doing: a subprocess of FUNC gets the same Ctrl-C.
        self._take(one for one in engine.abandon() if one.kind in {"ok", "value"})
        self._write()

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        """Count what has ended, and give its row to the sink."""
        for outcome in outcomes:
            if not isinstance(outcome.of, Item):
                self._take_fold(outcome)
                continue
            item = outcome.of
            if outcome.kind == "call" and not self._tally.done and not self._job.kept:
                raise Usage(_refused(self._options.func, item, outcome))
            if outcome.kind == "full":
                error = json.loads(outcome.fragment)
                raise Broken(f"{self._options.out_dir} cannot be written: {error['message']}")
            self._tally.add(item.text, outcome)
            self._sink.put(item, self._row(item, outcome))
            if item.target is not None:
                if outcome.kind != "ok":
                    outdir.remove_unfinished(item.target)
                self._unfinished.pop(item.i, None)

    def _row(self, item: Item, outcome: Outcome) -> bytes:
        """Return the row of an item; nothing for a value that will be folded."""
        if self._tree is not None:
            value = outcome.fragment if outcome.kind == "value" else None
            for fold in self._tree.add(0, item.i, value):
                assert self._engine is not None
                self._engine.fold(fold)
            if value is not None:
                return b""
        return rows.row(
            item.i,
            item.text,
            outcome.kind == "ok",
            outcome.fragment,
            outcome.seconds,
            outcome.attempts,
            outcome.printed,
        )

    def _take_fold(self, outcome: Outcome) -> None:
        """Take a folded value up the tree, or the answer."""
        fold = outcome.of
        assert self._tree is not None
        assert self._engine is not None
        assert not isinstance(fold, Item)
        if fold.last or outcome.kind != "value":
            # A fold that fails is the answer: without its value there is none.
            self._answer = self._answer or outcome
            return
        for above in self._tree.add(fold.level, fold.index, outcome.fragment):
            self._engine.fold(above)

    def _end_tree(self, engine: Engine) -> None:
        """Tell the tree how many inputs there were, once that is known and all have ended."""
        total = self._job.inputs.total
        if self._tree is None or self._ended or total is None or self._tally.done < total:
            return
        self._ended = True
        for fold in self._tree.end(total):
            engine.fold(fold)

    def _write(self) -> None:
        with contextlib.ExitStack() as stack:
            if self._job.is_stream:  # its reader may be slow; a file's rows must not be torn
                stack.enter_context(self._signals.may_raise(at_once=not self._given_up))
            self._sink.flush()
        self._sink.tick()

    def _too_many_failed(self) -> bool:
        limit = self._options.max_failures
        if self._answer is not None and self._answer.kind != "ok":
            return True
        return limit is not None and self._tally.failed >= limit

    def _is_complete(self) -> bool:
        return self._job.inputs.total == self._tally.done

    def _finish(self) -> None:
        """Write what is left. OUT gets its name only if every input has its row."""
        tree = self._tree
        answered = tree is not None and (tree.is_empty or self._answer is not None)
        if answered:
            self._put_answer()
        if self._job.is_stream:
            with (
                contextlib.suppress(KeyboardInterrupt),
                self._signals.may_raise(at_once=not self._given_up),
            ):
                self._sink.finish()
        elif answered or (tree is None and self._is_complete()):
            with self._signals.may_raise(at_once=False):  # gigabytes may have to be put in order
                self._sink.finish()
        elif tree is None:
            self._sink.flush()
        else:
            self._sink.discard()  # without the value there is nothing to resume

    def _put_answer(self) -> None:
        """Write the row of `--reduce`."""
        answer = self._answer
        count = self._tally.done
        if answer is None:
            message = "every input failed, so there is no value"
            fragment = rows.error_fragment("NoValue", message, "", "error")
            ok = False
        else:
            ok, fragment = answer.kind == "ok", answer.fragment
        if not ok:
            error = json.loads(fragment)
            self._tally.no_value = f"{error['type']}: {error['message']:.300}"
        row = rows.row(count, None, ok, fragment, round(self._tally.seconds, 6), 1)
        more = rows.dumps({"inputs": count, "failed": self._tally.failed})
        self._sink.put(Item(count, "", None, 0), row[:-2] + b", " + more[1:] + b"\n")

    def _put_existing(self) -> None:
        """Write the rows of the inputs whose files are there (`--skip-existing`)."""
        for item, result in self._job.existing:
            row = rows.row(item.i, item.text, True, rows.encode(result), 0.0, 0)
            self._sink.put(item, row)

    def _remove_unfinished(self) -> None:
        for target in self._unfinished.values():
            outdir.remove_unfinished(target)

    def _show(self, engine: Engine) -> None:
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._loads = engine.loads() if self._looked else []
            self._looked = now
        done, failed = self._tally.done + self._job.kept, self._tally.failed
        self._progress.update(done, failed, self._job.total(), self._loads)

    def _say_end(self, engine: Engine) -> None:
        """Say what was, and how to go on."""
        self._progress.close()
        if self._options.quiet:
            return
        text = self._tally.summary(engine.totals(), self._job.inputs.total)
        first, *rest = text.split("\n")
        lines = [f"mpsched: {self._why_stopped()}{first}", *(f"  {line}" for line in rest)]
        self._screen.say("\n".join(lines))
        incomplete = not self._is_complete() or self._tally.failed
        if self._options.out is not None and self._tree is None and incomplete:
            self._screen.say(f"  to go on: {self._job.resume_command()}")

    def _why_stopped(self) -> str:
        """Return why the run ended before its inputs did, as the beginning of a line."""
        if self._is_complete():
            return ""
        if self._signals.received:
            first = signal.Signals(self._signals.received[0]).name
            return f"stopped by {'Ctrl-C' if first == 'SIGINT' else first}: "
        if self._options.max_failures is not None and self._too_many_failed():
            return f"stopped, {self._tally.failed:,} failed: "
        return ""

    def _status(self) -> int:
        if self._signals.status is not None:
            return self._signals.status
        if self._interrupted:  # without a signal: the debugger's `quit`
            return 130
        tally = self._tally
        return 1 if tally.failed or tally.no_value or self._job.kept_failed else 0

    def _wake(self) -> None:
        if self._engine is not None:
            self._engine.wake()


def _refused(text: str, item: Item, outcome: Outcome) -> str:
    """Return why the run stops at its first call."""
    error = json.loads(outcome.fragment)
    detail = error["traceback"].rstrip() or f"{error['type']}: {error['message']}"
    return (
        f"the first call of {text} failed as all others would, so nothing else was run"
        f" (input: {item.text!s:.100})\n{detail}"
    )
