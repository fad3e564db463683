"""Where everything lies in the segment: one table for every word.

See README.md, "Layout". All offsets are in 8-byte words unless the name says bytes. "Writer" is the
only process that stores to the word at that time; everybody may read.
"""

from typing import Final, NamedTuple

MAGIC: Final = int.from_bytes(b"MPSCHED1", "little")

# --- header, 32 words ---------------------------------------------------------------------------
#   word  name            writer   meaning
H_MAGIC: Final = 0  #      parent   MAGIC
H_WORKERS: Final = 1  #    parent   number of workers, spares included
H_LIVE: Final = (
    2  #       parent   workers from 0 on that have ever been started: at least all but spares
)
H_WAIT: Final = 8  #       parent   who is to be woken for results (see Waiting below)
H_SOON: Final = 16  #      parent   monotonic ns until which a worker that is woken stays awake
HEADER_WORDS: Final = 32

WAIT_NOBODY: Final = 0  #   a leader is awake: it looks at every ring before it sleeps
WAIT_LEADER: Final = 1  #   the leader sleeps: wake it
WAIT_COLLECTOR: Final = 2  # nobody leads: wake the collector

# --- worker block, 64 words each; written by the worker, but for 24 to 31 and 56 to 63 ---------------
B_INCARNATION: Final = 0  # which process of this index; 0 = none yet
B_STATE: Final = 1  #       IDLE states below
B_CLAIMED: Final = 3  #     roots claimed and not started
B_EXECUTED: Final = 4  #    roots finished
B_ITEMS: Final = 5  #       map items finished
B_BUSY_NS: Final = 6  #     nanoseconds in user code
B_STEALS: Final = 7  #      successful steals
B_STEAL_ATTEMPTS: Final = 8
B_STOLEN: Final = 9  #      roots taken by steals
B_PARKS: Final = 10
B_RESCUES: Final = 11  #    parks ended by the safety timeout with work waiting
B_LOCKS: Final = 12  #      ring locks taken
B_CONTENDED: Final = 13  #  of these, not free at once
B_PROGRESS: Final = 14  #   map: items of the running chunk that were started
B_UNSENT: Final = 15  #     map: finished items whose results are not in the ring yet
B_LEFT: Final = 16  #       map: items of the running chunk not started
B_FLUSH_NS: Final = 17  #   monotonic time of the last wake-up sent to the parent
B_RETURNED: Final = 18  #   roots given back to the inbox from behind a long one
B_SPLITS: Final = 19  #     map: chunks split for an idle worker
B_TOLD: Final = 20  #       tail of the result ring when the parent was last told of results
B_PARENT: Final = 24  #     words 24 to 31 are written by the parent
B_STOP: Final = 24  #       1 = leave when nothing is left to run
B_REVOKE: Final = 25  #     run (TaskTable.run_key) that the parent wants back; 0 = none; the state
#                           word answers
B_KILL: Final = (
    26  #       run for which the parent is about to kill this worker: it starts no other
)
# Fork-join (`_deque`, Split deque). Written by the worker:
B_FORKS: Final = 32  #      1 from a root's first spawn to its end: there may be private children
B_RUN: Final = (
    33  #        run key of the root that all on this worker's stack belongs to; 0: nothing
)
B_WAITS: Final = 34  #      0, 1 + the worker from whom it wants work, or WAITS_ANY
B_JOINING: Final = 35  #    0, or 1 + handle of the child that it waits for
B_BLOCKED: Final = 36  #    how many `blocking()` are open in its task
B_SPAWNED: Final = 37  #    children that were spawned the long way
B_PUBLISHED: Final = 38  #  children pushed into the ring
B_PINNED: Final = 39  #     children that cannot be pickled
B_CHILD_STEALS: Final = 40  # children taken from other rings
B_CHILD_EMPTIES: Final = 41  # looks at other rings that found nothing
B_TAKEN_BACK: Final = 42  # children that home took out of its ring again
B_LOCK_NS: Final = 43  #    nanoseconds waiting for ring locks and holding them
B_DEEPEST: Final = 44  #    most children of others nested on its stack
B_CHILDREN_RUN: Final = 45  # stolen children finished
B_UNCOMPENSATED: Final = 46  # `blocking()` that began when no spare was left
B_CHANGED: Final = 47  #    stolen children that changed an argument
B_HOME_NS: Final = 48  #    mean nanoseconds of this home's children elsewhere
# Written by others; a cache line of their own.
B_WANT: Final = (
    56  #       a hint, stored by thieves (1) and by the worker (0): look at the WAITS words
)
B_SPARE: Final = (
    57  #      parent: not 0 = STOP is heeded between any two tasks: 1 = a spare, or WATCHED
)
BLOCK_WORDS: Final = 64

WATCHED: Final = 2  #       a worker that may be told to make room for a new one

WAITS_ANY: Final = (1 << 64) - 1

STARTING: Final = 0
AWAKE: Final = 1
PARKED: Final = 2
LINGERING: Final = 4  # awake and idle: it looks at its inbox, and needs no bell
RETIRED: Final = 3  # it leaves by itself: its exit is no death
JOINING: Final = 5  # it sleeps until a child elsewhere is finished, or may take descendants of it
BLOCKED: Final = 6  # its task blocks, and says so

