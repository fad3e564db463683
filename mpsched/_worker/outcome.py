"""Frames, values and errors in a child's entry, and out of it. See README.md, "Outcomes".

What does not fit into the entry's area goes into memory files, which the process that made them keeps
open until the other one cannot need them any more.
"""

from __future__ import annotations

import marshal
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpsched._shm import payloads
from mpsched._tasks import children as ch, codec, failure, functions, state as st
from mpsched._tasks.table import FUNCTION_SHIFT
from mpsched._worker import long
from mpsched._worker.constancy import Watched
from mpsched.errors import DecodeError, ResultEncodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.away import Away
    from mpsched._worker.worker import Worker

_HELD: Final = 32  # in a META word: the outcome refers to shared arrays, which the thief holds
_KNOWN_MOST: Final = 64

_PLAIN: Final = codec.PLAIN_TYPES
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType)

_known: dict[int, tuple[Any, int, bytes | None, Watched | None]] = {}
"""Functions by identity: (function, loads at that time, its pickle, what that depends on).

No pickle: an import finds it.
"""

_named: dict[int, tuple[Any, dict[str, Any], str, str]] = {}
"""Functions that an import finds, by identity: (function, its module's globals, its name there, the module's)."""

_loaded: tuple[bytes, int, Callable[..., Any]] | None = None
"""The function by value that was loaded last: (its pickle, loads so far, function)."""


def frame(
    worker: Worker, fn: Callable[..., Any], x: Any, rest: tuple[Any, ...]
) -> tuple[int, bytes, object]:
    """Pickle a call. Main or helper thread, no lock held: the user's `__reduce__` runs here.

    Returns:
        Its META word, what stands in its area, and what has to live until the thief has it.

    Raises:
        EncodeError: It cannot be pickled.
        OSError: There is no memory for what is large.
    """
    if type(x) in _PLAIN and (not rest or _PLAIN.issuperset(map(type, rest))):
        # Neither `__main__` nor buffers can be in it.
        module, name = _name(fn)
        blob = None if module else _blob(fn)
        if module or blob is not None:
            data = marshal.dumps((module, name or blob, x, rest))
            if len(data) <= worker.table.child_bytes:
                return ch.C_PLAIN, data, None
    else:
        blob = None if fn is long.with_keywords else _blob(fn)
    call = (x, rest) if blob is not None else (fn, x, rest)
    data, buffers, held = codec.encode_held(call, worker.settings.payload_bytes, label="call")
    data = pickle.dumps((blob, data), 5)
    if not buffers and len(data) <= worker.table.child_bytes:
        return ch.C_PICKLE, data, held
    data, files = _in_files(worker, data, buffers)
    return ch.C_FILES, data, (held, files)


def _name(fn: Any) -> tuple[str, str]:
    """Return (module, name) of a function that its module has under its name; ("", "") for others.

    It is looked for once, and then asked of the module each time.
    """
    known = _named.get(id(fn))
    if known is not None and known[0] is fn and known[1].get(known[2]) is fn:
        return known[3], known[2]
    # (A callable object may bring a state along, and to find a method is for its class.)
    if type(fn) not in _FUNCTIONS or functions.importable_name(fn) is None:
        return "", ""
    module, name = fn.__module__, fn.__qualname__
    space = vars(sys.modules[module])
    if space.get(name) is not fn:
        return "", ""
    if len(_named) >= _KNOWN_MOST:
        _named.clear()
    _named[id(fn)] = fn, space, name, module
    return module, name


def _blob(fn: Any) -> bytes | None:
    """Return the pickle of a function that no import finds; None for others.

    It is made once for a function as long as nothing that it reads has changed.
    """
    number = id(fn)
    known = _known.get(number)
    if known is not None and known[0] is fn:
        _, before, blob, watched = known
        if blob is None or (
            before == codec.loads_so_far() and watched is not None and watched.holds()
        ):
            return blob
    blob = watched = None
    loads = codec.loads_so_far()
    if functions.importable_name(fn) is None:
        blob, watched = codec.dumps_callable(fn), Watched.of(fn)
    if blob is None or watched is not None:
        if len(_known) >= _KNOWN_MOST:
            _known.clear()
        _known[number] = fn, loads, blob, watched
    return blob


