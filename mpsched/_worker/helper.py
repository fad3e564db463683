"""The helper thread: answers for a worker whose main thread is in user code.

See README.md, "Helper". It sleeps on its own bell; a thief that found nothing, or the parent, rings.
It gives back what waits behind the running root, splits the running piece of a map, sends finished
results that wait behind a long item, and takes out a root that the parent wants back. Only C code
that holds the GIL delays it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._worker import long, publish, signals
from mpsched._worker.chunk import Chunk

if TYPE_CHECKING:
    from mpsched._worker.worker import Worker


def start(worker: Worker) -> threading.Thread:
    """Start the helper of `worker`."""
    thread = threading.Thread(target=_serve, args=(worker,), name="mpsched-helper", daemon=True)
    thread.start()
    return thread


def _serve(worker: Worker) -> None:
    bell = worker.helper_bells[worker.index]
    signals.refuse()
    while True:
        bell.wait(None)
        # crash-point: helper.woken
        long.helping(True)
        try:
            revoke(worker)
            share(worker)
        finally:
            long.helping(False)


def revoke(worker: Worker) -> None:
    """Answer the parent's REVOKE word: CLAIMED -> REVOKED if that run has not started.

    The answer may come late (this thread had to wait for the GIL): then the parent has given up
    and puts the root into an inbox again (limits.py).
    """
    wanted = worker.words[worker.block + lay.B_REVOKE]
    if not wanted:
        return
    table, local = worker.table, worker.local
    for handle in local.copy():
        if table.run_key(handle) != wanted:
            continue
        try:
            # Atomic under the GIL; whoever removes it decides (the main thread by popleft).
            local.remove(handle)
        except ValueError:
            return  # it has started: its state word says so
        # crash-point: revoke.removed
        table.state[handle] = st.word(st.REVOKED, worker.index)
        # crash-point: revoke.answered
        return


def _somebody_sleeps(worker: Worker) -> bool:
    """Whether another worker has nothing to do; one that rings this helper says PARKED (idle.py)."""
    words, layout = worker.words, worker.config.layout
    return any(
        words[layout.block(other) + lay.B_STATE] == lay.PARKED
        for other in range(words[lay.H_LIVE])
        if other != worker.index
    )


def share(worker: Worker) -> None:
    """Give others what waits behind the running root, or below it."""
    chunk = worker.chunk
    if isinstance(chunk, Chunk):
        chunk.flush()
        # The parent rings for results alone: then nobody would take the half.
        if _somebody_sleeps(worker) and chunk.split():
            worker.words[worker.block + lay.B_SPLITS] += 1
        worker.ring_the_parent()
    publish.offer()
    returned: list[int] = []
    local = worker.local
    while local:
        try:
            returned.append(local.pop())
        except IndexError:
            break  # the main thread took the last one
    if returned:
        returned.reverse()
        # crash-point: share.popped
        count = worker.give_back(returned)
        # What the inbox has no room for stays ours, in its place before what came since.
        local.extendleft(reversed(returned[: len(returned) - count]))
    claimed = worker.block + lay.B_CLAIMED
    worker.words[claimed] = 0
    if local:
        # Kept, or claimed by the main thread just now: it fills `local` and then stores the word.
        worker.words[claimed] = len(local)
    if worker.unflushed:
        worker.ring_the_parent()
