"""Running one root: decode, call, deliver. See README.md, "Run"."""

from __future__ import annotations

import marshal
import pickle
import time
from typing import TYPE_CHECKING, Any, Final

from mpsched._shm import layout as lay, payloads
from mpsched._shm.words import WEAK, fence
from mpsched._tasks import codec, failure, state as st, table as tab
from mpsched._tasks.names import FunctionReader
from mpsched._tasks.sealed import Row
from mpsched._worker import ahead, blocking, deliver, hot, long
from mpsched._worker.chunk import Chunk
from mpsched.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.worker import Worker

_LOW: Final = 255
"""Kind and flags of a META word."""
_COMMON: Final[dict[int, Callable[[bytes | memoryview], Any]]] = {
    tab.KIND_PLAIN: marshal.loads,
    tab.KIND_ARGS: pickle.loads,
}
_SHORT: Final = 16384
"""Bytes of a frame that is read before its time."""
_clock = time.monotonic_ns


def _end_forks() -> None:
    """Finish what a root has left open, which makes its failures the root's."""
    problem = long.end_root()
    if problem is not None:
        raise problem


def _end_forks_of_failed(problem: BaseException) -> BaseException:
    return long.end_root(problem) or problem


def _blocking(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` as one block of `blocking()`: what `options(blocking=True)` asks for."""
    from mpsched._worker.blocking import blocking

    def call(*args: Any, **kwargs: Any) -> Any:
        with blocking():
            return fn(*args, **kwargs)

    call.__qualname__ = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return call


class Runner:
    """Runs the roots of one worker, in its main thread."""

    __slots__ = (
        "_blob",
        "_fn",
        "_functions",
        "_ident",
        "_loads",
        "_meta",
        "_parent_pid",
        "_read_frame",
        "_running",
        "_state",
        "_worker",
    )

    def __init__(self, worker: Worker, parent_pid: int) -> None:
        self._worker = worker
        self._blob = b""
        self._fn: Callable[..., Any] | None = None
        self._loads = -1
        self._parent_pid = parent_pid
        table = worker.table
        self._state, self._ident, self._meta = table.state, table.ident, table.meta
        self._read_frame = table.read_frame
        self._running = st.word(st.RUNNING, worker.index)
        self._functions = FunctionReader(worker.segment.bytes, worker.words, worker.config.layout)
        worker.look_ahead = self.look_ahead

    def run(self, handle: int) -> int:
        """Run the root `handle`, which `popleft` has just started; returns the time it ended (ns)."""
        # crash-point: run.popped
        worker = self._worker
        # The parent reads it after this worker's death, or as a hint: RUNNING is what died with it.
        self._state[handle] = self._running
        # crash-point: run.running
        ident = self._ident[handle]
        meta = self._meta[handle]
        worker.current = handle
        worker.patient_ns = 0
        kind = meta & _LOW
        if kind not in _COMMON:
            return self._run_other(handle, ident, meta)
        # The common case, written out: a function by number, arguments that lie in the table.
        try:
            args = _COMMON[kind](self._read_frame(handle))
            fn = self._functions[meta >> tab.FUNCTION_SHIFT]
        except BaseException as problem:
            self._undecodable(ident, handle, problem)
            return self._ended(0, _clock())
        begun = _clock()
        try:
            result = fn(*args)
            if hot.forking:
                _end_forks()
        except BaseException as problem:
            final = _end_forks_of_failed(problem) if hot.forking else problem
            now = _clock()
            self._failed(ident, handle, now - begun, final, fn, args, None)
            del problem, final
        else:
            now = _clock()
            deliver.value(worker, ident, handle, now - begun, result)
            # A large result must not live until the next task's is there.
            del result
        return self._ended(now - begun, now)

    def _run_other(self, handle: int, ident: int, meta: int) -> int:
        worker = self._worker
        run = 0
        if meta & tab.FLAG_TIMED:
            # Read by the parent's limit watch (limits.py): the time limit counts from here.
            worker.table.started[handle] = _clock()
            run = worker.table.run_key(handle)
        kind = meta & tab.KIND_MASK
        try:
            if (ahead := worker.ahead) is not None and ahead.is_of(handle, ident):
                fn, args = ahead.fn, ahead.args
                kwargs = None
                worker.seed, worker.limit_ns, worker.blocks, worker.version = ahead.told
            else:
                fn, args, kwargs = self._decode(handle, meta, kind)
            worker.ahead = None
        except BaseException as problem:
            self._undecodable(ident, handle, problem)
            self._forget_context()
            if run:
                self._wait_for_its_end(run)
            return self._ended(0, _clock())
        if worker.blocks:
            fn = _blocking(fn)
        begun = _clock()
        if worker.version:
            # Of a scheduled task it is told when its function began, without what unpickling took.
            worker.table.started[handle] = begun
        if kind == tab.KIND_CHUNK:
            worker.chunk = chunk = Chunk(worker, ident, handle, fn, kwargs is not None, args)
            try:
                chunk.run()
            finally:
                worker.chunk = None
            if hot.forking:
                _end_forks()
            now = _clock()
            if now - begun < worker.tell_ns * 2 and not worker.parent_is_due(now):
                worker.patient_ns = now + worker.tell_ns
        else:
            try:
                result = fn(*args, **kwargs) if kwargs else fn(*args)
                if hot.forking:
                    _end_forks()
            except BaseException as problem:
                final = _end_forks_of_failed(problem) if hot.forking else problem
                now = _clock()
                self._failed(ident, handle, now - begun, final, fn, args, kwargs)
                del problem, final
            else:
                now = _clock()
                deliver.value(worker, ident, handle, now - begun, result)
                del result
        self._forget_context()
        if run:
            self._wait_for_its_end(run)
        self._ended(now - begun, now)
        if kind == tab.KIND_CHUNK:
            worker.look(now)
        return now

    def _forget_context(self) -> None:
        """The next root has a context of its own, or none."""
        worker = self._worker
        worker.seed, worker.limit_ns, worker.blocks, worker.version = None, 0, False, 0

    def _wait_for_its_end(self, run: int) -> None:
        """Start nothing more while the parent is about to kill this worker for `run`, which is over.

        The parent stores KILL and then looks for the record; here the record comes first. One of the
        two sees the other: no root that comes after `run` is killed in its place.
        """
        worker = self._worker
        words, kill = worker.words, worker.block + lay.B_KILL
        fence()
        # crash-point: limit.ended
        if words[kill] == run:
            worker.ring_the_parent()
            while words[kill] == run:
                time.sleep(0.001)

    def _ended(self, ns: int, now: int) -> int:
        worker = self._worker
        # crash-point: run.delivered
        worker.current = None
        if blocking.entered:
            blocking.end_all(worker)
        worker.executed += 1
        worker.busy_ns += ns
        return now

    def _decode(
        self, handle: int, meta: int, kind: int
    ) -> tuple[Callable[..., Any], Any, dict[str, Any] | None]:
        """Return (function, args, kwargs); for a piece of a map (function, items, {} if star)."""
        data: Any = self._worker.table.read_frame(handle)
        buffers: list[memoryview] = []
        if meta & tab.FLAG_CONTEXT:
            worker = self._worker
            told = pickle.loads(data)
            worker.seed, worker.limit_ns, worker.blocks, worker.version, _who, data = told
        if meta & tab.FLAG_EXTERNAL:
            data, buffers = self._fetch(data)
        number = meta >> tab.FUNCTION_SHIFT
        if kind == tab.KIND_PLAIN:
            return self._functions[number], _COMMON[kind](data), None
        if kind == tab.KIND_ARGS:
            args = pickle.loads(data, buffers=buffers) if buffers else pickle.loads(data)
            return self._functions[number], args, None
        if kind == tab.KIND_CALL:
            args, kwargs = pickle.loads(data, buffers=buffers)
            return self._functions[number], args, kwargs
        blob, star, encoded = pickle.loads(data)
        # The function first: its module's namespace must be there before its arguments' classes.
        if kind == tab.KIND_CHUNK:
            fn = self._functions[number] if blob is None else self._callable(blob)
            return fn, Row(encoded, buffers), {} if star else None
        fn = self._functions[number] if blob is None else self._callable(blob)
        args, kwargs = codec.decode(encoded, buffers)
        return fn, args, kwargs

    def look_ahead(self, handle: int) -> None:
        """Read what can be read of a root that lies in the own inbox, and is not claimed: nothing of it runs."""
        worker = self._worker
        worker.ahead = None
        table = worker.table
        ident, meta = table.ident[handle], table.meta[handle]
        if meta & (tab.FLAG_CONTEXT | tab.FLAG_EXTERNAL) != tab.FLAG_CONTEXT:
            return
        data = bytes(table.read_frame(handle)) if table.length[handle] <= _SHORT else b""
        if WEAK:
            fence()  # the frame before EARLY
        if not data or worker.words[worker.inbox.early] != handle + 1:
            return  # taken back meanwhile: the entry may be another's, or half of it
        try:
            *told, _who, data = pickle.loads(data)
            kind, number = meta & tab.KIND_MASK, meta >> tab.FUNCTION_SHIFT
            blob = None
            if kind == tab.KIND_VALUE:
                blob, _star, data = pickle.loads(data)
            known = self._known(number, blob)
            if known is None:
                return
            if kind == tab.KIND_PLAIN:
                args = _COMMON[kind](data)
            elif kind in {tab.KIND_ARGS, tab.KIND_VALUE}:
                args = ahead.loads(data)
                if kind == tab.KIND_VALUE:
                    args, kwargs = args
                    if kwargs:
                        return
            else:
                return
        except Exception:
            return  # it says what is wrong, and to whom, when it is run
        worker.ahead = ahead.Ahead(handle, ident, known, args, told)

    def _known(self, number: int, blob: bytes | None) -> Callable[..., Any] | None:
        """Return a function that this worker has, as it is now; None if it would have to be loaded."""
        if blob is None:
            return self._functions.get(number)
        if blob == self._blob and codec.loads_so_far() == self._loads:
            return self._fn
        return None

    def _callable(self, blob: bytes) -> Callable[..., Any]:
        """Load a function by value; as it is if nothing was loaded since it was used last."""
        known = self._known(0, blob)
        if known is not None:
            return known
        fn = codec.loads_callable(blob)
        # The very object of the time before: it is stateless, and stays loaded (VALUE-4).
        self._blob = blob if fn is self._fn else b""
        self._fn, self._loads = fn, codec.loads_so_far()
        return fn

    def _fetch(self, frame: bytes | memoryview) -> tuple[Any, list[memoryview]]:
        """Map the parent's payload files that a frame names; return (in-band bytes, buffers)."""
        inband, files = pickle.loads(frame)
        views = payloads.fetch(self._parent_pid, files)
        if inband is None:
            return views[0], views[1:]
        return inband, views

    def _undecodable(self, ident: int, handle: int, problem: BaseException) -> None:
        if not isinstance(problem, DecodeError):
            error = DecodeError(f"the function or the arguments {codec.undecodable(problem)}")
            error.__cause__ = problem
            problem = error
        deliver.error(
            self._worker,
            ident,
            handle,
            0,
            problem,
            f"task {self._worker.name_of(handle)}: its arguments",
        )

    def _failed(
        self,
        ident: int,
        handle: int,
        ns: int,
        problem: BaseException,
        fn: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any] | None,
    ) -> None:
        name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        note = (
            f"task {self._worker.name_of(handle)}: {failure.short_call(name, args, kwargs or {})}"
        )
        deliver.error(self._worker, ident, handle, ns, problem, note)