def _load(blob: bytes) -> Callable[..., Any]:
    """Load a function by value; as it is if it was the last one, and nothing else was loaded since."""
    global _loaded
    if _loaded is not None and _loaded[0] == blob and _loaded[1] == codec.loads_so_far():
        return _loaded[2]
    fn = codec.loads_callable(blob)
    # The second time it is the very object of the first: then it is stateless, and stays loaded (VALUE-4).
    same = _loaded is not None and _loaded[2] is fn
    _loaded = (blob if same else b"", codec.loads_so_far(), fn)
    return fn


def _find(module: str, name: str) -> Callable[..., Any]:
    """Return what `_name` has named, as it is here."""
    here = sys.modules.get(module)
    fn = None if here is None else here.__dict__.get(name)
    return functions.resolve(module, name) if fn is None else fn


def _in_files(
    worker: Worker, data: bytes, buffers: list[pickle.PickleBuffer]
) -> tuple[bytes, object]:
    """Return (what stands in the entry's area for a pickle, the files, which are open as long)."""
    parcel = payloads.pack([buffer.raw() for buffer in buffers])
    # The places of many buffers would not fit into the area either.
    index = payloads.pack([memoryview(pickle.dumps((data, parcel.files()), 5))])
    return pickle.dumps((worker.pid, index.files()), 5), (parcel, index)


def _from_files(area: bytes) -> tuple[Any, list[memoryview]]:
    """Map what `_in_files` made. OSError: its maker is dead."""
    pid, files = pickle.loads(area)
    (index,) = payloads.fetch(pid, files)
    data, more = pickle.loads(index)
    return data, payloads.fetch(pid, more)


