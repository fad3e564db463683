"""The array class behind `mpsched.shared_array`. Imports NumPy: import it when it is needed.

See README.md, "Shared arrays".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from mpsched._shm.references import Block, Reference

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


@final
class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in memory that several processes write: made by `mpsched.shared_array`.

    It pickles by reference, and so do views of it; what is computed from it is an ordinary array.
    """

    block: Block | None

    def __array_finalize__(self, obj: NDArray[Any] | None) -> None:
        # Called for every new array of this class: from `place` (no `obj`), for views, and for
        # results, which NumPy makes in the class of their operands.
        block = getattr(obj, "block", None)
        self.block = block if obj is not None and np.may_share_memory(self, obj) else None

    def __array_wrap__(
        self, array: NDArray[Any], context: Any = None, return_scalar: bool = False
    ) -> Any:
        # NumPy 1 does not say `return_scalar`, and wants a scalar for what has no dimensions.
        if array is self:
            return array
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar or not plain.shape else plain

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if type(found) is SharedArray and found.block is None:
            return found.view(np.ndarray)  # picked by a list or a mask: a copy
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        block = self.block
        if block is None:
            return np.asarray(self).__reduce_ex__(protocol)
        start = np.frombuffer(block.view, "u1").__array_interface__["data"][0]
        offset = self.__array_interface__["data"][0] - start
        where = (offset, self.shape, self.strides, self.dtype, bool(self.flags.writeable))
        return _received, (tuple(block.reference()), *where)


def place(
    block: Block,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    *,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    writable: bool = True,
) -> SharedArray:
    """Return an array that lies in a block.

    Raises:
        ValueError: It would reach beyond the block.
    """
    array = np.ndarray.__new__(
        SharedArray, shape, dtype, buffer=block.view, offset=offset, strides=strides
    )
    array.block = block
    array.flags.writeable = writable
    return array


def _received(
    reference: tuple[int, ...],
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    writable: bool,
) -> SharedArray:
    """Unpickle a `SharedArray`: the same memory, in whatever process this is."""
    block = Block.of(Reference(*reference))
    return place(block, shape, dtype, offset=offset, strides=strides, writable=writable)
