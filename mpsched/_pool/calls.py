"""From a Python call to the frame of a root. See README.md, "Submit"."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple, final

from mpsched._pool.task import Task
from mpsched._pool.valuecache import ValueCache
from mpsched._shm import payloads
from mpsched._shm.buffercache import BufferCache, Burst
from mpsched._tasks import codec, table as tab
from mpsched._tasks.names import FunctionWriter
from mpsched._tasks.sealed import Sealed
from mpsched.errors import WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._base.settings import Settings
    from mpsched._pool.options import Options
    from mpsched._shm.layout import Layout
    from mpsched._shm.segment import Segment


class Callee(NamedTuple):
    """A function as workers find it: by number, or by value (`blob`)."""

    number: int
    blob: bytes | None
    holds: Any


@final
class Calls:
    """Makes tasks. Any thread; user code (`__reduce__`) runs here, under no lock.

    Attributes:
        numbers: functions that have a number; a cache in front of the function table.
        next_id: returns a task id.
    """

    def __init__(self, segment: Segment, layout: Layout, settings: Settings) -> None:
        self._settings = settings
        self._writer = FunctionWriter(segment.bytes, segment.words, layout)
        self._values = ValueCache(self._writer)
        self._ids = itertools.count(1)
        self.next_id = self._ids.__next__
        self._cache = BufferCache()
        self.numbers: dict[Callable[..., Any], int] = {}

    def clear(self) -> None:
        """Let go of the copies of arrays that were kept for being sent again."""
        self._cache.clear()

    def number(self, fn: Callable[..., Any]) -> int:
        """Return the number of a function that workers can find by one, else 0."""
        try:
            known = self.numbers.get(fn)
        except TypeError:  # not hashable, so no function
            return 0
        if known is not None:
            return known
        number = self._writer.number(fn)
        if number:
            self.numbers[fn] = number
            return number
        return self._values.number(fn)

    def known_number(self, fn: Callable[..., Any]) -> int:
        """Return the number of a function if it has one already, else 0; cheaper than `number`."""
        try:
            return self.numbers.get(fn) or self._values.number(fn)
        except TypeError:  # not hashable, so no function
            return 0

    def callee(self, fn: Callable[..., Any]) -> Callee:
        """Return how workers find `fn`.

        Raises:
            EncodeError: it can be sent neither by name nor by value.
        """
        number = self.number(fn)
        if number:
            return Callee(number, None, None)
        return Callee(0, *self._values.dumps(fn))

    def encode(self, values: Any, *, label: str = "call") -> Sealed:
        """Pickle arguments or items; large buffers stay out of band.

        Raises:
            EncodeError: something in them cannot be pickled.
        """
        return Sealed(*codec.encode_held(values, self._settings.payload_bytes, label=label))

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        index: int = 0,
    ) -> Task:
        """Make the task of one call, whatever the function and the arguments are.

        `index` is its place in the batch: with `options.rng` it selects its random stream.

        Raises:
            EncodeError: the function or an argument cannot be pickled.
        """
        callee = self.callee(fn)
        encoded = self.encode((args, kwargs))
        if callee.number:
            meta = tab.KIND_CALL | callee.number << tab.FUNCTION_SHIFT
            return self.task(meta, encoded.data, encoded, options, index=index)
        frame = pickle.dumps((callee.blob, False, encoded.data), 5)
        return self.task(tab.KIND_VALUE, frame, encoded, options, callee.holds, index)

    def task(
        self,
        meta: int,
        frame: bytes,
        encoded: Sealed,
        options: Options,
        also: Any = None,
        index: int = 0,
        burst: Burst | None = None,
    ) -> Task:
        """Make a task of a frame; moves what is large into payload files.

        The task keeps `encoded.holds` and `also` alive until it is final.
        """
        holds: list[Any] = [one for one in (encoded.holds, also) if one]
        files: list[tuple[int, Any]] = []
        if encoded.buffers:
            parcel = self._cache.pack(encoded.buffers, burst)
            holds.append(parcel)
            files.extend(parcel.files())
        inband: bytes | None = frame
        if len(frame) > self._settings.slab_most_bytes // 2:
            payload = payloads.create_waiting([frame])
            holds.append(payload)
            files.insert(0, (payload.fd, payload.spans))
            inband = None
        if files:
            meta |= tab.FLAG_EXTERNAL
            frame = pickle.dumps((inband, tuple(files)), 5)
        seed = f"{options.rng}/{index}" if options.rng is not None else None
        if options.timeout is not None or options.on_cancel == "kill":
            meta |= tab.FLAG_TIMED
        if options.retries and issubclass(WorkerDied, options.retry_on):
            meta |= tab.FLAG_RERUN
        if seed is not None or options.timeout is not None or options.blocking:
            meta |= tab.FLAG_CONTEXT
            frame = in_context(frame, options, seed)
        task = Task(next(self._ids), meta, frame, options)
        task.holds = holds or None
        return task


def in_context(
    frame: bytes, options: Options, seed: str | None = None, version: int = 0, who: Any = None
) -> bytes:
    """Return the frame of a FLAG_CONTEXT task: what the task can ask about itself, and `frame`."""
    limit = 0 if options.timeout is None else int(options.timeout * 1e9)
    return pickle.dumps((seed, limit, options.blocking, version, who, frame), 5)


# The same in two parts, with eight bytes for the version between them: so all but the version is made once,
# before its time. Protocol 3: it has no opcode that says how long what follows is.


def before_version(options: Options) -> bytes:
    """Return the frame of a FLAG_CONTEXT task that has no seed, up to its version (eight bytes, little-endian)."""
    limit = 0 if options.timeout is None else int(options.timeout * 1e9)
    opened = pickle.PROTO + b"\x03" + pickle.MARK + pickle.NONE
    limit_and_blocks = pickle.dumps(limit, 3)[2:-1] + pickle.dumps(options.blocking, 3)[2:-1]
    return opened + limit_and_blocks + pickle.LONG1 + b"\x08"


def after_version(who: Any, frame: bytes) -> bytes:
    """Return what comes behind the version."""
    size = len(frame).to_bytes(4, "little")
    return b"%bB%b%bt." % (pickle.dumps(who, 3)[2:-1], size, frame)  # BINBYTES, TUPLE, STOP
