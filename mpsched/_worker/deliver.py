"""Getting values and errors out of a worker: which record, and by which way.

See README.md, "Delivery". A value is in shared memory, or in a memory file that the parent's socket
holds, before its record is published; so a worker that is killed afterwards takes nothing with it.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

from mpsched._shm import payloads
from mpsched._tasks import codec, failure, records as rec, sealed
from mpsched._tasks.sealed import Sealed
from mpsched.errors import ResultEncodeError

if TYPE_CHECKING:
    from mpsched._shm.references import Holding
    from mpsched._worker.worker import Worker

_INT_MIN = -(1 << 63)
_INT_MAX = (1 << 63) - 1
_SHORT = 4096
_sent = 0


def value(worker: Worker, ident: int, handle: int, ns: int, result: Any) -> None:
    """Publish the result of a root; a result that cannot be encoded becomes that root's error."""
    # crash-point: result.made
    kind = type(result)
    results, lock = worker.results, worker.write_lock
    if result is None:
        lock.acquire()
        results.write(ident, handle, rec.R_NONE, ns)
        lock.release()
    elif kind is int and _INT_MIN <= result <= _INT_MAX:
        lock.acquire()
        results.write(ident, handle, rec.R_INT, ns, result)
        lock.release()
    elif kind is bool:
        with lock:
            results.write(ident, handle, rec.R_TRUE if result else rec.R_FALSE, ns)
    elif kind is float:
        with lock:
            results.write(ident, handle, rec.R_FLOAT, ns, result)
    elif kind is bytes and len(result) <= _SHORT and len(result) <= results.largest:
        with lock:
            results.write_payload(ident, handle, rec.R_BYTES, ns, result)
    else:
        try:
            data, buffers, held = _encoded(worker, result)
            if not buffers and not held and len(data) <= results.largest:
                with lock:
                    results.write_payload(ident, handle, rec.R_PICKLE, ns, data)
            else:
                payload, tag = _large(worker, data, buffers, held)
                with lock:
                    results.write_payload(ident, handle, rec.R_LARGE, ns, payload, tag)
        except (ResultEncodeError, OSError) as problem:
            error(worker, ident, handle, ns, problem, f"task {worker.name_of(handle)}: its result")


def seal(worker: Worker, value: Any) -> Sealed:
    """Pickle one item's result by itself, now.

    Raises:
        ResultEncodeError: it cannot be pickled.
    """
    if "mpsched._shm.references" in sys.modules:
        return Sealed(*_encoded(worker, value))
    return Sealed(*codec.encode_result(value, worker.settings.payload_bytes), [])


def part(worker: Worker, ident: int, handle: int, start: int, values: list[Any]) -> None:
    """Publish results of neighbouring map items, the first at index `start`; write lock held.

    Each is plain or `Sealed`. Never raises: what finds no memory becomes the items' error.
    """
    results = worker.results
    where = start | len(values) << 32
    try:
        data, buffers, held = sealed.pack(values)
        small = not buffers and not held and len(data) <= results.largest
        payload, tag = (data, 0) if small else _large(worker, data, buffers, held)
    except (OSError, ValueError, MemoryError) as problem:
        if len(values) == 1:
            item_error(worker, ident, handle, start, problem, f"task {ident}: its result")
            return
        # Fewer at once may find room; each for itself if need be.
        half = len(values) // 2
        part(worker, ident, handle, start, values[:half])
        part(worker, ident, handle, start + half, values[half:])
        return
    if small:
        results.write_payload(ident, handle, rec.R_PART, 0, payload, where)
        return
    body = pickle.dumps((tag, payload), 5)
    results.write_payload(ident, handle, rec.R_PART_LARGE, 0, body, where)


def error(
    worker: Worker, ident: int, handle: int, ns: int, problem: BaseException, note: str
) -> None:
    """Publish the error of a root. Never raises."""
    # crash-point: result.raised
    data = _fitting(worker, handle, problem, note)
    with worker.write_lock:
        worker.results.write_payload(ident, handle, rec.R_ERROR, ns, data)


def item_error(
    worker: Worker, ident: int, handle: int, index: int, problem: BaseException, note: str
) -> None:
    """Publish the error of one map item; write lock held. Never raises."""
    data = _fitting(worker, handle, problem, note)
    worker.results.write_payload(ident, handle, rec.R_PART_ERROR, 0, data, index | 1 << 32)


def _fitting(worker: Worker, handle: int, problem: BaseException, note: str) -> bytes:
    name = worker.name_of(handle)
    data = failure.encode_exception(problem, task_id=name, note=note)
    if len(data) > worker.results.largest:
        kind = type(problem)
        stand_in = ResultEncodeError(
            f"{kind.__module__}.{kind.__qualname__:.100} was raised, but it is {len(data):,} bytes "
            f"when pickled and an error may have {worker.results.largest:,}"
        )
        data = failure.encode_exception(stand_in, task_id=name, note=note)
    return data


def _encoded(worker: Worker, value: Any) -> tuple[bytes, list[pickle.PickleBuffer], list[Holding]]:
    """Pickle a result; return (bytes, buffers, what it refers to: shared arrays)."""
    references = sys.modules.get("mpsched._shm.references")
    if references is None:  # nobody has made or received a shared array
        return *codec.encode_result(value, worker.settings.payload_bytes), []
    with references.collect() as held:
        data, buffers = codec.encode_result(value, worker.settings.payload_bytes)
    return data, buffers, held


def _large(
    worker: Worker, data: bytes, buffers: list[pickle.PickleBuffer], held: list[Holding]
) -> tuple[bytes, int]:
    """Send memory files to the parent; return (payload of the record, tag of the files).

    Behind the payload's file go those of the shared arrays in the result: this worker may let go of
    them, or die, before the parent unpickles it.
    """
    from mpsched._shm import transfer

    global _sent
    inband = data if len(data) <= min(_SHORT, worker.results.largest // 2) else None
    parts = [buffer.raw() for buffer in buffers]
    if inband is None:
        parts.insert(0, memoryview(data))
    also = [fd for one in held for fd in one.descriptors()]
    payload = payloads.create(parts)
    try:
        _sent += 1
        # Tags grow from one process of this index to the next, as the parent's end expects.
        tag = worker.incarnation << 32 | _sent
        # The socket may be full of files that the parent has not fetched; it does when it reads the
        # records before this one.
        worker.ring_the_parent()
        transfer.send(worker.payload_socket, payload, tag, also=also)
        # crash-point: result.large.sent
        return pickle.dumps((inband, payload.spans), 5), tag
    finally:
        payload.close()
