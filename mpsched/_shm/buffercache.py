"""The same array to many tasks: written to shared memory once, if it really is the same.

See README.md, "Buffer cache". What a program holds may be changed between two submits, and a new
array may lie where a freed one lay. So a copy is used again only if every byte is equal.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from mpsched._shm import comparison, payloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpsched._shm.payloads import Buffer, Parcel, Payload

# Copies kept for arrays that no task uses at the moment. Smaller: arrays submitted in turn are
# copied again. Larger: more descriptors and more memory that holds what the program holds as well.
KEPT_BYTES: Final = 1 << 30
KEPT_COUNT: Final = 32

# Buffers that one burst remembers. Smaller: calls with several large arrays per item compare them
# again. Larger: more arrays that are needed no more are held to the end of the call.
_BURST_COUNT: Final = 8

# The end of a buffer, and bytes spread over it, by which a copy is looked up.
_EDGE: Final = 64
_SPREAD: Final = 32

_Key = tuple[int, bytes]


class _Kept(NamedTuple):
    """A copy that the cache keeps, and the memory that it was made of."""

    payload: Payload
    owner: weakref.ref[Any]
    address: int


@final
class Burst:
    """Encodings of one call whose items were all there at the start, as in `map` over a list.

    The caller hands the items over with the call, so within one burst a buffer at the same place is
    taken for the same without a look at its bytes: what the first encoding found counts. It holds
    what it has seen last, so nothing else can come to lie there.

    Not for items that are made while the call runs: a generator may fill one array again and again.

    Context:
        One thread at a time; forget it at the end of the call.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Payload, memoryview]] = {}

    def find(self, raw: memoryview, address: int) -> Payload | None:
        """Return the payload of the buffer at an address, if this burst has it."""
        seen = self._seen.get((address, raw.nbytes)) if address else None
        return None if seen is None else seen[0]

    def note(self, raw: memoryview, address: int, payload: Payload) -> None:
        """Remember a payload for later encodings of the burst."""
        if address:
            self._seen[address, raw.nbytes] = payload, raw
            if len(self._seen) > _BURST_COUNT:
                self._seen.pop(next(iter(self._seen)), None)


@final
class BufferCache:
    """Turns the out-of-band buffers of tasks into parcels, and equal ones into the same memory.

    A copy lives while a parcel has it. Beyond that it is kept while the array that it was made of
    lives, within a bound; the least recently used one goes first.

    Context:
        Parent, any thread. There is no lock: two threads at once may make two copies of one array.

    Invariants:
        PAY-5, PAY-6, PAY-7.
    """

    def __init__(self, *, kept_bytes: int = KEPT_BYTES, kept_count: int = KEPT_COUNT) -> None:
        self._kept_bytes = kept_bytes
        self._kept_count = kept_count
        # All copies that live, by what their bytes look like. One for each look is enough.
        self._known: weakref.WeakValueDictionary[_Key, Payload] = weakref.WeakValueDictionary()
        # Those that the cache itself keeps alive, the least recently used first. An owner's end
        # takes its entry out at any time, also in the middle of the code below: so no iteration
        # over it but over copies, which the interpreter makes at once, and no lock.
        self._kept: dict[_Key, _Kept] = {}
        self.copied = 0
        self.reused = 0

    def pack(self, buffers: Sequence[Buffer], burst: Burst | None = None) -> Parcel:
        """Return the parcel of a task's buffers.

        Args:
            buffers: Contiguous ones, as pickle protocol 5 hands them out.
            burst: The row of encodings that this one belongs to, if it does.

        Raises:
            OSError: No memory is left.
        """
        found = []
        for group in payloads.split(buffers):
            raw = payloads.as_bytes(group[0])
            if raw.nbytes < payloads.ALONE_FROM:
                found.append(payloads.create_waiting(group))
            else:
                found.append(self._copy_of(raw, burst))
        return payloads.Parcel(found)

    def clear(self) -> None:
        """Forget all copies; parcels keep theirs."""
        self._kept.clear()

    def discard(self, key: _Key) -> None:
        """Stop keeping one copy, if it is kept."""
        self._kept.pop(key, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies that the cache itself keeps alive."""
        return sum(kept.payload.size for kept in self._kept.copy().values())

    def _copy_of(self, raw: memoryview, burst: Burst | None) -> Payload:
        address = comparison.address_of(raw)
        if burst is not None and (payload := burst.find(raw, address)):
            self.reused += 1
            return payload
        key = _key_of(raw)
        known = self._known.get(key)
        if known is not None and comparison.equal(raw, known.peek()):
            self.reused += 1
            payload = known
        else:
            self.copied += 1
            payload = payloads.create_waiting([raw])
            self._known[key] = payload
        self._keep(key, payload, raw, address)
        if burst is not None:
            burst.note(raw, address, payload)
        return payload

    def _keep(self, key: _Key, payload: Payload, raw: memoryview, address: int) -> None:
        """Keep a copy beyond its tasks if its array can be watched, and make room for it."""
        owner = _owner_of(raw.obj)
        for other, there in self._kept.copy().items():
            same_place = there.owner() is owner and there.address == address
            if same_place and other[0] == raw.nbytes and other != key:
                # The array was changed since: nobody will ask for what it was.
                self._kept.pop(other, None)
        try:
            watch = weakref.ref(owner, functools.partial(_drop, weakref.ref(self), key))
        except TypeError:  # `bytes`, and other types of which nobody is told when they end
            return
        self._kept.pop(key, None)
        self._kept[key] = _Kept(payload, watch, address)
        for oldest in self._kept.copy():
            if len(self._kept) <= self._kept_count and self.kept_bytes <= self._kept_bytes:
                return
            self._kept.pop(oldest, None)


def _drop(cache: weakref.ref[BufferCache], key: _Key, _owner: weakref.ref[Any]) -> None:
    """Forget the copy of an array that is gone. Runs wherever the last reference to it went."""
    this = cache()
    if this is not None:
        this.discard(key)


def _key_of(raw: memoryview) -> _Key:
    """Return what a copy is looked up by: equal bytes have equal keys, others mostly have not."""
    step = max(1, raw.nbytes // _SPREAD)
    return raw.nbytes, b"".join((raw[:_EDGE], raw[-_EDGE:], bytes(raw[::step])))


def _owner_of(obj: object) -> object:
    """Return what holds the memory of an array: views of it come and go."""
    while (base := getattr(obj, "base", None)) is not None:
        obj = base
    return obj
