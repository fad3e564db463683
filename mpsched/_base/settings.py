"""A pool's constants, each with what is lost when it is larger or smaller.

Tests shrink them, so that wrap-around, full rings and refills happen in every run.
"""

from typing import NamedTuple


class Settings(NamedTuple):
    """The constants of one pool; equal in the parent and in all its workers.

    A pool calls `check`. (A named tuple: `dataclasses` costs a worker 15 ms at its start.)
    """

    # Roots that may be dispatched at once, for each worker; a power of two. Smaller: windows of tiny
    # tasks run dry while the parent is busy. Larger: more lies where only a revoke reaches it.
    entries_per_worker: int = 1024

    # Most roots dispatched ahead to one worker.
    window: int = 512

    # Slots of a worker's inbox; a power of two, larger than `window` (roots are given back too).
    inbox_slots: int = 1024

    # Bytes of a worker's result ring; a power of two. Smaller: a worker waits for the parent in a
    # burst of results. Larger: memory per worker, touched only as far as it is used.
    result_ring_bytes: int = 1 << 20

    # Bytes of a frame that lies in its entry. Smaller: more frames go through the slab. Larger:
    # memory per entry.
    inline_bytes: int = 192

    # Bytes of shared memory for frames that do not fit in their entry, and of the largest of them;
    # larger ones get a memory file of their own (40 us).
    slab_bytes: int = 16 << 20
    slab_most_bytes: int = 64 << 10

    # Buffers of at least so many bytes travel in memory of their own, mapped by the receiver.
    # Smaller: a memory file and two system calls for little data. Larger: bytes are copied twice.
    payload_bytes: int = 64 << 10

    # Children of a worker that may be published at once, and slots of their ring; powers of two.
    # Smaller: a worker that joins its children oldest first publishes fewer at a time. Larger: memory
    # per worker.
    children: int = 256
    ring_slots: int = 256

    # Bytes of a child's arguments, or of its result, that lie in its entry. Smaller: more of them get
    # a memory file of their own (40 us). Larger: memory, as many times as there are such entries.
    child_bytes: int = 4096

    # Most workers that stand in for blocked ones, and no more than the pool's width; 0: none. Smaller:
    # more cores idle while tasks block. Larger: four descriptors each for every pool, used or not.
    max_spares: int = 4

    # Seconds of work that a worker is given ahead, at least. Smaller: it runs dry while the parent is
    # busy. Larger: what was submitted later with a higher priority waits longer.
    ahead_s: float = 0.002

    # Seconds of work that a worker claims at once. Smaller: a lock for every task. Larger: more lies
    # in one worker's hands behind a task that takes long.
    claim_s: float = 0.000_2

    # Seconds after which finished results leave a busy worker, and map items are delivered singly.
    flush_s: float = 0.001

    # Seconds below which items of a map are run in blocks of `flush_s`: their starts are recorded
    # together, and a killed worker fails the whole block. Smaller: the loop costs more than the items.
    short_s: float = 0.000_25

    # Items of a piece that are run singly before that, however short they are. Smaller: an item that
    # kills its worker fails more of a short map. Larger: more of a long one is run slowly.
    singles_first: int = 64

    # Seconds of work in one piece of a map. Smaller: the parent is asked more often. Larger: more
    # lies behind an item that takes long.
    chunk_s: float = 0.050

    # Seconds after which the parent is told of results of maps, whoever has them; at once if an item
    # took twice as long, or if the worker has nothing more to do. Smaller: the parent is woken more
    # often, and takes a core from a worker each time. Larger: who iterates waits longer.
    tell_s: float = 0.020

    # Seconds after which a thief without work rings the helper of a worker that has more than it
    # runs. Smaller: the helper disturbs work that is nearly done. Larger: others idle behind a long
    # task.
    patience_s: float = 0.002

    # Seconds for which who waits for tasks of that length stays awake before it sleeps: the worker for
    # the next task, the leader for the result. Smaller: a wake-up, some tens of microseconds, for
    # each. Larger: a core is kept from others for nothing.
    linger_s: float = 0.000_15

    # The same for who waits for a child of a task. Longer: to publish one costs its home some hundred
    # microseconds when it has not done so for a while, and the code is in no cache any more.
    fork_linger_s: float = 0.000_5

    # Seconds that a parked worker sleeps at first and at most before it looks by itself. Only a lost
    # wake-up would need it. Smaller: an idle pool uses CPU time. Larger: such a loss is felt.
    park_first_s: float = 0.1
    park_most_s: float = 5.0

    # Seconds for which the pool waits until a task that has ended a worker for memory can run with no
    # other beside it; then it runs beside what still does. Smaller: two such tasks may meet again.
    # Larger: one task that never ends keeps all others waiting.
    alone_s: float = 60.0

    def check(self) -> None:
        """Make sure that the constants fit each other.

        Raises:
            ValueError: A ring size is not a power of two, or a size is not positive.
        """
        for name in (
            "entries_per_worker",
            "inbox_slots",
            "result_ring_bytes",
            "children",
            "ring_slots",
        ):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"Settings.{name} must be a power of two and at least 2: {value}")
        if self.result_ring_bytes < 4096:
            # A record takes a quarter at most, and an error that replaces a larger one must fit.
            raise ValueError(
                f"Settings.result_ring_bytes must be at least 4096: {self.result_ring_bytes}"
            )
        for name in (
            "window",
            "inline_bytes",
            "slab_bytes",
            "slab_most_bytes",
            "payload_bytes",
            "child_bytes",
            "ahead_s",
            "claim_s",
            "flush_s",
            "short_s",
            "singles_first",
            "chunk_s",
            "tell_s",
            "patience_s",
            "linger_s",
            "fork_linger_s",
            "park_first_s",
            "park_most_s",
            "alone_s",
        ):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"Settings.{name} must be positive: {value}")
        if self.max_spares < 0:
            raise ValueError(f"Settings.max_spares must not be negative: {self.max_spares}")
        if self.park_first_s > self.park_most_s:
            raise ValueError(
                f"Settings.park_first_s ({self.park_first_s}) must not exceed "
                f"park_most_s ({self.park_most_s})"
            )
        if self.window >= self.inbox_slots:
            raise ValueError(
                f"Settings.window ({self.window}) must be smaller than "
                f"inbox_slots ({self.inbox_slots})"
            )