def call(worker: Worker, handle: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """Return (fn, x, rest) of a child that this worker has taken.

    Raises:
        DecodeError: It cannot be unpickled here.
        OSError: Its home is dead, and with it the files.
    """
    table = worker.table
    data: Any = table.read_child(handle)
    buffers: list[memoryview] = []
    kind = table.meta[handle] & ch.C_MASK
    if kind == ch.C_FILES:
        data, buffers = _from_files(data)
    references = sys.modules.get("mpsched._shm.references")
    if references is not None and kind != ch.C_PLAIN:
        references.keeping = worker.keeps_blocks = True  # type: ignore[attr-defined]
    try:
        if kind == ch.C_PLAIN:
            module, fn, x, rest = marshal.loads(data)  # noqa: S302 - as ours as a pickle
            return _find(module, fn) if module else _load(fn), x, rest
        blob, data = pickle.loads(data)
        if blob is None:
            fn, x, rest = codec.decode(data, buffers)
        else:
            # The function first: its module's namespace must be there before its arguments' classes.
            fn = _load(blob)
            x, rest = codec.decode(data, buffers)
    except DecodeError:
        raise
    except BaseException as problem:  # unpickling runs the user's code
        raise DecodeError(
            f"the function or the arguments of a child {codec.undecodable(problem)}"
        ) from problem
    finally:
        if references is not None:
            references.keeping = False  # type: ignore[attr-defined]
    return fn, x, rest


def let_go_of_blocks(worker: Worker) -> None:
    """Let go of the shared arrays of earlier children: no other child may come for them soon."""
    worker.keeps_blocks = False
    sys.modules["mpsched._shm.references"].let_go()


ODD: Final = object()
"""Stands for a value that is not plain."""


class Kept(NamedTuple):
    """Files of an outcome that home has not fetched yet."""

    ident: int
    held: object


def store(worker: Worker, handle: int, record: Away, note: str) -> int:
    """Put the outcome of a child that this worker has taken into its entry; not its state.

    Returns the state that it is to get: DONE or FAILED.
    """
    table, problem = worker.table, record.error
    data = b""
    held: Any = None
    kind = ch.O_VALUE
    if problem is None and type(record.value) in _PLAIN:
        # Nothing of the user's runs when home loads it.
        data = marshal.dumps(record.value)
        if len(data) <= table.child_bytes:
            table.write_child(handle, data)
            table.meta[handle] = ch.O_PLAIN | table.meta[handle] & ~ch.C_MASK
            return st.DONE
    if problem is None:
        try:
            kind, data, held = _value(worker, record.value)
        except (ResultEncodeError, OSError) as error:
            problem = error
    if problem is not None:
        kind, data, held = _error(worker, handle, problem, note)
    table.write_child(handle, data)
    # The rest of the word says which argument was changed (stolen.py).
    refers = held is not None and (kind == ch.O_VALUE or (kind == ch.O_VALUE_FILES and held[0]))
    flag = _HELD if refers else 0
    table.meta[handle] = kind | flag | table.meta[handle] & ~ch.C_MASK
    if held is not None:
        worker.kept[handle] = Kept(table.ident[handle], held)
    return st.DONE if problem is None else st.FAILED


def _value(worker: Worker, value: Any) -> tuple[int, bytes, object]:
    threshold = worker.settings.payload_bytes
    references = sys.modules.get("mpsched._shm.references")
    held: object = None
    if references is None:  # nobody has made or received a shared array
        data, buffers = codec.encode_result(value, threshold)
    else:
        with references.collect() as found:
            data, buffers = codec.encode_result(value, threshold)
        held = found or None
    if not buffers and len(data) <= worker.table.child_bytes:
        return ch.O_VALUE, data, held
    data, files = _in_files(worker, data, buffers)
    return ch.O_VALUE_FILES, data, (held, files)


def _error(
    worker: Worker, handle: int, problem: BaseException, note: str
) -> tuple[int, bytes, object]:
    table = worker.table
    # The root's name, as in the note: that of an entry means nothing to anybody else.
    name = worker.name_of(table.place[handle])
    data = failure.encode_exception(problem, task_id=name, note=note)
    if len(data) <= worker.table.child_bytes:
        return ch.O_ERROR, data, None
    short, files = _in_files(worker, data, [])
    return ch.O_ERROR_FILES, short, files


def let_go(worker: Worker) -> bool:
    """Close files of outcomes that nobody needs any more; True if there are none left."""
    if not worker.kept:
        return True
    table, kept = worker.table, worker.kept
    own = {st.word(st.DONE, worker.index), st.word(st.FAILED, worker.index)}
    for handle in [*kept]:
        if table.state[handle] not in own or table.ident[handle] != kept[handle].ident:
            del kept[handle]
    return not kept


class Raw(NamedTuple):
    """An outcome that is out of its entry and not unpickled yet.

    Attributes:
        changed: number of an argument that the child has changed (contract.py); None if it has not.
        held: it refers to shared arrays, which the thief holds until the entry is free.
        plain: it is of a plain type.
    """

    failed: bool
    data: Any
    buffers: list[memoryview]
    changed: int | None
    held: bool
    plain: bool


def fetch(worker: Worker, handle: int) -> Raw:
    """Take the outcome out of an entry that is DONE or FAILED; runs nothing of the user's.

    Raises:
        OSError: It was in files, and the thief is dead.
    """
    table = worker.table
    meta = table.meta[handle]
    kind = meta & ch.C_MASK
    data: Any = table.read_child(handle)
    buffers: list[memoryview] = []
    if kind in {ch.O_VALUE_FILES, ch.O_ERROR_FILES}:
        data, buffers = _from_files(data)
    return Raw(
        kind in {ch.O_ERROR, ch.O_ERROR_FILES},
        data,
        buffers,
        meta >> FUNCTION_SHIFT if meta & ch.C_CHANGED else None,
        bool(meta & _HELD),
        kind == ch.O_PLAIN,
    )


def plain_value(worker: Worker, handle: int) -> Any:
    """Return the value of an entry that is DONE if it is of a plain type, and there is no more to tell; else `ODD`.

    Runs nothing of the user's.
    """
    table = worker.table
    if table.meta[handle] != ch.O_PLAIN:
        return ODD
    return marshal.loads(table.read_child(handle))  # noqa: S302 - as ours as a pickle


def unpickle(raw: Raw) -> tuple[Any, BaseException | None]:
    """Return (value, None) or (None, error). Runs the user's code: no lock is held."""
    if raw.plain:
        return marshal.loads(raw.data), None  # noqa: S302 - as ours as a pickle
    if raw.failed:
        return None, failure.decode_exception(raw.data)
    return codec.decode_result(raw.data, raw.buffers)
