"""The helper thread: answers for a worker whose main thread is in user code.

See README.md, "Helper". It sleeps on its own bell; a thief that found nothing, or the parent, rings.
It gives back what waits behind the running root, splits the running piece of a map, sends finished
results that wait behind a long item, and takes out a root that the parent wants back. Only C code
that holds the GIL delays it, and a task that has taken all memory.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._worker import long, publish, signals
from mpsched._worker.chunk import Chunk

if TYPE_CHECKING:
    from mpsched._worker.worker import Worker

_AGAIN_S: Final = 0.01
_AGAIN_MOST_S: Final = 0.5


def start(worker: Worker) -> threading.Thread:
    """Start the helper of `worker`."""
    thread = threading.Thread(target=_serve, args=(worker,), name="mpsched-helper", daemon=True)
    thread.start()
    return thread


def _serve(worker: Worker) -> None:
    bell = worker.helper_bells[worker.index]
    signals.refuse()
    owed = 0.0  # seconds after which to try again what found no memory; 0: nothing is owed
    while True:
        try:
            bell.wait(owed or None)
            # crash-point: helper.woken
            long.helping(True)
            try:
                revoke(worker)
                share(worker)
            finally:
                long.helping(False)
            owed = 0.0
        except MemoryError:
            # The task has it all (RLIMIT_AS, a small container). Nothing was half done (HELPER-3).
            owed = min(max(_AGAIN_S, 2 * owed), _AGAIN_MOST_S)
        except BaseException as problem:
            _end(problem)


def _end(problem: BaseException) -> NoReturn:
    """End the process: requests that nobody answers would be waited for without end."""
    try:
        import traceback

        text = "".join(traceback.format_exception(problem))
        os.write(2, f"mpsched: the helper of a worker has failed\n{text}".encode())
    finally:
        os._exit(1)


def revoke(worker: Worker) -> None:
    """Answer the parent's REVOKE word: CLAIMED -> REVOKED if that run has not started.

    The answer may come late (this thread had to wait for the GIL): then the parent has given up
    and puts the root into an inbox again (limits.py).
    """
    wanted = worker.words[worker.block + lay.B_REVOKE]
    if not wanted:
        return
    table, local = worker.table, worker.local
    revoked = st.word(st.REVOKED, worker.index)
    for handle in local.copy():
        if table.run_key(handle) != wanted:
            continue
        try:
            # Atomic under the GIL; whoever removes it decides (the main thread by popleft).
            local.remove(handle)
        except ValueError:
            return  # it has started: its state word says so
        # crash-point: revoke.removed
        table.state[handle] = revoked
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
    """Give others what waits behind the running root, or below it.

    Raises:
        MemoryError: What is owed can be tried again.
    """
    chunk = worker.chunk
    if isinstance(chunk, Chunk):
        chunk.flush()
        # The parent rings for results alone: then nobody would take the half.
        if _somebody_sleeps(worker) and _split(chunk):
            worker.words[worker.block + lay.B_SPLITS] += 1
        worker.ring_the_parent()
    _offer()
    _give_back(worker)
    local, claimed = worker.local, worker.block + lay.B_CLAIMED
    worker.words[claimed] = 0
    if local:
        # Kept, or claimed by the main thread just now: it fills `local` and then stores the word.
        worker.words[claimed] = len(local)
    if worker.unflushed:
        worker.ring_the_parent()


def _split(chunk: Chunk) -> bool:
    try:
        return chunk.split()
    except MemoryError as problem:
        raise RuntimeError("no memory in the middle of a split") from problem


def _offer() -> None:
    try:
        publish.offer()
    except MemoryError as problem:
        # (One that its pickle has met is not raised.) A child may be half way out.
        raise RuntimeError("no memory while a child was published") from problem


def _give_back(worker: Worker) -> None:
    """Return what is claimed and has not started."""
    local = worker.local
    # Its room first: what is taken out of `local` must not get lost for want of memory.
    hand = [-1] * len(local)
    first = len(hand)
    while first:
        try:
            hand[first - 1] = local.pop()
        except IndexError:
            break  # the main thread took the last one
        first -= 1
    del hand[:first]
    if hand:
        # crash-point: share.popped
        count = worker.give_back(hand)
        # What the inbox has no room for stays ours, in its place before what came since.
        local.extendleft(reversed(hand[: len(hand) - count]))
