"""The task table: one entry per dispatched root or published child, its words side by side per field.

See README.md, "Table". The parent's partition first, then one partition per worker for the children
that it has published (children.py). A burst of roots gets neighbouring entries, so that each field
of the whole burst is one slice.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from mpsched._shm.layout import Layout

# --- META word: kind | flags << 4 | attempt << 8 | function number << 24 ---------------------------
KIND_ARGS: Final = 1  #   frame = pickle of args
KIND_PLAIN: Final = 5  #  frame = `marshal` of args, each of a plain type
KIND_CALL: Final = 2  #   frame = pickle of (args, kwargs)
KIND_VALUE: Final = 3  #  frame = pickle of (function bytes or None, False, encoded (args, kwargs))
KIND_CHUNK: Final = (
    4  #  frame = pickle of (function bytes or None, star, encoded items): a piece of a map
)
KIND_MASK: Final = 15
FLAG_EXTERNAL: Final = (
    16  # the frame is a pickle of (in-band bytes or None, ((fd, spans), ...)) of the
)
#                            parent's payload files; None: the first span is the in-band bytes
FLAG_TIMED: Final = (
    32  #    the worker writes STARTED, so that the parent can watch a time limit, and
)
#                            looks at KILL after the run
# The frame is a pickle of (seed or None, time limit ns or 0, whether it blocks, version of a schedule or
# 0, what is sent of the id there (origin.py), real frame).
FLAG_CONTEXT: Final = 64
FLAG_RERUN: Final = (
    128  #   retries are left for a death: a child that died with its thief may run again
)
ATTEMPT_SHIFT: Final = 8
FUNCTION_SHIFT: Final = 24

INLINE: Final = 0
"""PLACE word of a frame that lies in the entry's own inline area; else its byte offset in the slab."""


@final
class TaskTable:
    """Views of the fields, as any process of the pool sees them; index = handle.

    Attributes:
        state: state words (see state.py).
        cancel: 1 = cancellation was requested. Writer: parent.
        ident: task id, unique for the life of the pool, never 0. Writer: parent.
        meta: kind, flags, attempt, function number. Writer: parent.
        length: bytes of the frame. Writer: parent.
        place: INLINE or offset of the frame in the slab. Writer: parent.
        started: monotonic ns at which a FLAG_TIMED root started, 0 before. Writer: the worker.
        root: run key of the root that a child belongs to. Writer: home.
        below: ident from which on the children of a child's thief are below that child. Writer: the
            thief.

    Children's entries use the other fields as children.py says.
    """

    __slots__ = (
        "_bytes",
        "_child_area",
        "_inline",
        "_slab",
        "below",
        "cancel",
        "child_bytes",
        "entries",
        "ident",
        "inline_bytes",
        "length",
        "meta",
        "place",
        "root",
        "started",
        "state",
    )

    def __init__(self, data: memoryview, words: memoryview, layout: Layout) -> None:
        def field(start: int) -> memoryview:
            return words[start : start + layout.total]

        self.entries = layout.entries
        self.inline_bytes = layout.inline_bytes
        self.child_bytes = layout.child_bytes
        self.state = field(layout.state)
        self.cancel = field(layout.cancel)
        self.ident = field(layout.ident)
        self.meta = field(layout.meta)
        self.length = field(layout.length)
        self.place = field(layout.place)
        self.started = field(layout.started)
        self.root = field(layout.root)
        self.below = field(layout.below)
        self._bytes = data
        self._inline = layout.inline * 8
        self._slab = layout.slab * 8
        # Where a child with handle 0 would have its area.
        self._child_area = layout.child_area * 8 - layout.entries * layout.child_bytes

    def close(self) -> None:
        """Let go of the segment, which cannot be unmapped before. The parent, at the pool's end."""
        for view in (
            self.state,
            self.cancel,
            self.ident,
            self.meta,
            self.length,
            self.place,
            self.started,
            self.root,
            self.below,
        ):
            view.release()

    def write_frame(self, handle: int, frame: bytes, place: int) -> None:
        """Store a frame at `place`; the parent does, before the state word becomes QUEUED."""
        size = len(frame)
        at = self._inline + handle * self.inline_bytes if place == INLINE else self._slab + place
        self._bytes[at : at + size] = frame
        self.length[handle] = size
        self.place[handle] = place

    def write_frames(self, first: int, frames: list[bytes]) -> None:
        """Store frames that fit inline into the entries from `first` on."""
        size = self.inline_bytes
        at = self._inline + first * size
        count = len(frames)
        self._bytes[at : at + count * size] = b"".join([f.ljust(size, b"\0") for f in frames])
        self.length[first : first + count] = array("Q", list(map(len, frames)))
        self.place[first : first + count] = array("Q", [INLINE]) * count

    def run_key(self, handle: int) -> int:
        """Return what the REVOKE word calls the run that this entry is for: task id and attempt.

        A handle alone would also name whichever task has the entry next.
        """
        return int(self.ident[handle]) << 16 | (self.meta[handle] >> ATTEMPT_SHIFT) & 0xFFFF

    def read_frame(self, handle: int) -> bytes | memoryview:
        """Return the frame; a copy where it is small, a view into the slab where it is not.

        Valid until the entry is DONE. Called by the worker that runs it.
        """
        size = self.length[handle]
        place = self.place[handle]
        if place == INLINE:
            at = self._inline + handle * self.inline_bytes
            return bytes(self._bytes[at : at + size])
        at = self._slab + place
        return self._bytes[at : at + size]

    def write_child(self, handle: int, data: bytes) -> None:
        """Store a child's frame or outcome; home does before QUEUED, the thief before DONE or FAILED.

        Raises:
            ValueError: It is larger than `child_bytes`, and would reach into the next child's.
        """
        size = len(data)
        if size > self.child_bytes:
            raise ValueError(f"{size} bytes in a child's area of {self.child_bytes}")
        at = self._child_area + handle * self.child_bytes
        self._bytes[at : at + size] = data
        self.length[handle] = size

    def read_child(self, handle: int) -> bytes:
        """Return a copy of what `write_child` stored last. Thief, once CLAIMED; home, once DONE."""
        at = self._child_area + handle * self.child_bytes
        return bytes(self._bytes[at : at + min(self.length[handle], self.child_bytes)])