IDLE: Final = frozenset({PARKED, LINGERING})
"""Nothing runs, and nothing is claimed."""

# --- inbox and ring of children, per worker: header and slots -------------------------------------
#   writer: whoever holds the lock (parent, or home: tail; owner and thieves: head); inbox: lock w,
#   ring: lock workers + w
I_HEAD: Final = 0
I_TAIL: Final = 1
I_DIRTY: Final = 2  #  undo record: 0 = consistent, else operation | claimer << 8
I_OLD: Final = 3  #    the index that the operation moves, before it
I_COUNT: Final = 4  #  how far it moves
I_EARLY: Final = 5  #  inbox: 0, or 1 + handle of a root that was handed over before its time
I_FROM: Final = 6  #   inbox: monotonic ns before which nobody takes that one. Writer: parent
INBOX_HEADER: Final = 8

# --- result ring, per worker --------------------------------------------------------------------
R_HEAD: Final = 0  #  parent: words consumed
R_TAIL: Final = 8  #  worker: words published (own cache line)
RESULT_HEADER: Final = 16


class Layout(NamedTuple):
    """Offsets of a segment for `workers` workers. Build with `Layout.plan`; send it whole.

    The last `spares` of the workers are spares.
    """

    workers: int
    spares: int
    entries: int
    inline_bytes: int
    inbox_slots: int
    result_words: int
    slab_bytes: int
    function_bytes: int
    function_slots: int
    children: int
    child_bytes: int
    ring_slots: int
    blocks: int
    inboxes: int
    rings: int
    results: int
    state: int
    cancel: int
    ident: int
    meta: int
    length: int
    place: int
    started: int
    root: int
    below: int
    inline: int
    child_area: int
    function_table: int
    function_area: int
    slab: int
    size_bytes: int

    @classmethod
    def plan(
        cls,
        workers: int,
        *,
        spares: int = 0,
        entries: int = 4096,
        inline_bytes: int = 192,
        inbox_slots: int = 1024,
        result_words: int = 1 << 17,
        slab_bytes: int = 16 << 20,
        function_bytes: int = 1 << 20,
        function_slots: int = 4096,
        children: int = 256,
        child_bytes: int = 4096,
        ring_slots: int = 256,
    ) -> "Layout":
        """Lay out a segment.

        `entries`, `inbox_slots`, `result_words`, `children` and `ring_slots` are powers of two.
        """
        for name, value in (
            ("entries", entries),
            ("inbox_slots", inbox_slots),
            ("result_words", result_words),
            ("children", children),
            ("ring_slots", ring_slots),
        ):
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two of at least 2, not {value}")
        total = entries + workers * children
        if total > 1 << 24:
            raise ValueError(
                f"entries must fit into 24 bits of a result record, not {total} "
                f"({entries} of the parent, {children} for each of {workers} workers)"
            )
        at = HEADER_WORDS
        places: dict[str, int] = {}

        def take(name: str, words: int) -> None:
            nonlocal at
            places[name] = at
            at += -(-words // 8) * 8  # a cache line each

        take("blocks", workers * BLOCK_WORDS)
        take("inboxes", workers * (INBOX_HEADER + inbox_slots))
        take("rings", workers * (INBOX_HEADER + ring_slots))
        take("results", workers * (RESULT_HEADER + result_words))
        fields = ("state", "cancel", "ident", "meta", "length", "place", "started", "root", "below")
        for name in fields:
            take(name, total)
        take("inline", -(-entries * inline_bytes // 8))
        take("child_area", -(-workers * children * child_bytes // 8))
        take("function_table", function_slots * 2)
        take("function_area", -(-function_bytes // 8))
        take("slab", -(-slab_bytes // 8))
        return cls(
            workers=workers,
            spares=spares,
            entries=entries,
            inline_bytes=inline_bytes,
            inbox_slots=inbox_slots,
            result_words=result_words,
            slab_bytes=slab_bytes,
            function_bytes=function_bytes,
            function_slots=function_slots,
            children=children,
            child_bytes=child_bytes,
            ring_slots=ring_slots,
            size_bytes=at * 8,
            **places,
        )

    def block(self, worker: int) -> int:
        """Return the first word of a worker's block."""
        return self.blocks + worker * BLOCK_WORDS

    def inbox(self, worker: int) -> int:
        """Return the first word of a worker's inbox."""
        return self.inboxes + worker * (INBOX_HEADER + self.inbox_slots)

    def ring(self, worker: int) -> int:
        """Return the first word of a worker's ring of children."""
        return self.rings + worker * (INBOX_HEADER + self.ring_slots)

    @property
    def total(self) -> int:
        """Number of entries in the task table: the parent's, then each worker's."""
        return self.entries + self.workers * self.children

    def children_of(self, worker: int) -> range:
        """Return the handles of a worker's partition of the task table."""
        first = self.entries + worker * self.children
        return range(first, first + self.children)

    def home_of(self, handle: int) -> int:
        """Return whose partition a child's handle lies in."""
        return (handle - self.entries) // self.children

    def result(self, worker: int) -> int:
        """Return the first word of a worker's result ring."""
        return self.results + worker * (RESULT_HEADER + self.result_words)
