"""Arrays that several processes write, and what `executor.share` returns.

docs/payloads.md explains both to users; _shm/README.md, "References", what keeps the memory alive.
"""

from __future__ import annotations

import math
import os
from operator import index
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from mpsched._shm import payloads, references
from mpsched._shm.references import Block, Carried, collect as collect_references
from mpsched._tasks import codec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike

    from mpsched._shm.ndarray import SharedArray

__all__ = ["Carried", "Shared", "collect_references", "shared_array", "shared_copy"]

T = TypeVar("T")


def shared_array(
    shape: int | Sequence[int], dtype: DTypeLike = float, fill: ArrayLike | None = None
) -> SharedArray:
    """Return a NumPy array whose memory every process that gets it reads and writes.

    Pass it to tasks as an argument, or use it in a function that travels by value (a lambda, a
    function of a script or notebook): it goes by reference, and so do slices and other views of it.
    Nothing orders what two tasks write to the same place: let each write its own part, and read
    after their futures are done. Its memory is freed when no process has it any more.

    Args:
        shape: As for `numpy.zeros`.
        dtype: As for `numpy.zeros`; no Python objects.
        fill: What it is filled with; None leaves it all zero.

    Raises:
        OSError: No memory is left; all of it is reserved at once.
        TypeError: `dtype` has Python objects in it.
        ImportError: NumPy is not installed.

    Example:
        >>> heights = shared_array((2, 3), "f4", fill=1.5)
        >>> float(heights.sum())
        9.0
    """
    np, ndarray = _numpy()
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(
            f"a shared array cannot hold Python objects (dtype {kind!r}): they live in one process"
        )
    sides = (index(shape),) if hasattr(shape, "__index__") else tuple(index(side) for side in shape)
    if any(side < 0 for side in sides):
        raise ValueError(f"a shared array cannot have a negative side: {sides}")
    array: SharedArray = ndarray.place(Block.create(math.prod(sides) * kind.itemsize), sides, kind)
    if fill is not None:
        array[...] = fill
    return array


def shared_copy(a: ArrayLike) -> SharedArray:
    """Return a shared array (see `shared_array`) with the shape, type and values of `a`.

    Raises:
        OSError, TypeError, ImportError: As for `shared_array`.
    """
    np, _ = _numpy()
    source = np.asarray(a)
    # An array that lies in memory column by column stays so.
    columns = source.flags.f_contiguous and not source.flags.c_contiguous
    array = shared_array(source.shape[::-1] if columns else source.shape, source.dtype)
    if columns:
        array = array.T
    array[...] = source
    return array


@final
class Shared(Generic[T]):
    """A large object sent once for many tasks: what `executor.share(obj)` returns.

    As an argument, or a global of a function that travels by value, it arrives as the object itself.
    Each task gets a copy of its own; the arrays in it share their memory until they are written.
    What the object was when it was shared is what tasks get, whatever happens to it later.

    The copy is freed when this handle is closed or forgotten and no task that got it is open.

    Example:
        >>> with Shared({"a": [1, 2]}) as handle:
        ...     handle.get()
        {'a': [1, 2]}
    """

    __slots__ = ("_copy",)

    def __init__(self, obj: T, *, threshold: int = payloads.ALONE_FROM) -> None:
        """Copy `obj`.

        Args:
            obj: Anything that could be an argument.
            threshold: Buffers with so many bytes are mapped instead of unpickled.

        Raises:
            EncodeError: `obj` cannot be pickled.
            OSError: No memory is left.
        """
        self._copy: _Copy | None = _Copy(obj, threshold)

    @property
    def nbytes(self) -> int:
        """Bytes of the copy; 0 when it is closed."""
        return 0 if self._copy is None else self._copy.nbytes

    def get(self) -> T:
        """Return the object, in a copy of the caller's own.

        Raises:
            ValueError: The handle is closed.
        """
        value: T = self._opened().load()
        return value

    def close(self) -> None:
        """Give the copy back; it is freed when the tasks that got it are over. Repeatable."""
        self._copy = None

    def __enter__(self) -> Shared[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        copy = self._opened()
        references.note(copy)
        return _received, (copy.pid, copy.files)

    def __repr__(self) -> str:
        return f"<mpsched.Shared {'closed' if self._copy is None else f'{self.nbytes:,} bytes'}>"

    def _opened(self) -> _Copy:
        if self._copy is None:
            raise ValueError(
                "this shared object is closed: submit before close(), or share it again"
            )
        return self._copy


@final
class _Copy:
    """The pickled object in memory files. The handle has it, and every open task that refers to it."""

    __slots__ = ("_held", "_payloads", "files", "nbytes", "pid")

    def __init__(self, obj: object, threshold: int) -> None:
        with collect_references() as self._held:
            data, buffers = codec.encode(obj, threshold=threshold)
        parts: list[payloads.Buffer] = [data, *buffers]
        self._payloads = [payloads.create(group) for group in payloads.split(parts)]
        self.pid = os.getpid()
        self.nbytes = sum(payload.size for payload in self._payloads)
        # As in a pickle: it is the same in a forked child, which must not look at descriptors.
        self.files = tuple((one.fd, one.identity, one.spans) for one in self._payloads)

    def load(self) -> Any:
        views = [view for one in self._payloads for view in payloads.map_private(one.fd, one.spans)]
        return codec.decode(views[0], views[1:])

    def descriptors(self) -> tuple[int, ...]:
        """See `references.Holding`."""
        return tuple(one.fd for one in self._payloads) if self.pid == os.getpid() else ()


def _received(pid: int, files: Sequence[tuple[int, tuple[int, int], payloads.Spans]]) -> Any:
    """Unpickle a `Shared`: the object that it stands for."""
    views: list[memoryview] = []
    for number, identity, spans in files:
        fd = references.open_kept(pid, number, identity)
        try:
            views += payloads.map_private(fd, spans)
        finally:
            os.close(fd)
    return codec.decode(views[0], views[1:])


def _numpy() -> tuple[Any, Any]:
    """Return NumPy and the module of its subclass, both imported at first need."""
    try:
        import numpy as np
    except ImportError as error:
        raise ImportError(
            "shared arrays need NumPy: pip install 'mpsched[numpy]'", name="numpy"
        ) from error
    from mpsched._shm import ndarray

    return np, ndarray
