"""Functions that spawn, for pools to run."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import functools
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import mpsched
from mpsched._shm import layout as lay
from mpsched._tasks import state as st
from mpsched._worker import away
from mpsched._worker.blocking import blocking
from mpsched._worker.hot import Handle, spawn
from mpsched._worker.scopes import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HANG_S = 60.0
_STARTED = frozenset({st.RUNNING, st.DONE, st.FAILED})


def let_take(handles: Sequence[Handle[Any]], least: int = 1) -> None:
    """Wait until other workers have started so many of these children, of which none was joined.

    Without it a busy machine may run all of them at home, and the test has seen nothing.
    """
    until = time.monotonic() + _HANG_S
    while sum(map(_taken, handles)) < least:
        assert time.monotonic() < until, f"nobody takes {least} of {handles}"
        time.sleep(0.001)


def _taken(handle: Handle[Any]) -> bool:
    record: Any = handle._fn
    if type(record) is not away.Away:
        return False
    states = _worker_here().table.state
    entry = record.entry
    return record.kind == away.PUBLISHED and entry >= 0 and states[entry] & 255 in _STARTED


def let_pin(least: int = 1) -> None:
    """Wait until somebody wanted children of this worker that cannot be given away."""
    worker, until = _worker_here(), time.monotonic() + _HANG_S
    while worker.words[worker.block + lay.B_PINNED] < least:
        assert time.monotonic() < until, "nobody wants one"
        time.sleep(0.001)


def fib(n: int) -> int:
    if n < 2:
        return n
    a = spawn(fib, n - 1)
    return fib(n - 2) + a.join()


def pid_after(seconds: float) -> int:
    """Sleep, and tell in which process."""
    time.sleep(seconds)
    return os.getpid()


def in_rounds(log: str, width: int) -> int:
    """Come, wait until the round of `width` that this belongs to is complete; tell the process."""
    with open(log, "ab", buffering=0) as file:
        file.write(b"x")
        place = file.tell() - 1  # whole, whoever else writes
    until = time.monotonic() + _HANG_S
    while os.stat(log).st_size < place - place % width + width:
        assert time.monotonic() < until, f"{os.stat(log).st_size} have come"
        time.sleep(0.001)
    return os.getpid()


def flat(children: int, log: str, width: int, order: str) -> list[int]:
    """Spawn children that run `width` at a time, and join them; return who ran each."""
    handles = [spawn(in_rounds, log, width) for _ in range(children)]
    if order == "fifo":
        return [h.join() for h in handles]
    return [h.join() for h in reversed(handles)][::-1]


def mark(table: Any) -> int:
    table[0] += 1
    return pid_after(0.0005)


def busy_parent(children: int, table: Any, computes: bool) -> tuple[int, set[int]]:
    """Spawn many, compute or sleep until one has started, join; return (own pid, who ran them)."""
    handles = [spawn(mark, table) for _ in range(children)]
    until = time.monotonic() + _HANG_S
    while not table[0]:
        assert time.monotonic() < until, "nobody helps"
        if not computes:
            time.sleep(0.001)
    return os.getpid(), {h.join() for h in handles}


def echo(value: object, seconds: float = 0.02) -> tuple[int, object]:
    time.sleep(seconds)
    return os.getpid(), value


def fail(text: str, _lock: object = None) -> None:
    time.sleep(0.02)
    raise ValueError(text)


def echoes(sizes: list[int]) -> tuple[list[int], set[int]]:
    """Send bytes to children and back; return (their sizes, pids that ran children)."""
    handles = [spawn(echo, b"x" * size) for size in sizes]
    let_take(handles)
    results = [h.join() for h in handles]
    return [len(value) for _, value in results], {pid for pid, _ in results}  # type: ignore[arg-type]


def failures(count: int) -> list[tuple[str, bool]]:
    """Join failing children in order; return (text, whether it came from elsewhere) of each.

    One is taken, and one cannot be: it has a lock.
    """
    handles = [spawn(fail, str(i)) for i in range(count - 1)]
    let_take(handles)
    handles.append(spawn(fail, str(count - 1), threading.Lock()))
    seen = []
    for h in handles:
        try:
            h.join()
        except ValueError as problem:
            seen.append((str(problem), problem.__cause__ is not None))
            if _error_of(h.join) is not problem:
                raise AssertionError(f"another error the second time: {problem!r}") from problem
    return seen


def _error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as problem:
        return problem
    return None


def careless(count: int) -> None:
    """Leave failing children open."""
    for i in range(count):
        spawn(fail, str(i))


def failed_grandchildren(count: int) -> tuple[str, list[str]]:
    """Join a child that leaves failing ones open; return (its error's text, its siblings')."""
    try:
        spawn(careless, count).join()
    except ValueError as problem:
        return str(problem), [str(one) for one in problem.siblings]  # type: ignore[attr-defined]
    raise AssertionError("the failures were lost")


def lambdas(count: int) -> tuple[list[int], set[int]]:
    """Spawn functions that no import finds."""
    base = 5
    handles = [spawn(lambda x: echo(x + base), i) for i in range(count)]
    let_take(handles)
    results = [h.join() for h in handles]
    return [value for _, value in results], {pid for pid, _ in results}  # type: ignore[misc]


def unpicklable(count: int) -> tuple[bool, set[int]]:
    """Spawn children with a lock, which cannot be pickled; return (all got it, who ran them)."""
    lock = threading.Lock()
    handles = [spawn(echo, lock, 0.005) for _ in range(count)]
    let_pin()
    results = [h.join() for h in handles]
    return all(value is lock for _, value in results), {pid for pid, _ in results}


def unpicklable_among_keywords(count: int) -> set[int]:
    """Spawn a call with a lock and many others with keywords; return who ran those."""
    handles = [spawn(echo, threading.Lock(), seconds=0.005)]
    handles += [spawn(named_echo, value=n, seconds=0.005) for n in range(count)]
    let_pin()
    let_take(handles)
    return {pid for pid, _ in [h.join() for h in handles][1:]}


class LockedError(Exception):
    """Does not survive pickling."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


