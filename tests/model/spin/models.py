"""The models: which searches of each must find nothing, and which wrong protocols must be found.

A wrong protocol is a macro of its model that changes one step.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Model(NamedTuple):
    """One Promela file.

    Attributes:
        name: of the file, without `.pml`.
        short: macros of a search that takes a second or two; nothing is wrong there.
        full: macros of each search that takes longer.
        wrong: macros, each of which makes the protocol wrong in one step.
        found_with: macros of the searches that have to find these.
    """

    name: str
    short: tuple[str, ...]
    full: tuple[tuple[str, ...], ...]
    wrong: tuple[str, ...]
    found_with: tuple[str, ...]


MODELS: Final = (
    Model(
        "ring",
        ("KILLS=1",),
        (("KILLS=2",),),
        (
            "INDEX_FIRST",
            "NO_UNDO",
            "NO_REPAIR",
            "GIVE_INDEX_FIRST",
            "UNLOCKED_STEAL",
            "LOCK_KEPT",
            "NO_DRAIN",
            "SCAN_FIRST",
        ),
        ("KILLS=1",),
    ),
    Model(
        "park",
        ("KILLS=0",),
        (("KILLS=1",), ("KILLS=2",)),
        (
            "LOOKS_FIRST",
            "NO_SECOND_LOOK",
            "OWNER_ONLY",
            "WAKES_EARLY",
            "ANY_INBOX",
            "BUSY_UNTOLD",
            "SILENT_GIVE_BACK",
        ),
        ("KILLS=0",),
    ),
    Model(
        "want",
        ("THIEVES=1",),
        (("THIEVES=2",),),
        ("NO_FENCE_FORKS", "NO_FENCE_WANT", "NO_FENCE_THIEF", "NO_LOOK_AFTER_WANT", "WANT_FIRST"),
        ("THIEVES=2",),
    ),
    Model(
        "join",
        (),
        (),
        ("NO_FENCE_HOME", "NO_FENCE_THIEF", "NO_SECOND_LOOK", "DONE_FIRST", "NO_BELL"),
        (),
    ),
    Model(
        "publish",
        ("SINGLE", "KILLS=1"),
        (("SINGLE", "KILLS=2"), ("FLAT", "KILLS=1"), ("FLAT", "KILLS=2")),
        (
            "RING_FIRST",
            "INDEX_FIRST",
            "NO_REPAIR",
            "SCAN_FIRST",
            "LOCK_KEPT",
            "ENTRY_FIRST",
            "NO_LOOK_UNDER_LOCK",
            "STATE_FIRST",
            "LOOKS_TOO_EARLY",
            "DEAF_THIEF",
            "NOT_TOLD",
            "LOST_TOO_SOON",
        ),
        ("SINGLE", "KILLS=1"),
    ),
)
