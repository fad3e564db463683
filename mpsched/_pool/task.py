"""One accepted task, as the parent keeps it until its future is final."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from mpsched._pool.options import DEFAULT

if TYPE_CHECKING:
    from mpsched._pool.future import Future
    from mpsched._pool.mapping import MapRun
    from mpsched._pool.options import Options


@final
class Task:
    """A root: a call, or a piece of a map.

    Attributes:
        id: unique for the life of the pool, never 0.
        meta: META word without the attempt (table.py).
        frame: the bytes that every attempt sees.
        holds: what must live until the task is final (payload files, shared arrays, handles).
        options: how to run it.
        attempt: number of the run that is queued or running, from 1.
        handle: entry in the task table while dispatched, else -1.
        place: where its frame lies in the slab while dispatched, 0 = inline.
        cancelled: nobody wants it; skipped where it is met in the ready queue.
        future: its outcome; None for a piece of a map.
        run, start, end, items: the map that a piece belongs to, its items and their indices.
        parts: first indices of the blocks of its results that came.
        killed: why its worker is being ended ("timeout", "cancel", "memory"), or None.
        why: the same in words, where there is more to say.
    """

    # Read where an instance has not been given its own: most tasks never need more than these.
    attempt = 1
    handle = -1
    place = 0
    cancelled = False
    killed: str | None = None
    why: str | None = None
    key: float | None = None  # its place in a queue with aging
    holds: Any = None
    options: Options = DEFAULT
    future: Future[Any] | None = None
    run: MapRun | None = None
    start: int
    end: int
    items: Any
    parts: list[int]

    def __init__(self, ident: int, meta: int, frame: bytes, options: Options | None = None) -> None:
        self.id = ident
        self.meta = meta
        self.frame = frame
        if options is not None:
            self.options = options

    def describe(self) -> str:
        """Return "task 17 'name'" for messages; of a scheduled one what its future says."""
        future = self.future
        if future is not None and (told := future._label) is not None:
            return told
        name = self.options.name
        return f"task {self.id} {name!r}" if name else f"task {self.id}"
