"""Spawning where something has to be asked first; the beginning and the end of a root that forks.

See README.md, "Fork-join".
"""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from mpsched._shm import layout as lay
from mpsched._shm.words import fence
from mpsched._worker import away, depth, hot
from mpsched._worker.hot import NOTHING, stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.hot import Floor, Handle
    from mpsched._worker.worker import Worker

_THREAD_STARTS: Final = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})

_OWN_THREADS: Final = 2
"""Python threads of a worker: the main thread and the helper."""

_home: Worker | None = None
_main = 0
_floor: Floor = stack[0]
_threads = False
_helping = False
copying: bool | None = None
"""Whether each child gets a copy (`MPSCHED_DEBUG=copy`); None before the first spawn."""
stealing = False
"""Whether each child runs elsewhere if it can (`MPSCHED_DEBUG=steal`)."""
streaming = False
"""Whether the root that runs gives each child a random stream of its own."""
_watched = False
"""Whether the start of a thread is noticed. (An audit hook cannot be taken away.)"""


def enter(worker: Worker) -> None:
    """Let tasks of `worker` fork. Once, in its main thread, when its own threads run."""
    global _home, _main, copying
    copying = None
    _home, _main = worker, threading.get_ident()


def leave() -> None:
    """Let this process's tasks not fork any more; in one that was forked off a worker."""
    global _home
    _home = None
    away.forget()


def _read_modes() -> None:
    from mpsched._worker import contract

    global copying, stealing
    modes = contract.modes()
    copying, stealing = "copy" in modes, "steal" in modes


def _nobody_takes() -> None:
    """Stand for `give_all` where nobody else could take a child."""


give_all: Callable[[], None] = _nobody_takes
"""Publish all there is; `publish` puts its own here in a worker."""


def in_task() -> bool:
    """Whether the caller is the main thread of a worker, in a task."""
    home = _home
    return home is not None and home.current is not None and threading.get_ident() == _main


def is_main() -> bool:
    """Whether the caller is the thread in which tasks of this process run."""
    return threading.get_ident() == _main or _home is None


def worker_of_task() -> Worker | None:
    """Return the worker whose task the caller is, in its main thread; else None."""
    return _home if in_task() else None


