"""Large data on its way between two processes, each piece in a memory file of its own.

See README.md, "Payloads". The sender writes the file once; the receiver maps it privately, so it
reads without a copy, and what it writes nobody else sees.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import weakref
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Final, final

from mpsched._shm import mapping, memfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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

# The share of the process's descriptors that payloads may take with files of their own. The rest is
# the program's.
_DESCRIPTOR_SHARE: Final = 0.5

# Payloads, and bytes, after which a common file takes no more. Smaller: more descriptors. Larger:
# more memory waits for the last payload of a file to go.
_COMMON_COUNT: Final = 64
_COMMON_BYTES: Final = 64 << 20

# What payloads of this process have open. A set, since its operations cannot be interrupted.
_open_fds: set[int] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_fds.clear)  # a child closes none of them


class _File:
    """A descriptor that is closed with its last payload."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pid = os.getpid()
        _open_fds.add(fd)

    # Names are bound now: at the end of the process modules are taken apart before objects.
    def __del__(
        self,
        getpid: Callable[[], int] = os.getpid,
        close: Callable[[int], None] = os.close,
        open_fds: set[int] = _open_fds,
    ) -> None:
        # A forked child has the numbers of its parent, but not what they mean there: the template
        # closes all it does not need, and the number may be another file's by now.
        if self._pid == getpid():
            open_fds.discard(self.fd)
            close(self.fd)


@final
class _CommonFile(_File):
    """A file to which payloads are appended, for a process whose descriptors are scarce.

    No place in it is used twice, so what was written does not change here either.
    """

    def __init__(self) -> None:
        super().__init__(memfile.make_open())
        self._lock = threading.Lock()
        self._end = 0
        self._left = _COMMON_COUNT

    def reserve(self, size: int) -> int | None:
        """Return where `size` bytes go, the start of a page; None if the file takes no more."""
        with self._lock:
            if not self._left or self._end >= _COMMON_BYTES:
                return None
            self._left -= 1
            start = self._end
            self._end = start + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            return start


# The file that takes payloads at present, if one of these still lives.
_common: Callable[[], _CommonFile | None] = lambda: None  # noqa: E731 - as a reference to nothing


@final
class Payload:
    """Some buffers in a memory file; nobody changes them any more.

    It lives as long as somebody refers to it: `close` is for who wants it gone at once. A receiver's
    views do not need it.

    Attributes:
        spans: (offset, bytes) of each buffer in the file, in order.
        size: Bytes from the first buffer to the end of the last.
    """

    __slots__ = ("__weakref__", "_file", "_start", "_view", "size", "spans")

    def __init__(self, file: _File, spans: tuple[tuple[int, int], ...]) -> None:
        self._file: _File | None = file
        self._view: memoryview | None = None
        self._start = spans[0][0] if spans else 0
        self.spans = spans
        self.size = max((offset + nbytes for offset, nbytes in spans), default=0) - self._start

    @property
    def fd(self) -> int:
        """The descriptor of the file; it stays open until the payload is closed or forgotten.

        Raises:
            ValueError: It is closed.
        """
        if self._file is None:
            raise ValueError("the payload is closed")
        return self._file.fd

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode) of the file: what tells it from any other that lives."""
        return identity_of(self.fd)

    def peek(self) -> memoryview:
        """Return the bytes of the first buffer, to read. Not for an empty payload."""
        if self._view is None:
            self._view = mapping.map_readonly(self.fd, self.size, self._start)
        return self._view[: self.spans[0][1]]

    def close(self) -> None:
        """Let the file go. What others have mapped stays valid. May be called again."""
        self._file = self._view = None

    def __repr__(self) -> str:
        where = "closed" if self._file is None else f"fd {self.fd}"
        return f"<Payload of {self.size:,} bytes, {len(self.spans)} buffers, {where}>"


def create(buffers: Sequence[Buffer]) -> Payload:
    """Copy buffers into a new memory file, each at a multiple of 64 bytes.

    Raises:
        OSError: No descriptor or no memory is left; the text says how much was asked for.
        BufferError: A buffer is not contiguous.
    """
    parts, spans = _laid_out(buffers)
    size = max((offset + nbytes for offset, nbytes in spans), default=0)
    fd = memfile.make(_placed(parts, spans), size)
    return Payload(_File(fd), spans)


def create_waiting(buffers: Sequence[Buffer]) -> Payload:
    """As `create`, for a payload that may wait long beside many others.

    While payloads hold half of this process's descriptors, it goes into a file that it has in common
    with others, whose memory is given back when the last of them is gone.
    """
    if len(_open_fds) < _descriptor_limit() * _DESCRIPTOR_SHARE:
        return create(buffers)
    parts, spans = _laid_out(buffers)
    size = max((offset + nbytes for offset, nbytes in spans), default=0)
    file, start = _common_place(size)
    spans = tuple((start + offset, nbytes) for offset, nbytes in spans)
    memfile.append(file.fd, _placed(parts, spans), size)
    return Payload(file, spans)


def _common_place(size: int) -> tuple[_CommonFile, int]:
    global _common
    while True:
        file = _common()
        start = None if file is None else file.reserve(size)
        if file is not None and start is not None:
            return file, start
        fresh = _CommonFile()
        _common = weakref.ref(fresh)


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
    start = min((offset for offset, _nbytes in spans), default=0) // mmap.PAGESIZE * mmap.PAGESIZE
    size = max((offset + nbytes for offset, nbytes in spans), default=0) - start
    if not any(nbytes for _offset, nbytes in spans):
        return [memoryview(bytearray()) for _span in spans]
    get = mapping.read_copy if size < COPIED_BELOW else mapping.map_copy_on_write
    whole = get(fd, size, start)
    return [whole[offset - start : offset - start + nbytes] for offset, nbytes in spans]


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
        """Return (descriptor, spans) of each payload: what `fetch` takes in another process."""
        return [(payload.fd, payload.spans) for payload in self._payloads]

    def close(self) -> None:
        """Forget the payloads; each is freed when no other task and no cache has it."""
        self._payloads = ()


def pack(buffers: Sequence[Buffer]) -> Parcel:
    """Copy buffers into as many memory files as `split` says; see `create_waiting`."""
    return Parcel([create_waiting(group) for group in split(buffers)])


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


def _placed(
    parts: list[memoryview], spans: tuple[tuple[int, int], ...]
) -> list[tuple[int, memoryview]]:
    return [(offset, part) for (offset, _nbytes), part in zip(spans, parts, strict=True)]


def _descriptor_limit() -> float:
    with contextlib.suppress(ImportError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft
    return float("inf")
