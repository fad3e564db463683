"""What runs in a worker: `prepare` once, `run_item` for each input, `fold` for `--reduce`.

With `-j 0` the same functions run in the command itself. Nothing here raises for what FUNC does:
every failure is an answer, already encoded, so that no exception of the user's has to travel.
"""

from __future__ import annotations

import copy
import errno
import functools
import json
import pathlib
import pickle
import time
import traceback
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpsched.cli import outdir
from mpsched.cli.capture import Tap, flush_all, line_buffered
from mpsched.cli.rows import NotJson, encode, error_fragment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from mpsched.cli.plan import Plan

__all__ = ["Answer", "TryAgain", "fold", "forget", "prepare", "run_item"]

_TRACEBACK_LIMIT: Final = 20_000  # characters
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class Answer(NamedTuple):
    """What a worker says about one input."""

    kind: str
    """ok; error; call: a failure of the call itself (import, binding), the same for every input;
    full: the disk of `--out-dir` is; value: with `--reduce`, a pickle."""
    fragment: bytes
    """JSON of the result or error; the pickle for a value."""
    seconds: float
    printed: str | None


class TryAgain(Exception):
    """FUNC raised, and attempts are left: the pool runs the input again (`--retry-errors`)."""


class _Call:
    """FUNC, loaded, with what each call needs."""

    def __init__(self, plan: Plan, in_process: bool) -> None:
        self.plan = plan
        self.func = plan.func.load()
        self.reduce = None if plan.reduce is None else plan.reduce.load()
        self.tap = Tap() if plan.capture else None
        # Ctrl-C and a debugger's `quit` reach FUNC only where FUNC runs in the command.
        self.passed_on: tuple[type[BaseException], ...] = ()
        if in_process:
            import bdb

            self.passed_on = (KeyboardInterrupt, bdb.BdbQuit)
        if plan.init is not None:
            plan.init.load()()

    def value(self, payload: Any) -> Any:
        """Call FUNC as the plan says."""
        plan = self.plan
        # A list given by --arg belongs to one call: FUNC may change it.
        fixed = {
            name: copy.deepcopy(value) if isinstance(value, dict | list) else value
            for name, value in plan.fixed.items()
        }
        if plan.form == "batch":
            value = self.func([_converted(part, plan.convert) for part in payload], **fixed)
        elif plan.form == "block":
            path, start, stop = payload
            value = self.func(_converted(path, plan.convert), start, stop, **fixed)
        elif plan.form == "kwargs":
            values = _converted(payload, "dict")
            for name in plan.paths & values.keys():
                if isinstance(values[name], str):
                    values[name] = pathlib.Path(values[name])
            value = self.func(**{**fixed, **values})
        else:
            value = self.func(_converted(payload, plan.convert), **fixed)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(_awaited(value))
        return value


_call: _Call | None = None


def prepare(plan: Plan, in_process: bool = False) -> None:
    """Load FUNC and run `--init`.

    Context:
        The pool's initializer, once per worker; or the command, with `-j 0`.

    Raises:
        BaseException: What the import or `--init` raises.
    """
    global _call
    line_buffered()
    _call = _Call(plan, in_process)


def forget() -> None:
    """Undo `prepare` in this process."""
    global _call
    if _call is not None and _call.tap is not None:
        _call.tap.close()
    _call = None


def run_item(payload: Any, target: str | None = None) -> Answer:
    """Call FUNC for one input.

    Args:
        payload: What the plan's form makes arguments of.
        target: With `--out-dir`: the path of the input's file without suffix.

    Raises:
        TryAgain: FUNC raised and attempts are left.
    """
    call = _call
    assert call is not None, "prepare() has not run in this process"
    if call.tap is not None:
        call.tap.start()
    kind, fragment, seconds = "error", b"", 0.0
    try:
        kind, fragment, seconds = _timed(call, payload, target)
    finally:
        # Also on the way out by Ctrl-C or TryAgain: descriptors 1 and 2 must come back.
        printed = None if call.tap is None else call.tap.stop()
    if call.tap is None:
        flush_all()
    return Answer(kind, fragment, seconds, printed)