def with_keywords(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Any:
    """Stand for a function in the handle of a call with keywords."""
    fn, args, kwargs = call
    return fn(*args, **kwargs)


def without_arguments(fn: Any) -> Any:
    """Stand for a function in the handle of a call without arguments."""
    return fn()


def call_of(fn: Any, x: Any, rest: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return (function, args, kwargs) as the user gave them."""
    if fn is with_keywords:
        call: tuple[Any, tuple[Any, ...], dict[str, Any]] = x
        return call
    if fn is without_arguments:
        return x, (), {}
    if fn is streams.in_stream:
        return x[1:]  # type: ignore[no-any-return]
    return fn, (x, *rest), {}


def spawn(h: Handle[Any], kwargs: dict[str, Any]) -> Handle[Any]:
    """Spawn what `hot.spawn` has put into `h`, whatever is special about it."""
    fn, x, rest = h._fn, h._x, h._rest
    if not callable(fn):
        raise TypeError(f"spawn takes a function and its arguments, not {fn!r}")
    if copying is None:
        _read_modes()
    if copying:
        from mpsched._worker import contract

        fn, args, kwargs = contract.prepare(fn, () if x is NOTHING else (x, *rest), kwargs)
        x, rest = (args[0], args[1:]) if args else (NOTHING, ())
        h._fn, h._x, h._rest = fn, x, rest
    if not in_task():
        # (Also in a thread that a task has started.)
        args = () if x is NOTHING else (x, *rest)
        task = streams.of_caller()
        if task is not None:
            fn, args, kwargs = streams.in_stream, (streams.wrap(task, fn, args, kwargs),), {}
        return hot.outside(fn, args, kwargs)
    if not hot.forking:
        begin()
    if streaming and (task := streams.of_caller()) is not None:
        call = streams.wrap(task, fn, () if x is NOTHING else (x, *rest), kwargs)
        h._fn, h._x, h._rest = streams.in_stream, call, ()
    elif kwargs:
        h._fn, h._x, h._rest = with_keywords, (fn, () if x is NOTHING else (x, *rest), kwargs), ()
    elif x is NOTHING:
        h._fn, h._x = without_arguments, fn
    home = _home
    assert home is not None
    home.words[home.block + lay.B_SPAWNED] += 1
    hot.push(h)
    if stealing:
        give_all()
    elif hot.want[0]:
        hot.answer()
    return h


def helping(begins: bool) -> None:
    """Let spawns look which thread they are in while the helper, too, may run code of the user's.

    It does in a `__reduce__`, and in finalizers.
    """
    global _helping
    with away.fork_lock:
        _helping = begins
        _set_careful()


def _set_careful() -> None:
    hot.careful = _helping or _threads or streaming or stealing or not hot.forking or bool(copying)


def begin() -> None:
    """Let the root that runs fork, from its first spawn on."""
    global _floor, streaming
    home = _home
    assert home is not None
    _watch_threads()
    # (The stream of a stolen child is its context's.)
    seeded = home.seed is not None or home.stolen
    streaming = bool(seeded) and streams.seeded(home.context()) is not None
    # The root's end finishes what is above it.
    newest = away.newest()
    assert isinstance(newest, hot.Floor), f"the stack holds {newest!r} before a root's first spawn"
    _floor = newest
    with away.fork_lock:
        hot.forking = True
        _set_careful()
    blocking = sys.modules.get("mpsched._worker.blocking")
    deep = 0 if blocking is None else blocking.deep_threads()
    if len(sys._current_frames()) - deep <= _OWN_THREADS:
        # Threads that the task, or an earlier one, has started have a small stack of their own.
        depth.raise_limits()
    words, block = home.words, home.block
    if not home.run:
        assert home.current is not None
        home.run = words[block + lay.B_RUN] = home.table.run_key(home.current)
    words[block + lay.B_FORKS] = 1
    # Pairs with the thief's "WAITS, STATE = PARKED, fence, read FORKS" (idle.park): one sees the other.
    fence()
    if any(words[waits] for _, waits in home.others):
        hot.want[0] = 1


def width() -> int:
    """Return how many workers may take part in what the running task does; 1 outside one."""
    home = _home
    if home is None or not in_task():
        return 1
    layout = home.config.layout
    return layout.workers - layout.spares


def may_fork() -> bool:
    """Whether the caller is in a task; let it fork then, as a spawn would."""
    if not in_task():
        return False
    if not hot.forking:
        begin()
    return True


def finish_item() -> None:
    """Finish what an item of a map has left open, and let the piece fork on.

    Raises:
        BaseException: The first failure that nobody was told of.
    """
    failures = away.leftover(_floor)
    if failures:
        raise away.first_of(failures)


def item_error(problem: BaseException) -> BaseException:
    """Finish what an item has left open that has raised; return what its error is."""
    return away.ended_by(problem, _floor) if hot.forking else problem


def end_root(problem: BaseException | None = None) -> BaseException | None:
    """Finish what a root left open, and end its forking.

    Args:
        problem: What it raised.

    Returns:
        What its error is: `problem`, or the first failure that nobody was told of; None without any.
    """
    futures = sys.modules.get("mpsched._worker.forkfuture")  # loaded by the first submit in a task
    try:
        if futures is not None:
            futures.finish_callbacks()
        if problem is not None:
            problem = away.ended_by(problem, _floor)
        elif failures := away.leftover(_floor):
            problem = away.first_of(failures)
    finally:
        end()
        home = _home
        assert home is not None
        home.run = home.words[home.block + lay.B_RUN] = 0
    return problem


def end() -> None:
    """Say that nothing on this worker forks any more; its stack is empty."""
    home = _home
    assert home is not None
    with away.fork_lock:
        hot.forking = False
        _set_careful()
    words, block = home.words, home.block
    words[block + lay.B_FORKS] = 0
    hot.want[0] = 0
    depth.restore()


def _watch_threads() -> None:
    """From now on see whether the task starts threads: then each spawn asks which one it is in.

    Asking each time costs half of what a spawn may take. What was started before counts already; a
    root that finds all of them ended need not ask any more.
    """
    global _threads, _watched
    if _threads:
        if not _alone():
            return
        _threads = False
        hot.forget_threads()
    if not _watched:
        _watched = True
        if sys.version_info >= (3, 12):
            sys.addaudithook(_audit)
        else:
            _wrap_start()
        if not _alone():
            _expect_threads()


def _alone() -> bool:
    """Whether there are no threads but the worker's own; one that has yet to begin counts."""
    return len(sys._current_frames()) <= _OWN_THREADS >= threading.active_count()


def _expect_threads() -> None:
    global _threads
    _threads = hot.careful = True
    hot.expect_threads()


def _audit(event: str, _args: object) -> None:
    if event in _THREAD_STARTS:
        _expect_threads()


def _wrap_start() -> None:
    """Notice the next thread of the `threading` module, where its start is not audited (3.11)."""
    start = threading._start_new_thread  # type: ignore[attr-defined]

    def start_noticed(*args: Any) -> Any:
        global _watched
        _watched = False
        _expect_threads()
        threading._start_new_thread = start  # type: ignore[attr-defined]
        return start(*args)

    threading._start_new_thread = start_noticed  # type: ignore[attr-defined]


from mpsched._worker import streams  # noqa: E402 - made of what stands above
