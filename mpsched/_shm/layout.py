"""Where everything lies in the segment: one table for every word.

See README.md, "Layout". All offsets are in 8-byte words unless the name says bytes. "Writer" is the
only process that stores to the word at that time; everybody may read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAGIC: Final = int.from_bytes(b"MPSCHED1", "little")

# --- header, 32 words ---------------------------------------------------------------------------
#   word  name            writer   meaning
H_MAGIC: Final = 0  #      parent   MAGIC
H_WORKERS: Final = 1  #    parent   number of workers
H_WAIT: Final = 8  #       parent   who is to be woken for results (see Waiting below)
HEADER_WORDS: Final = 32

WAIT_NOBODY: Final = 0  #   a leader is awake: it looks at every ring before it sleeps
WAIT_LEADER: Final = 1  #   the leader sleeps: wake it
WAIT_COLLECTOR: Final = 2  # nobody leads: wake the collector

# --- worker block, 32 words each; the first half is written by the worker, the second by the parent --
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
B_PARENT: Final = 24  #     first word written by the parent
B_STOP: Final = 24  #       1 = leave when nothing is left to run
B_REVOKE: Final = 25  #     run (TaskTable.run_key) that the parent wants back; 0 = none; the state
#                           word answers
B_KILL: Final = (
    26  #       run for which the parent is about to kill this worker: it starts no other
)
BLOCK_WORDS: Final = 32

STARTING: Final = 0
AWAKE: Final = 1
PARKED: Final = 2
LINGERING: Final = 4  # awake and idle: it looks at its inbox, and needs no bell
RETIRED: Final = 3  # it leaves by itself: its exit is no death

# --- inbox, per worker: header and slots --------------------------------------------------------
#   writer: whoever holds lock w (parent: tail; owner and thieves: head)
I_HEAD: Final = 0
I_TAIL: Final = 1
I_DIRTY: Final = 2  #  undo record: 0 = consistent, else operation | claimer << 8
I_OLD: Final = 3  #    the index that the operation moves, before it
I_COUNT: Final = 4  #  how far it moves
INBOX_HEADER: Final = 8

# --- result ring, per worker --------------------------------------------------------------------
R_HEAD: Final = 0  #  parent: words consumed
R_TAIL: Final = 8  #  worker: words published (own cache line)
RESULT_HEADER: Final = 16


class Layout(NamedTuple):
    """Offsets of a segment for `workers` workers. Build with `Layout.plan`; send it whole."""

    workers: int
    entries: int
    inline_bytes: int
    inbox_slots: int
    result_words: int
    slab_bytes: int
    function_bytes: int
    function_slots: int
    blocks: int
    inboxes: int
    results: int
    state: int
    cancel: int
    ident: int
    meta: int
    length: int
    place: int
    started: int
    inline: int
    function_table: int
    function_area: int
    slab: int
    size_bytes: int

    @classmethod
    def plan(
        cls,
        workers: int,
        *,
        entries: int = 4096,
        inline_bytes: int = 192,
        inbox_slots: int = 1024,
        result_words: int = 1 << 17,
        slab_bytes: int = 16 << 20,
        function_bytes: int = 1 << 20,
        function_slots: int = 4096,
    ) -> Layout:
        """Lay out a segment; `entries`, `inbox_slots` and `result_words` are powers of two."""
        for name, value in (
            ("entries", entries),
            ("inbox_slots", inbox_slots),
            ("result_words", result_words),
        ):
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two of at least 2, not {value}")
        if entries > 1 << 24:
            raise ValueError(f"entries must fit into 24 bits of a result record, not {entries}")
        at = HEADER_WORDS
        places: dict[str, int] = {}

        def take(name: str, words: int) -> None:
            nonlocal at
            places[name] = at
            at += -(-words // 8) * 8  # a cache line each

        take("blocks", workers * BLOCK_WORDS)
        take("inboxes", workers * (INBOX_HEADER + inbox_slots))
        take("results", workers * (RESULT_HEADER + result_words))
        for name in ("state", "cancel", "ident", "meta", "length", "place", "started"):
            take(name, entries)
        take("inline", -(-entries * inline_bytes // 8))
        take("function_table", function_slots * 2)
        take("function_area", -(-function_bytes // 8))
        take("slab", -(-slab_bytes // 8))
        return cls(
            workers=workers,
            entries=entries,
            inline_bytes=inline_bytes,
            inbox_slots=inbox_slots,
            result_words=result_words,
            slab_bytes=slab_bytes,
            function_bytes=function_bytes,
            function_slots=function_slots,
            size_bytes=at * 8,
            **places,
        )

    def block(self, worker: int) -> int:
        """Return the first word of a worker's block."""
        return self.blocks + worker * BLOCK_WORDS

    def inbox(self, worker: int) -> int:
        """Return the first word of a worker's inbox."""
        return self.inboxes + worker * (INBOX_HEADER + self.inbox_slots)

    def result(self, worker: int) -> int:
        """Return the first word of a worker's result ring."""
        return self.results + worker * (RESULT_HEADER + self.result_words)