def fail_locked(_number: int) -> None:
    raise LockedError


def errors_elsewhere(count: int) -> tuple[int, set[str]]:
    """Return (id of this task, texts of errors of children that cannot be pickled)."""
    task = mpsched.current_task()
    assert task is not None
    texts = set()
    handles = [spawn(fail_locked, n) for n in range(count)]
    let_take(handles, count)
    for handle in handles:
        try:
            handle.join()
        except mpsched.errors.RemoteError as error:
            texts.add(str(error).splitlines()[0])
    return task.task_id, texts


def named_echo(value: object, seconds: float) -> tuple[int, object]:
    """As `echo`, with names."""
    time.sleep(seconds)
    return os.getpid(), value


def sort_in_place(part: list[int]) -> None:
    """Sort a list in place: what a child must not do, because it may have a copy."""
    time.sleep(0.03)
    part.sort()


def sort_lists(count: int, size: int, taken: int = 1) -> tuple[int, list[str], list[bool]]:
    """Sort lists in children, so many elsewhere; return (own pid, warnings, which are sorted)."""
    lists = [list(range(size, 0, -1)) for _ in range(count)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handles = [spawn(sort_in_place, one) for one in lists]
        let_take(handles, taken)
        for h in handles:
            h.join()
    return os.getpid(), [str(one.message) for one in caught], [one[0] == 1 for one in lists]


class Account:
    """Something with state."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> None:
        """Change it."""
        time.sleep(0.02)
        self.total += amount


def append_one(items: list[int], x: int) -> None:
    time.sleep(0.02)
    items.append(x)


def change(value: Any) -> None:
    """Change an array or an object in place."""
    time.sleep(0.02)
    if isinstance(value, Account):
        value.total += 1
    else:
        value[0] += 1


def change_things(kind: str, taken: int = 1) -> list[str]:
    """Let children change something in one of several ways; return the warnings."""
    account, items = Account(), [1]
    array = mpsched.shared_array(4, "i8")
    calls: dict[str, list[Any]] = {
        "object": [change, account],
        "array": [change, array.copy()],
        "shared": [change, array],
        "method": [account.add, 1],
        "partial": [functools.partial(append_one, items), 1],
        "closure": [lambda x: append_one(items, x), 1],
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handles = [spawn(*calls[kind]) for _ in range(6)]
        let_take(handles, taken)
        for h in handles:
            h.join()
    return [str(one.message) for one in caught]


def look_only(part: list[int], more: dict[str, set[int]]) -> int:
    time.sleep(0.01)
    return len(sorted(part)) + len(more)


def look_at_lists(count: int, taken: int = 1) -> list[str]:
    """Give children lists that they do not change; return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handles = [spawn(look_only, [3, 1, i], {"a": {1, i}}) for i in range(count)]
        let_take(handles, taken)
        for h in handles:
            h.join()
    return [str(one.message) for one in caught]


def deep(levels: int) -> int:
    return 0 if not levels else 1 + spawn(deep, levels - 1).join()


def deep_together(levels: int) -> int:
    return 0 if not levels else 1 + mpsched.join_all((deep_together, levels - 1))[0]


def too_deep(levels: int, nest: Callable[[int], int] = deep) -> tuple[str, str]:
    """Nest too many joins; return (class, text) of the error."""
    try:
        nest(levels)
    except RecursionError as problem:
        return type(problem).__name__, str(problem)
    raise AssertionError("it was not too deep")


def deep_by_keyword(levels: int) -> int:
    return 0 if not levels else 1 + spawn(deep_by_keyword, levels=levels - 1).join()


def leave_open(levels: int) -> int:
    """Leave a child open that does the same."""
    if levels:
        spawn(leave_open, levels - 1)
    return levels


def asked_to_stop(path: str, children: int) -> None:
    """Join nappers that have written a line each, oldest first."""
    for h in [spawn(note_and_stop, path) for _ in range(children)]:
        h.join()


def note_and_stop(path: str) -> None:
    """Write a line, wait to be asked to stop, and do."""
    with open(path, "a") as file:
        file.write("x")
    task = mpsched.current_task()
    assert task is not None
    while not task.cancelled:
        time.sleep(0.001)
    task.raise_if_cancelled()


def block_for_ever() -> str:
    """End with a block of `blocking()` still open, in a generator that somebody keeps."""

    def waits() -> Any:
        with blocking():
            yield 1

    _kept.append(waits())
    next(_kept[-1])
    return "ended"


_kept: list[Any] = []


def in_a_fork() -> tuple[int, int, int]:
    """Fork in a task with open children; return (exit code, value there, value here)."""
    handles = [spawn(fib, 10) for _ in range(4)]
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        value = spawn(fib, 9).join() + handles[3].join()
        os.write(write, str(value).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        there = int(pipe.read())
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), there, sum(h.join() for h in handles)


class _Endless:
    def __lt__(self, _other: object) -> bool:
        return sorted([_Endless(), _Endless()]) is None


def endless_in_a_thread() -> str:
    """Recurse for ever through C code in a thread of a task that has spawned."""
    seen: list[str] = []

    def recurse() -> None:
        try:
            sorted([_Endless(), _Endless()])
        except RecursionError:
            seen.append("RecursionError")

    spawn(fib, 3).join()
    thread = threading.Thread(target=recurse)
    thread.start()
    thread.join()
    return seen[0]


def in_a_thread() -> tuple[int, int]:
    """Spawn in a thread of the task's own, beside the task; return both values."""
    values: list[int] = []
    spawn(fib, 3).join()
    thread = threading.Thread(target=lambda: values.append(fib(12)))
    thread.start()
    mine = fib(13)
    thread.join()
    return mine, values[0]


def joined_in_threads(count: int) -> list[object]:
    """Spawn in the task, join in threads of it."""
    handles = [spawn(echo, i) for i in range(count)]
    with cf.ThreadPoolExecutor(3) as threads:
        return [value for _, value in threads.map(lambda h: h.join(), handles)]


def left_to_a_thread() -> bool:
    """Leave a child to a thread that joins it; end at once."""
    handle = spawn(echo, 1, 0.2)
    spawn(echo, 2, 0.0).join()
    threading.Thread(target=handle.join).start()
    while not handle.done() and "running" not in repr(handle):
        time.sleep(0.001)
    return True


async def _gathered(ex: mpsched.WorkStealingExecutor, count: int) -> list[int]:
    loop = asyncio.get_running_loop()
    return await asyncio.gather(*[loop.run_in_executor(ex, abs, -i) for i in range(count)])


def in_an_event_loop(ex: mpsched.WorkStealingExecutor, count: int) -> list[int]:
    """Await children under an event loop of the task's own."""
    return asyncio.run(_gathered(ex, count))


def futures_in_threads(ex: mpsched.WorkStealingExecutor, count: int) -> list[int]:
    """Submit in the task, wait in threads of it."""
    futures = [ex.submit(abs, -i) for i in range(count)]
    with cf.ThreadPoolExecutor(3) as threads:
        return list(threads.map(lambda f: f.result(), futures))


def polled(ex: mpsched.WorkStealingExecutor) -> int:
    """Ask a future again and again whether it is done."""
    future = ex.submit(abs, -7)
    while not future.done():
        time.sleep(0.001)
    value: int = future.result()
    return value


def nap(seconds: float) -> bool:
    """Sleep until the time is over or this task is asked to stop; return whether it was asked."""
    task = mpsched.current_task()
    assert task is not None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if task.cancelled:
            return True
        time.sleep(0.002)
    return False


def note(path: str, seconds: float) -> None:
    """Write a line, then sleep."""
    with open(path, "a") as file:
        file.write("x")
    nap(seconds)


def cancelled_scope(path: str, children: int) -> float:
    """Fail in a scope with sleeping children; return how long it took. `path` tells who started."""
    begun = time.monotonic()
    try:
        with Scope() as scope:
            for _ in range(children):
                scope.spawn(note, path, 10 * _HANG_S)
            while not os.path.exists(path):  # until somebody has started one
                time.sleep(0.002)
            raise KeyError("the block's")
    except KeyError:
        return time.monotonic() - begun


def leaf(table: Any, number: int) -> int:
    table[number] += 1
    return 1


def count(table: Any, low: int, high: int) -> int:
    """Mark each of a range in a shared table, by halves."""
    if high - low == 1:
        return leaf(table, low)
    middle = (low + high) // 2
    left = spawn(count, table, low, middle)
    right = count(table, middle, high)
    return right + left.join()


def count_with_others(table: Any, low: int, high: int) -> int:
    """As `count`; the first half is begun elsewhere before this goes on."""
    middle = (low + high) // 2
    left = spawn(count, table, low, middle)
    let_take([left])
    return count(table, middle, high) + left.join()


def locked_join(lock_path: str, seconds: float) -> bool:
    """Hold a lock file across a join, as a task may; True if nobody else had it."""
    with open(lock_path, "x"):
        handles = [spawn(pid_after, seconds) for _ in range(4)]
        for h in handles:
            h.join()
    os.unlink(lock_path)
    return True


def naps(children: int, seconds: float) -> list[bool]:
    """Nap in children; return which of them were asked to stop."""
    handles = [spawn(nap, seconds) for _ in range(children)]
    return [h.join() for h in handles]


def made_elsewhere(number: int) -> Any:
    """Return a shared array that this child makes."""
    time.sleep(0.003)
    return mpsched.shared_array(8, "i8", number)


def blocks_kept(_array: object = None) -> tuple[int, int]:
    """Return (own pid, shared arrays that this worker keeps for further children)."""
    from mpsched._shm import references

    time.sleep(0.002)
    return os.getpid(), len(references._recent)


def blocks_kept_elsewhere(array: Any, least: int) -> list[int]:
    """Give away children with slices of an array; return what each thief keeps, `least` times."""
    handles = [spawn(blocks_kept, array[n : n + 2]) for n in range(2 * least)]
    let_take(handles, least)
    return [kept for pid, kept in [h.join() for h in handles] if pid != os.getpid()]


def shared_results(count: int) -> tuple[int, int]:
    """Join children that return shared arrays; return (sum of all, entries still in use)."""
    handles = [spawn(made_elsewhere, i) for i in range(count)]
    let_take(handles)
    return sum(int(h.join().sum()) for h in handles), len(_worker_here().published)


def _worker_here() -> Any:
    from mpsched._worker import long

    return long.worker_of_task()
