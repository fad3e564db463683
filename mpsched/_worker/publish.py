"""From the stack into the ring: answering those who want work. See README.md, "Fork-join".

Called by the main thread at a spawn, when WANT is set, and by the helper. Protocol *Publish* of `_deque`.
"""

from __future__ import annotations

import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from mpsched._shm import layout as lay
from mpsched._shm.words import Damaged, fence
from mpsched._tasks import state as st
from mpsched._worker import away, heldring, hot, long, outcome, signals

if TYPE_CHECKING:
    from mpsched._worker.away import Away
    from mpsched._worker.worker import Worker

_SHARE: Final = 16
"""Of a root's time the main thread spends at most 1 / _SHARE for thieves, unless they save more than that.

A loop that spawns a million children of a microsecond would else become slower by each thief.
"""

_TINY_NS: Final = 20_000
_TRIED: Final = 32
"""Children that take less elsewhere are tiny, once so many outcomes are here."""

_FREE_NS: Final = 500_000
"""What it may spend before that is looked at: some children when they are published for the first time."""

_COARSE_NS: Final = 200_000
"""Children that take longer elsewhere are published before somebody asks."""

_PINNED_MOST: Final = 256

_PUBLISHED: Final = 0
_PINNED: Final = 1
_NOTHING: Final = 2
_FULL: Final = 3

_SHORT: Final = 1
_HOPELESS: Final = 2

_worker: Worker | None = None
_busy = threading.Lock()
_server = 0
"""Ident of the thread that publishes."""
_pinned: set[int] = set()
"""Ids of functions that could not be pickled with their arguments; not tried again in root `_root`."""
_root = 0
_begun_ns = 0
"""When this root was first asked for children."""
_called = False
"""Whether those who asked and were left waiting were rung (`_call`)."""
_spent_ns = 0
"""What the main thread has spent for thieves in it."""
_given_ns = 0
"""When children of it were last published for somebody who asked; 0: never."""
_gained_ns = 0
"""What thieves have run of it for this worker, as far as outcomes are here; `_gains`: how many children."""
_gains = 0


def enter(worker: Worker) -> None:
    """Publish children of `worker` from now on. Once, in its main thread."""
    global _worker, _root
    _worker, _root = worker, 0
    at = (worker.block + lay.B_WANT) * 8
    hot.want = worker.segment.bytes[at : at + 1]
    hot.answer = answer
    long.give_all = give_all


def leave() -> None:
    """Publish nothing any more; in a process that was forked off a worker."""
    global _worker, _busy
    _worker = None
    _busy = threading.Lock()
    hot.want = memoryview(bytearray(1))


def answer() -> None:
    """Publish one child for each worker that waits for one. Main thread, at a spawn."""
    global _spent_ns
    worker = _worker
    if worker is None or away.fork_lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
        return  # a finalizer or signal handler, in the middle of another section
    now = time.monotonic_ns()
    if _root != worker.run:
        _begin(worker, now)
    if _spent_ns > _FREE_NS and _spent_ns * _SHARE > now - _begun_ns and _gained_ns < _spent_ns:
        # A thief that still has nothing after `patience_s` asks the helper.
        hot.want[0] = 0
        if not _called:
            _call(worker)
        return
    _serve(worker, 0)
    _spent_ns += time.monotonic_ns() - now


def _call(worker: Worker) -> None:
    """Ring those who wait, once in a root: who sleeps since before it forked has no patience, and asks nobody.

    Woken, each looks, and sleeps again with patience (idle.park).
    """
    global _called
    _called = True
    words, layout = worker.words, worker.config.layout
    for other in _asking(worker):
        if words[layout.block(other) + lay.B_STATE] == lay.PARKED:
            worker.bells[other].wake()


def _begin(worker: Worker, now: int) -> None:
    """Start the accounts of another root."""
    global _root, _begun_ns, _spent_ns, _given_ns, _gained_ns, _gains, _busy, _called
    if _busy.locked() and not _server:
        _busy = threading.Lock()  # a signal handler has raised between the lock and its `try`
    _root, _begun_ns = worker.run, now
    _spent_ns = _given_ns = _gained_ns = _gains = 0
    _called = False
    _pinned.clear()


