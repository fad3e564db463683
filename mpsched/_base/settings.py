"""A pool's constants, each with what is lost when it is larger or smaller.

Tests shrink them, so that wrap-around, full rings and refills happen in every run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """The constants of one pool; equal in the parent and in all its workers.

    Raises:
        ValueError: A ring size is not a power of two, or a size is not positive.
    """

    # Slots of a worker's inbox; a power of two. Smaller: the parent refills more often. Larger:
    # more work lies where only stealing or recalling reaches it.
    inbox_slots: int = 512

    # Bytes of a worker's result ring; a power of two. Smaller: a worker waits for the parent in a
    # burst of results. Larger: memory per worker, touched only as far as it is used.
    result_ring_bytes: int = 1 << 20

    # Buffers of at least so many bytes travel in memory of their own, mapped by the receiver.
    # Smaller: a memory file and two system calls for little data. Larger: bytes are copied twice.
    payload_bytes: int = 64 << 10

    # Seconds that a parked worker sleeps at first and at most before it looks by itself. Only a lost
    # wake-up would need it. Smaller: an idle pool uses CPU time. Larger: such a loss is felt.
    park_first_s: float = 0.1
    park_most_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("inbox_slots", "result_ring_bytes"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"Settings.{name} must be a power of two and at least 2: {value}")
        for name in ("payload_bytes", "park_first_s", "park_most_s"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"Settings.{name} must be positive: {value}")
        if self.park_first_s > self.park_most_s:
            raise ValueError(
                f"Settings.park_first_s ({self.park_first_s}) must not exceed "
                f"park_most_s ({self.park_most_s})"
            )
