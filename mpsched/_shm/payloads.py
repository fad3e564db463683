"""Large data on its way between two processes, each piece in a memory file of its own.

See README.md, "Payloads". The sender writes the file once; the receiver maps it privately, so it
reads without a copy, and what it writes nobody else sees.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Final, final

from mpsched._shm import mapping, memfile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Buffer = bytes | bytearray | memoryview | PickleBuffer
    # (offset, bytes) of each buffer in its file, in order.
    Spans = Sequence[tuple[int, int]]

# Every buffer starts at a multiple of it: a cache line, and enough for any vector instruction.
ALIGNMENT: Final = 64

# A file with fewer bytes is copied by its receiver instead of mapped. Smaller: a process that keeps
# many small arrays runs out of mappings (65,530 in Linux). Larger: more is copied, and below about
# a megabyte a copy costs no more than the page faults of a mapping.
COPIED_BELOW: Final = 1 << 20

# A buffer of at least so many bytes gets a file of its own; smaller neighbours share one. Smaller:
# more descriptors. Larger: a view that is kept keeps more of its neighbours.
ALONE_FROM: Final = 1 << 20

# The share of the process's descriptors that waiting payloads may take. The rest is the program's.
_DESCRIPTOR_SHARE: Final = 0.5

# What payloads of this process have open. A set, since its operations cannot be interrupted.
_open_fds: set[int] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_fds.clear)  # a child closes none of them


@final
class Payload:
    """One memory file that holds some buffers; nobody can change it any more.

    It lives as long as somebody refers to it: `close` is for who wants it gone at once. A receiver's
    views do not need it.

    A *parked* payload has no descriptor yet, only a copy of the buffers: it waits for its turn in a
    process whose descriptors are scarce, and gets one when `fd` is first asked for.

    Attributes:
        spans: (offset, bytes) of each buffer, in order.
        size: Bytes of the file.
    """

    __slots__ = ("__weakref__", "_fd", "_parts", "_pid", "_view", "size", "spans")

    def __init__(self, parts: Sequence[memoryview], spans: tuple[tuple[int, int], ...]) -> None:
        self._pid = os.getpid()
        self._fd = -1
        self._view: memoryview | None = None
        self._parts: Sequence[memoryview] | None = parts
        self.spans = spans
        self.size = max((offset + nbytes for offset, nbytes in spans), default=0)

    @property
    def fd(self) -> int:
        """The descriptor of the file; it stays open until the payload is closed or forgotten.

        Context:
            One thread at a time, until it was asked for once.

        Raises:
            OSError: The payload was parked, and no descriptor or no memory is left.
            ValueError: It is closed.
        """
        if self._fd < 0:
            self.make_file()
        return self._fd

    def make_file(self) -> None:
        """Write the file; raises and may be called as `fd` says."""
        if self._parts is None:
            raise ValueError("the payload is closed")
        starts = [offset for offset, _nbytes in self.spans]
        fd = memfile.make(list(zip(starts, self._parts, strict=True)), self.size)
        _open_fds.add(fd)
        self._fd = fd
        self._parts = None

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode) of the file: what tells it from any other that lives."""
        return identity_of(self.fd)

    def peek(self) -> memoryview:
        """Return the bytes of the first buffer, to read. Not for an empty payload."""
        if self._parts is not None:
            return self._parts[0]
        if self._view is None:
            self._view = mapping.map_readonly(self.fd, self.size)
        return self._view[: self.spans[0][1]]

    def close(self) -> None:
        """Close the descriptor. What others have mapped stays valid. May be called again."""
        fd, self._fd = self._fd, -1
        self._parts = self._view = None
        # A forked child has the numbers of its parent, but not what they mean there: the template
        # closes all it does not need, and the number may be another file's by now.
        if fd >= 0 and self._pid == os.getpid():
            _open_fds.discard(fd)
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()

    def __repr__(self) -> str:
        state = "parked" if self._parts is not None else f"fd {self._fd}"
        return f"<Payload of {self.size:,} bytes, {len(self.spans)} buffers, {state}>"


def create(buffers: Sequence[Buffer]) -> Payload:
    """Copy buffers into a new memory file, each at a multiple of 64 bytes.

    Raises:
        OSError: No descriptor or no memory is left; the text says how much was asked for.
        BufferError: A buffer is not contiguous.
    """
    payload = Payload(*_laid_out(buffers))
    payload.make_file()
    return payload


def create_or_park(buffers: Sequence[Buffer]) -> Payload:
    """As `create`, but wait with the file while payloads hold half of this process's descriptors.

    Context:
        The sender of data that may wait long. Who takes it asks for `fd` when it is its turn.
    """
    parts, spans = _laid_out(buffers)
    if len(_open_fds) < _descriptor_limit() * _DESCRIPTOR_SHARE:
        payload = Payload(parts, spans)
        try:
            payload.make_file()
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        else:
            return payload
    return Payload([_kept(part) for part in parts], spans)