def offer() -> None:
    """Publish half of what there is, if somebody waits for work. Helper thread."""
    worker = _worker
    if worker is not None and hot.forking and _asking(worker):
        # Of tiny ones no more than are asked for: each costs more than it saves.
        tiny = _gains >= _TRIED and _gained_ns < _TINY_NS * _gains
        _serve(worker, 0 if tiny else (len(hot.stack) - 1) // 2)


def give_all() -> None:
    """Publish all that there is room for: the main thread is about to block."""
    worker = _worker
    if worker is not None and hot.forking:
        _serve(worker, len(hot.stack))
        worker.wake_parked(len(worker.deque))


def _asking(worker: Worker) -> list[int]:
    """Return the workers that want work of this one."""
    words, mine = worker.words, worker.asked
    # Slots that were never started wait for nothing.
    return [other for other, at in worker.others if words[at] in mine]


def _serve(worker: Worker, at_least: int) -> None:
    """Publish, and wake those who asked, while no handler of the task's can raise.

    Not for somebody who is doing it already.
    """
    global _server
    held = signals.hold()
    try:
        me = get_ident()
        if worker.in_section == me or not _busy.acquire(False):
            return
        try:
            _server = me
            asking = _asking(worker)
            short = _publish_many(worker, max(at_least, len(asking) - _ready(worker)))
            if asking and short != _HOPELESS:
                _publish_ahead(worker)
            hot.want[0] = 0
            # crash-point: publish.unwanted
            # Pairs with the thief's "WAITS, then WANT = 1": if this 0 came last, its WAITS is seen here.
            fence()
            # (Who has announced itself since the first look may have seen an empty ring; and who has been
            # woken does not ask any more, but has taken nothing yet.)
            asking = _asking(worker)
            unserved = _wake(worker, asking) < len(asking) or (asking and short)
            if unserved and short != _HOPELESS:
                hot.want[0] = 1
        finally:
            _server = 0
            _busy.release()
    finally:
        if held:
            signals.release()


def _publish_many(worker: Worker, count: int) -> int:
    """Publish up to so many children; return _SHORT if there were not so many, else 0.

    _HOPELESS: there is no room, or none can be pickled. Then it is not to be tried at each spawn; who waits
    asks the helper after a while.
    """
    published = 0
    while published < count:
        what = _publish(worker)
        if what == _FULL or (what == _PINNED and not published):
            return _HOPELESS
        if what == _NOTHING:
            return _SHORT
        published += what == _PUBLISHED
    return 0


def _publish_ahead(worker: Worker) -> None:
    """While children are coarse, keep some in the ring: their parent may not spawn again for long.

    What nobody takes comes back at its join, for a hundredth of what it takes. Before outcomes are here,
    who asks again so late had a coarse one.
    """
    global _given_ns
    now = time.monotonic_ns()
    coarse = _gained_ns > _COARSE_NS * _gains if _gains else now - _given_ns > _COARSE_NS
    if _given_ns and coarse:
        ahead = 2 * long.width() - _ready(worker)
        _publish_many(worker, min(ahead, len(hot.stack) - 2))
    _given_ns = now


def _ready(worker: Worker) -> int:
    """Return how many children lie in the ring; a hint."""
    return len(worker.deque.handles()) if len(worker.deque) else 0


def _wake(worker: Worker, asking: list[int]) -> int:
    """Ring those who asked for what lies in the ring; return how many children that is."""
    words, layout = worker.words, worker.config.layout
    ready = _ready(worker)
    for other in asking[:ready]:
        # Who is awake looks at the ring under its lock before it sleeps.
        if words[layout.block(other) + lay.B_STATE] in {lay.PARKED, lay.JOINING}:
            worker.bells[other].wake()
            # crash-point: publish.rung
    return ready


def _publish(worker: Worker) -> int:
    """Publish the oldest private child; return what came of it."""
    fork_lock, children, deque = away.fork_lock, worker.children, worker.deque
    with fork_lock:
        in_use, most = children.in_use, children.capacity
        if in_use * 4 >= most * 3:
            collect(worker)
            in_use = children.in_use
        if in_use >= most or deque.room() <= 0:
            return _FULL
        record = away.leave()
    if record is None:
        return _NOTHING
    # crash-point: publish.left
    if _root != worker.run:
        _begin(worker, time.monotonic_ns())
    fn, x, rest = record.fn, record.x, record.rest
    frame = None
    if fn is not None and not (_pinned and _number(fn, x, rest) in _pinned):
        try:
            frame = outcome.frame(worker, fn, x, rest)
        except BaseException:  # a `__reduce__` may even call sys.exit
            # It runs at home, where nothing has to be pickled. Counted: a program in which nothing
            # can be given away is slow, not wrong.
            frame = None
    # crash-point: publish.pickled
    with fork_lock:
        if record.kind != away.PUBLISHING:
            return _PUBLISHED  # its parent has joined it meanwhile
        entry = None if frame is None else children.allocate()
        if frame is None or entry is None:
            record.kind = away.PINNED
            worker.words[worker.block + lay.B_PINNED] += 1
            if frame is None and len(_pinned) < _PINNED_MOST:
                _pinned.add(_number(fn, x, rest))
            return _PINNED
        table, root = worker.table, worker.current
        assert root is not None
        meta, data, held = frame
        table.write_child(entry, data)
        table.meta[entry] = meta
        table.place[entry] = root
        table.root[entry] = worker.run
        table.state[entry] = st.QUEUED | worker.index << 8
        record.held = held
        record.entry, record.ident = entry, table.ident[entry]
        worker.published[entry] = record
        record.kind = away.PUBLISHED
        # crash-point: publish.written
        try:
            deque.push((entry,))
        except Damaged:
            heldring.end_damaged()
        # crash-point: publish.pushed
        worker.words[worker.block + lay.B_PUBLISHED] += 1
    return _PUBLISHED


def _number(fn: Any, x: Any, rest: tuple[Any, ...]) -> int:
    """Return the identity of the user's function: of calls with keywords, say, only those of this one stay here."""
    return id(long.call_of(fn, x, rest)[0])


def collect(worker: Worker) -> None:
    """Take outcomes out of the entries, which are needed; `fork_lock` held. Runs nothing of the user's."""
    for entry in worker.children.collectable():
        record = worker.published.get(entry)
        if (
            record is not None
            and record.kind == away.PUBLISHED
            and worker.table.state[entry] & 255 in {st.DONE, st.FAILED}
        ):
            take_outcome(worker, record)


def take_outcome(worker: Worker, record: Away) -> None:
    """Take the outcome of a child that is DONE or FAILED out of its entry; `fork_lock` held."""
    table, entry = worker.table, record.entry
    thief = table.state[entry] >> 8
    try:
        raw: Any = outcome.fetch(worker, entry)
    except OSError:
        # It was in files of a thief that has died since: as if it had died in the child.
        lose(worker, record, thief, None, None)
        return
    record.value = raw
    if raw.held:
        # It refers to memory of the thief's: the entry stays until it is unpickled.
        record.kind = away.FETCHED
        return
    taken(worker, record)
    record.kind = away.FETCHED


def taken(worker: Worker, record: Away) -> None:
    """Note what an outcome was worth that is out of its entry, which is freed; `fork_lock` held."""
    global _gained_ns, _gains
    _gained_ns += worker.table.started[record.entry]
    _gains += 1
    # Of the whole root: where most children are tiny, the few others have nearly all of the work.
    worker.words[worker.block + lay.B_HOME_NS] = _gained_ns // _gains
    # crash-point: outcome.fetched
    free(worker, record)


def free(worker: Worker, record: Away) -> None:
    """Let go of a record's entry, which no ring holds; `fork_lock` held."""
    entry = record.entry
    record.entry = -1
    record.held = None
    worker.published.pop(entry, None)
    worker.children.free(entry)


def lose(worker: Worker, record: Away, thief: int, pid: int | None, status: int | None) -> None:
    """The thief of a child is dead: call it again here, if the root may; `fork_lock` held."""
    free(worker, record)
    root = worker.current
    assert root is not None
    # crash-point: outcome.lost
    if worker.may_repeat() and not record.repeated:
        record.repeated = True
        record.kind = away.PINNED
        return
    record.fail(_death(worker, thief, pid, status))


def _death(worker: Worker, thief: int, pid: int | None, status: int | None) -> BaseException:
    import signal

    from mpsched.errors import WorkerDied

    name = None
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
    how = name or ("unknown" if status is None else f"exit code {status}")
    context = worker.context()
    return WorkerDied(
        f"worker {thief}{f' (pid {pid})' if pid else ''} died ({how}) while it ran a child of this "
        "task; the child may have had effects",
        exitcode=status,
        signal=name,
        pid=pid,
        task_id=None if context is None else context.task_id,
        attempt=None if context is None else context.attempt,
        worker=thief,
    )
