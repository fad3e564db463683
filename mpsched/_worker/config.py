"""What a worker is told about its pool: sizes, descriptors and the initializer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mpsched._base.settings import Settings
    from mpsched._shm.layout import Layout


class WorkerConfig(NamedTuple):
    """Pickled once per pool into `BootSpec.config`. Every descriptor is inherited.

    Attributes:
        bells: (read, write) descriptors of each worker's main thread.
        helper_bells: the same of each worker's helper thread.
        leader_bell, collector_bell: of the parent's two sleepers.
        payload_sockets: each worker's end of the socket by which large results leave.
        initializer: `codec.dumps_callable` bytes, or None; `initargs`: pickle of its arguments.
        max_tasks: roots after which a worker makes room for a new one; 0 = no limit.
    """

    layout: Layout
    settings: Settings
    segment_fd: int
    lock_fd: int
    bells: tuple[tuple[int, int], ...]
    helper_bells: tuple[tuple[int, int], ...]
    leader_bell: tuple[int, int]
    collector_bell: tuple[int, int]
    payload_sockets: tuple[int, ...]
    initializer: bytes | None
    initargs: bytes
    max_tasks: int