def split(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
    """Group buffers into files, in order: large ones alone, smaller neighbours together.

    What a receiver keeps of a file keeps all of it.
    """
    groups: list[list[Buffer]] = []
    room = False  # the last group takes another small one
    for buffer in buffers:
        small = memoryview(buffer).nbytes < ALONE_FROM
        if small and room:
            groups[-1].append(buffer)
        else:
            groups.append([buffer])
        room = small
    return groups


def map_private(fd: int, spans: Spans) -> list[memoryview]:
    """Return a writable view of each buffer in a memory file; nobody else sees what is written.

    Large files are mapped copy-on-write and share their memory with every other receiver until they
    are written. `fd` may be closed afterwards. Views keep what they show for as long as they live.

    Raises:
        ValueError: The file is smaller than the spans say.
        OSError: No memory is left.
    """
    size = max((offset + nbytes for offset, nbytes in spans), default=0)
    if not size:
        return [memoryview(bytearray()) for _span in spans]
    whole = (mapping.read_copy if size < COPIED_BELOW else mapping.map_copy_on_write)(fd, size)
    return [whole[offset : offset + nbytes] for offset, nbytes in spans]


def open_of(
    pid: int, fd: int, identity: tuple[int, int] | None = None, *, writable: bool = False
) -> int:
    """Return a descriptor of this process for what another one has open; the caller closes it.

    Args:
        pid: The other process, of the same user; it must live and keep `fd` open meanwhile.
        fd: The descriptor's number there.
        identity: What the file must be, if the other side might have closed it since.
        writable: Whether it is to be mapped shared and written; a payload cannot.

    Raises:
        FileNotFoundError: The process or its descriptor is gone, or is another file now.
        OSError: It cannot be opened: no descriptor is left, or `/proc` does not allow it.
    """
    path = f"/proc/{pid}/fd/{fd}"
    mine = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    if identity is not None and identity_of(mine) != identity:
        os.close(mine)
        raise FileNotFoundError(errno.ENOENT, "process closed the file that it had there", path)
    return mine


def identity_of(fd: int) -> tuple[int, int]:
    """Return (device, inode) of an open file."""
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


def fetch(pid: int, files: Iterable[tuple[int, Spans]]) -> list[memoryview]:
    """Map what another process has in its memory files; see `open_of` and `map_private`.

    Args:
        pid: The process that has them open.
        files: (descriptor there, spans) of each, see `Parcel.files`.
    """
    views: list[memoryview] = []
    for number, spans in files:
        fd = open_of(pid, number)
        try:
            views += map_private(fd, spans)
        finally:
            os.close(fd)
    return views


@final
class Parcel:
    """The payloads of one task, in order. Who keeps it keeps them.

    Attributes:
        nbytes: Bytes of all of them.
    """

    __slots__ = ("_payloads", "nbytes")

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self._payloads = tuple(payloads)
        self.nbytes = sum(payload.size for payload in payloads)

    def files(self) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """Return (descriptor, spans) of each payload: what `fetch` takes in another process.

        Call it when the task is dispatched, not before: parked payloads get their files here.

        Raises:
            OSError: No descriptor or no memory is left for a parked payload. With `EMFILE`, it works
                again when another task of this process has ended.
        """
        return [(payload.fd, payload.spans) for payload in self._payloads]

    def close(self) -> None:
        """Forget the payloads; each is freed when no other task and no cache has it."""
        self._payloads = ()


def pack(buffers: Sequence[Buffer]) -> Parcel:
    """Copy buffers into as many memory files as `split` says; see `create_or_park`."""
    return Parcel([create_or_park(group) for group in split(buffers)])


def _laid_out(
    buffers: Sequence[Buffer],
) -> tuple[list[memoryview], tuple[tuple[int, int], ...]]:
    parts = [as_bytes(buffer) for buffer in buffers]
    spans = []
    end = 0
    for part in parts:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        end = offset + part.nbytes
        spans.append((offset, part.nbytes))
    return parts, tuple(spans)


def as_bytes(buffer: Buffer) -> memoryview:
    """Return a flat view of a buffer's bytes, in the order they have in memory."""
    if isinstance(buffer, memoryview) and buffer.format == "B" and buffer.ndim == 1:
        if not buffer.contiguous:
            raise BufferError("the buffer is not contiguous")
        return buffer
    return PickleBuffer(buffer).raw()


def _kept(part: memoryview) -> memoryview:
    """Return a copy that is not in the way of the small objects' allocator."""
    if not part.nbytes:
        return part
    copy = memoryview(mmap.mmap(-1, part.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    copy[:] = part
    return copy


def _descriptor_limit() -> float:
    with contextlib.suppress(ImportError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft
    return float("inf")
