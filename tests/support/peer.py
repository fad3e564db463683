"""A second interpreter that plays the worker for the codec: calls in, results out, over pipes.

Used by tests, and by scripts, that play the parent; see `tests/process/test_byvalue_functions.py`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, Self

from mpsched._tasks import codec, failure, functions

_ALL_IN_BAND = 1 << 40
_ROOT = str(Path(__file__).resolve().parents[2])


class Peer:
    """The parent's end: `run(fn, *args)` is what `submit(fn, *args).result()` is in a pool."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", "from tests.support import peer; peer.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, sys.path)])},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def send(self, fn: Any, *args: Any) -> bytes:
        """Encode one call, as it is now."""
        name = functions.importable_name(fn)
        callee = name if name is not None else codec.dumps_callable(fn)
        data, buffers = codec.encode(args, threshold=_ALL_IN_BAND)
        assert not buffers
        return pickle.dumps((callee, data))

    def call(self, frame: bytes) -> Any:
        """Run an encoded call in the other interpreter."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(len(frame).to_bytes(8, "little") + frame)
        stdin.flush()
        answer = stdout.read(int.from_bytes(stdout.read(8), "little"))
        assert answer, "the other interpreter is gone"
        ok, data = pickle.loads(answer)
        if not ok:
            raise failure.decode_exception(data)
        return codec.decode(data)

    def run(self, fn: Any, *args: Any) -> Any:
        """Encode and run one call."""
        return self.call(self.send(fn, *args))


class Notebook:
    """A `__main__` whose code comes in cells."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self._cells = 0

    def cell(self, code: str) -> None:
        self._cells += 1
        code = textwrap.dedent(code)
        compiled = compile(code, f"<cell {self._cells}>", "exec", dont_inherit=True)
        exec(compiled, vars(self.module))

    def __getitem__(self, name: str) -> Any:
        return vars(self.module)[name]


def serve() -> None:
    """Be the worker: until the end of standard input."""
    sys.modules["__main__"] = types.ModuleType("__main__")  # as a worker of the pool has it
    codec.enter_worker()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while head := requests.read(8):
        callee, data = pickle.loads(requests.read(int.from_bytes(head, "little")))
        try:
            if isinstance(callee, bytes):
                fn = codec.loads_callable(callee)
            else:
                fn = functions.resolve(*callee)
            result, buffers = codec.encode_result(fn(*codec.decode(data)), _ALL_IN_BAND)
            assert not buffers
            answer = pickle.dumps((True, result))
        except BaseException as error:
            answer = pickle.dumps(
                (False, failure.encode_exception(error, task_id=7, note="a call"))
            )
        answers.write(len(answer).to_bytes(8, "little") + answer)
        answers.flush()