def fold(parts: Sequence[bytes], last: bool) -> Answer:
    """Fold pickled values from left to right with the function of `--reduce`.

    Args:
        parts: At least one value.
        last: Whether this is the run's result, to be answered as JSON.
    """
    assert _call is not None
    assert _call.reduce is not None
    reduce = _call.reduce
    started = time.perf_counter()
    try:
        value = functools.reduce(reduce, (pickle.loads(part) for part in parts))
        fragment = encode(value) if last else _pickled(value)
        return Answer("ok" if last else "value", fragment, time.perf_counter() - started, None)
    except _call.passed_on:
        raise
    except BaseException as error:
        fragment = _error(error)[1]
        return Answer("error", fragment, time.perf_counter() - started, None)


def _timed(call: _Call, payload: Any, target: str | None) -> tuple[str, bytes, float]:
    started = time.perf_counter()
    try:
        value = call.value(payload)
    except call.passed_on:
        raise
    except BaseException as error:
        if isinstance(error, Exception) and _attempts_left(call.plan):
            raise TryAgain(f"{type(error).__name__}: {_message(error)}") from error
        kind, fragment = _error(error)
        return kind, fragment, time.perf_counter() - started
    try:
        if call.reduce is not None:
            return "value", _pickled(value), time.perf_counter() - started
        if target is not None:
            value = outdir.write(value, target, call.plan.suffix)
        fragment = encode(value)
    except OSError as error:
        kind = "full" if error.errno in _FULL else "error"
        return kind, _error(error)[1], time.perf_counter() - started
    except NotJson as error:
        fragment = error_fragment("ResultEncodeError", str(error), "", "encode")
        return "error", fragment, time.perf_counter() - started
    return "ok", fragment, time.perf_counter() - started


def _converted(payload: Any, convert: str) -> Any:
    if convert == "path":
        return pathlib.Path(payload)
    if convert == "int":
        return int(payload)
    if convert == "float":
        return float(payload)
    if convert == "content":
        return pathlib.Path(payload).read_bytes()
    if convert == "dict":
        value = json.loads(payload)
        if not isinstance(value, dict):
            raise ValueError(f"not a JSON object, but {type(value).__name__}: {payload:.100}")
        return value
    return payload


async def _awaited(value: Any) -> Any:
    return await value


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except Exception as error:
        raise NotJson(
            f"result: {type(value).__qualname__} cannot be pickled for --reduce: {error}"
        ) from error


def _attempts_left(plan: Plan) -> bool:
    if plan.error_attempts <= 1:
        return False
    import mpsched

    task = mpsched.current_task()
    return task is not None and task.attempt < plan.error_attempts


def _error(error: BaseException) -> tuple[str, bytes]:
    """Return the answer's kind and fragment for what FUNC, or its conversion, raised."""
    if isinstance(error, NotJson):
        return "error", error_fragment("ResultEncodeError", str(error), "", "encode")
    frames = _users_frames(error.__traceback__)
    own = error.with_traceback(frames)
    try:
        text = "".join(traceback.format_exception(own))
    except Exception as second:  # a cause whose own code raises while it is shown
        text = f"(its traceback cannot be shown: {type(second).__name__})"
    if len(text) > _TRACEBACK_LIMIT:
        half = _TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n  ...\n{text[-half:]}"
    # A TypeError without a frame of the user's: the call itself was refused.
    of_call = isinstance(error, ImportError) or (isinstance(error, TypeError) and frames is None)
    why = "memory" if isinstance(error, MemoryError) else "error"
    fragment = error_fragment(type(error).__qualname__, _message(error), text, why)
    return "call" if of_call else "error", fragment


def _users_frames(frames: TracebackType | None) -> TracebackType | None:
    """Leave out this file's frames, which say nothing to the user."""
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # the user's own __str__
        return f"(its text cannot be shown: {type(second).__name__})"
