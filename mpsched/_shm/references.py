"""What keeps shared memory alive while a pickle on its way refers to it.

See README.md, "References". A shared array travels as (process, descriptor, identity). Whoever
pickles must keep the descriptor open until the receiver has opened it, and only who sends knows how
long that is. So pickling notes what it refers to, and who sends keeps that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

from mpsched._shm import mapping, memfile, payloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Holding(Protocol):
    """Something that keeps memory files open for as long as somebody refers to it."""

    def descriptors(self) -> tuple[int, ...]:
        """Return the files that this process itself has open; they stay so."""


class Reference(NamedTuple):
    """What stands in a pickle for a block of shared memory. Becomes a plain tuple there."""

    token: int  # drawn at random by the creator: two blocks never have the same
    size: int  # bytes
    device: int
    inode: int
    pid: int  # the process that has it open, ...
    fd: int  # ... and as what


@final
class _Local(threading.local):
    """What this thread's pickling and unpickling is part of."""

    def __init__(self) -> None:
        self.collecting: list[list[Holding]] = []
        self.carried: list[Carried] = []


_local = _Local()


@contextlib.contextmanager
def collect() -> Iterator[list[Holding]]:
    """Note everything that is pickled by reference inside, in this thread.

    Who sends the pickle keeps the list until the receiver cannot need it any more: the parent keeps
    it with the task until that is final, a worker sends its descriptors along with the result.

    Yields:
        The list, which fills up; each holding once.
    """
    found: list[Holding] = []
    _local.collecting.append(found)
    try:
        yield found
    finally:
        _local.collecting.remove(found)


def note(holding: Holding) -> None:
    """Tell all `collect` blocks of this thread that a pickle refers to `holding`."""
    for found in _local.collecting:
        if all(holding is not other for other in found):
            found.append(holding)


@final
class Block:
    """One memory file that several processes write, mapped by this one.

    Attributes:
        view: All its bytes, to read and write. What is made of it keeps the memory, but only the
            block keeps the descriptor by which others find it.
    """

    __slots__ = ("__weakref__", "_fd", "_identity", "_pid", "_size", "_token", "view")

    def __init__(self, token: int, fd: int, size: int) -> None:
        """Take over `fd`, which is closed with the block, or at once if this fails."""
        self._pid = os.getpid()
        self._fd = fd
        self._token = token
        self._size = size
        self._identity = payloads.identity_of(fd)
        self.view = mapping.map_shared(fd, size)

    @classmethod
    def create(cls, size: int) -> Block:
        """Make a new block of `size` zero bytes; all its memory is reserved.

        Raises:
            OSError: No descriptor or no memory is left.
        """
        size = max(1, size)  # there is no mapping without bytes
        token = int.from_bytes(os.urandom(8), "little")
        return _known.setdefault(token, cls(token, memfile.make_zeroed(size), size))

    @classmethod
    def of(cls, reference: Reference) -> Block:
        """Return the block that a reference from another process, or from this one, stands for.

        Raises:
            FileNotFoundError: Nobody has kept it.
            OSError: It cannot be opened or mapped.
        """
        token, size, device, inode, pid, fd = reference
        block = _known.get(token)
        if block is not None:
            return block
        mine = _carried(device, inode)
        if mine is None:
            mine = open_kept(pid, fd, (device, inode), writable=True)
        block = _known.setdefault(token, cls(token, mine, size))
        if keeping:
            _recent.append(block)
        return block

    def reference(self) -> Reference:
        """Return what stands for this block in a pickle, and tell `collect`."""
        note(self)
        # After a fork it names the process that the block comes from: the descriptors of a template
        # are closed, its parent's are not.
        return Reference(self._token, self._size, *self._identity, self._pid, self._fd)

    def descriptors(self) -> tuple[int, ...]:
        """See `Holding`."""
        return (self._fd,) if self._pid == os.getpid() else ()

    # Names are bound now: at the end of the process modules are taken apart before objects.
    def __del__(
        self,
        getpid: Callable[[], int] = os.getpid,
        close: Callable[[int], None] = os.close,
    ) -> None:
        # A forked child has its parent's number, which may mean another file by now.
        if hasattr(self, "_fd") and self._pid == getpid():
            close(self._fd)


# The blocks that this process has, by token. An array that is received twice is mapped once.
_known: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()

keeping = False
"""Whether blocks that are received now are kept until `let_go`: a worker does, for stolen children."""

_recent: Final[deque[Block]] = deque(maxlen=16)


def let_go() -> None:
    """Let go of blocks that were kept because the next child may need them, too.

    To map and unmap a large array costs more than many children of a loop over it.
    """
    _recent.clear()


if hasattr(os, "register_at_fork"):
    # A child opens what it is sent by descriptors of its own.
    os.register_at_fork(after_in_child=_known.clear)


def open_kept(pid: int, fd: int, identity: tuple[int, int], *, writable: bool = False) -> int:
    """As `payloads.open_of`, for a file that its process may have let go.

    Raises:
        FileNotFoundError: It has; the text says what to do.
    """
    try:
        return payloads.open_of(pid, fd, identity, writable=writable)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            f"the shared memory that this refers to is gone: process {pid} has freed it. Keep the "
            "shared array, or the handle that share() gave, until nobody needs it; to write an "
            "array into a file, use numpy.save",
        ) from error


@final
class Carried:
    """Copies of descriptors that came with a result, for the references in its pickle.

    The worker may free its blocks, or die, as soon as it has sent them.

    Context:
        Parent. Kept beside the result until it is unpickled, which may be much later.
    """

    __slots__ = ("_fds", "_pid")

    def __init__(self, fds: Iterable[int]) -> None:
        """Copy `fds`, which stay the caller's."""
        self._pid = os.getpid()
        self._fds: list[int] = []
        for fd in fds:
            self._fds.append(os.dup(fd))

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let what this thread unpickles inside find its blocks here."""
        _local.carried.append(self)
        try:
            yield
        finally:
            _local.carried.remove(self)

    def copy_of(self, device: int, inode: int) -> int | None:
        """Return a new descriptor of one of the files, None if it is not among them."""
        for fd in self._fds:
            if payloads.identity_of(fd) == (device, inode):
                return os.dup(fd)
        return None

    def close(
        self,
        getpid: Callable[[], int] = os.getpid,
        close: Callable[[int], None] = os.close,
    ) -> None:
        """Close the copies. What was found here stays. May be called again."""
        while self._fds:
            fd = self._fds.pop()
            if self._pid == getpid():
                close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fds"):
            self.close()


def _carried(device: int, inode: int) -> int | None:
    for carried in _local.carried:
        fd = carried.copy_of(device, inode)
        if fd is not None:
            return fd
    return None
