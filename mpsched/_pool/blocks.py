"""What comes back from a piece of a map: results of neighbouring items. See README.md, "Map"."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

from mpsched._tasks import sealed
from mpsched._tasks.sealed import Row
from mpsched.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpsched._pool.task import Task
    from mpsched._shm.references import Carried


@final
class Results:
    """Packed rows of values, as they came; unpickled in the consumer's thread.

    `carried` has the descriptors of shared arrays among the values.
    """

    __slots__ = ("_buffers", "_carried", "_data")

    def __init__(self, data: list[Any], buffers: Sequence[Any], carried: Carried | None) -> None:
        self._data = data
        self._buffers = buffers
        self._carried = carried

    def numbers(self) -> list[Any] | None:
        """Return all values, if they are numbers or tuples of them; else None."""
        values: list[Any] = []
        load, mark = sealed.load_numbers, sealed.MARSHALLED
        for data in self._data:
            if data[0] != mark:
                return None
            values += load(data)
        return values

    def rows(self) -> Iterator[Row]:
        """Open the rows one by one."""
        for data in self._data:
            yield Row(data, self._buffers)

    def each(self, row: Row) -> Iterator[tuple[Any, DecodeError | None]]:
        """Yield (value, None), or (None, why it cannot be unpickled), one by one."""
        for index in range(len(row)):
            with self._carried.used() if self._carried else contextlib.nullcontext():
                try:
                    outcome: tuple[Any, DecodeError | None] = row.load(index), None
                except DecodeError as error:
                    outcome = None, error
            yield outcome


@final
class Block:
    """`count` neighbouring items from `start` on: their results, or the one `error()`.

    Attributes:
        task: the piece that it came from, while its record may be seen again; else None.
        read: nobody needs its content any more.
    """

    __slots__ = ("count", "error", "read", "results", "start", "task")

    def __init__(
        self,
        task: Task | None,
        start: int,
        count: int,
        results: Results | None,
        error: Callable[[], BaseException] | None,
    ) -> None:
        self.task = task
        self.start = start
        self.count = count
        self.results = results
        self.error = error
        self.read = False
