"""What tests of failing and dying workers run in them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import mpsched

if TYPE_CHECKING:
    from collections.abc import Callable

_HANG_S = 120.0


def identity(value: Any) -> Any:
    return value


def pid() -> int:
    return os.getpid()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def die(how: str) -> NoReturn:
    """End this process: `_exit N`, `signal N`, `abort`, `segv`."""
    name, _, number = how.partition(" ")
    # A core dump and a report of the interpreter would only cost time.
    import faulthandler
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if name == "_exit":
        os._exit(int(number))
    elif name == "signal":
        os.kill(os.getpid(), int(number))
    elif name == "abort":
        os.abort()
    else:
        ctypes.string_at(0)
    time.sleep(_HANG_S)
    raise AssertionError(f"{how} has not ended the process")


def touch(path: str) -> None:
    Path(path).touch()


def write_line(path: str, text: str) -> None:
    """Append one line; whole, whoever else writes."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


def say_started(folder: str, name: str) -> None:
    """Leave a file with this process's number; it is there whole or not at all."""
    started = Path(folder, f"{name}.started")
    draft = started.with_suffix(f".{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(started)


def hold(folder: str, name: str) -> str:
    """Say who runs it, and wait until the test lets it go on."""
    say_started(folder, name)
    wait_for_file(Path(folder, f"{name}.go"))
    return name


def wait_for_file(path: Path) -> None:
    until = time.monotonic() + _HANG_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.002)


def meet(folder: str, count: int) -> int:
    """Wait until `count` workers are here; return this one's index."""
    worker = mpsched.current_worker()
    assert worker is not None
    Path(folder, str(worker.index)).touch()
    until = time.monotonic() + _HANG_S
    while len(os.listdir(folder)) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"only {os.listdir(folder)} came")
        time.sleep(0.002)
    return worker.index


def attempt() -> int:
    task = mpsched.current_task()
    assert task is not None
    return task.attempt


def die_until(last: int, how: str, log: str) -> int:
    """Die in each attempt before number `last`, which returns its number."""
    number = attempt()
    write_line(log, f"{number} {os.getpid()}")
    if number < last:
        die(how)
    return number


def fail_until(last: int, log: str) -> int:
    """Raise in each attempt before number `last`, which returns its number."""
    number = attempt()
    write_line(log, f"{number} {os.getpid()}")
    if number < last:
        raise ConnectionError(f"attempt {number}")
    return number


def slow_death(last: int, seconds: float, log: str) -> int:
    """Note when each attempt runs; all but the last die at their end."""
    number = attempt()
    write_line(log, f"{number} begin {time.monotonic_ns()}")
    time.sleep(seconds)
    write_line(log, f"{number} end {time.monotonic_ns()}")
    if number < last:
        die(f"signal {signal.SIGKILL:d}")
    return number


def die_at(index: int, victim: int, seconds: float) -> int:
    """Return the item, but die at one of them."""
    if index == victim:
        die(f"signal {signal.SIGKILL:d}")
    time.sleep(seconds)
    return index


def stubborn(folder: str, name: str) -> None:
    """Run for ever, whatever is raised."""
    say_started(folder, name)
    until = time.monotonic() + _HANG_S
    while time.monotonic() < until:
        try:
            while time.monotonic() < until:
                time.sleep(0.01)
        except BaseException:
            continue


def until_asked(folder: str, name: str) -> str:
    """Run until its signal is set."""
    task = mpsched.current_task()
    assert task is not None
    say_started(folder, name)
    until = time.monotonic() + _HANG_S
    while not task.cancelled:
        if time.monotonic() > until:
            raise TimeoutError("nobody asked")
        time.sleep(0.002)
    return "asked"


def size_of(data: Any) -> int:
    return len(data)


def large(count: int) -> bytes:
    return bytes(count)


def large_then_die(count: int) -> bytes:
    """Return something that kills its process while it is being sent."""
    return bytes(count)


def act(how: str) -> None:
    """Fail: `raise`, `exit` or as in `die`."""
    if how == "raise":
        raise ValueError("a trap")
    if how == "exit":
        sys.exit(3)
    die(how)


class OnPickle:
    """Fails when it is pickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        act(self.how)
        return OnPickle, (self.how,)


class OnUnpickle:
    """Fails when it is unpickled, in whichever process."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return act, (self.how,)


def make(kind: type, how: str) -> Any:
    """Return an object that fails on its way to the parent."""
    return kind(how)


class Slow:
    """Takes its time to be unpickled, and says so before."""

    def __init__(self, folder: str, name: str, data: bytes) -> None:
        self.state = folder, name, data

    def __reduce__(self) -> Any:
        return _slowly, self.state


def _slowly(folder: str, name: str, data: bytes) -> bytes:
    hold(folder, name)
    return data


def note_and_die_once(items: list[int], log: str) -> list[int]:
    """Note the argument, change it, and die in the first attempt."""
    write_line(log, repr(items))
    result = [*items]
    items.clear()
    if attempt() == 1:
        die("_exit 1")
    return result


def logged(log: str, number: int) -> int:
    """Note that it runs, and return its number."""
    write_line(log, str(number))
    return number


def logged_item(pair: tuple[str, int]) -> int:
    return logged(*pair)


def taken_locks(count: int) -> list[int]:
    """Return which inbox locks are held for ever by a process that is not this worker."""
    from mpsched._worker import context

    worker = context._worker
    assert worker is not None
    until = time.monotonic() + 10.0
    taken = []
    for index in range(count):
        with worker.ring_lock:
            while not (free := worker.locks.try_acquire(index)) and time.monotonic() < until:
                time.sleep(0.001)
            worker.locks.release(index)
        if not free:
            taken.append(index)
    return taken


def call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return function(*args)


def die_at_plain(index: int, victim: int, _seconds: float) -> int:
    """Return the item, but die at one of them; as little work as can be."""
    if index == victim:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_HANG_S)
    return index


def change_and_die_once(data: bytearray, _log: str) -> bytes:
    """Return how an argument begins, change it, and die in the first attempt."""
    begin = bytes(data[:10])
    data[:10] = b"b" * 10
    if attempt() == 1:
        die("_exit 1")
    return begin


def hold_the_interpreter(length: int = 40) -> None:
    """Match a pattern that takes 2**length steps, all in one call of C code."""
    import re

    re.match(r"(a+)+$", "a" * length + "b")


def hold_the_interpreter_until(started: str, fifo: str) -> int:
    """Leave a file, then wait for a line from the test, in one call of C code that keeps the GIL."""
    return int(ctypes.PyDLL(None).system(f"touch '{started}'; read line <'{fifo}'".encode()))


def pid_of(_item: Any) -> int:
    return os.getpid()


def hold_the_interpreter_and_say(folder: str, name: str) -> None:
    say_started(folder, name)
    hold_the_interpreter()


def stop_itself(folder: str, name: str) -> str:
    """Stop this process until it gets SIGCONT."""
    say_started(folder, name)
    os.kill(os.getpid(), signal.SIGSTOP)
    return name


def stop_with_lock(folder: str, name: str) -> str:
    """Stop this worker while it holds the lock of its inbox."""
    from mpsched._worker import context

    worker = context._worker
    assert worker is not None
    with worker.ring_lock:
        worker.locks.acquire(worker.index)
        try:
            stop_itself(folder, name)
        finally:
            worker.locks.release(worker.index)
    return name


def stop_with_locks_of(folder: str, name: str, other: int) -> str:
    """Stop this worker while it holds the locks of another one's inbox and ring, as a thief may."""
    from mpsched._worker import context

    worker = context._worker
    assert worker is not None
    locks = other, worker.deques[other].lock
    with worker.ring_lock:
        try:
            for lock in locks:
                worker.locks.acquire(lock)
            stop_itself(folder, name)
        finally:
            for lock in locks:
                worker.locks.release(lock)
    return name


def hold_as(folder: str, name: str) -> tuple[str, int]:
    """As `hold`; also returns which worker ran it."""
    worker = mpsched.current_worker()
    assert worker is not None
    say_started(folder, f"{name}-{worker.index}")
    return hold(folder, name), worker.index


def is_stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def fail_while_there(path: str) -> None:
    """Fail as long as there is such a file, and note that it was tried."""
    if os.path.exists(path):
        touch(f"{path}.tried")
        raise RuntimeError("a bad start")


def note_and_nap(log: str, seconds: float) -> float:
    """Note that it runs, then sleep."""
    write_line(log, "started")
    return nap(seconds)


def note_and_hold(log: str, folder: str, name: str) -> str:
    """Note that it runs, then wait until the test lets it go on."""
    write_line(log, "started")
    wait_for_file(Path(folder, f"{name}.go"))
    return name


def note_and_be_stubborn(log: str, folder: str, name: str) -> None:
    """Note that it runs, then run for ever, whatever is raised."""
    write_line(log, "started")
    stubborn(folder, name)


def fork_and(how: str, log: str) -> int:
    """Fork; the child leaves in one of several ways. Returns the child's exit code."""
    write_line(log, "run")
    child = os.fork()
    if not child:
        if how == "raise":
            raise ValueError(how)
        if how == "exit":
            sys.exit(3)
        if how == "say":
            sys.exit("said")
        if how == "large":
            return cast("int", bytes(1 << 20))
        return 0
    _pid, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def fork_at(index: int, log: str) -> int:
    """Note each item; the first one forks, and the child returns from it."""
    write_line(log, str(index))
    if not index:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
    return index


class Poison:
    """A function that kills each worker that unpickles it."""

    def __call__(self, item: Any) -> Any:
        return item

    def __reduce__(self) -> Any:
        return act, ("_exit 3",)


def raise_lines() -> NoReturn:
    raise ValueError("first\nsecond")


def pin(count: int) -> int:
    """Spawn children that cannot be pickled, until some would have been published."""
    import threading

    lock = threading.Lock()

    def child(held: Any) -> int:
        time.sleep(0.01)
        return 1

    return sum(handle.join() for handle in [mpsched.spawn(child, lock) for _ in range(count)])


def until_asked_or_there(folder: str, name: str) -> str:
    """Say who runs it; return when its signal is set, or when the test lets it go on."""
    task = mpsched.current_task()
    assert task is not None
    say_started(folder, name)
    go, until = Path(folder, f"{name}.go"), time.monotonic() + _HANG_S
    while not go.exists():
        if task.cancelled:
            return "asked"
        if time.monotonic() > until:
            raise TimeoutError("nobody asked")
        time.sleep(0.002)
    return name


_KEPT: list[bytes] = []


def keep(megabytes: int) -> int:
    """Hold memory for as long as this process lives; return the process."""
    _KEPT.append(b"x" * (megabytes << 20))
    return os.getpid()


def swell(megabytes: int, folder: str, name: str) -> str:
    """Hold memory until the test lets it go on."""
    say_started(folder, name)
    held = b"x" * (megabytes << 20)
    wait_for_file(Path(folder, f"{name}.go"))
    return name if held else ""


def swell_once(megabytes: int, log: str, folder: str) -> int:
    """Hold memory for ever in the first attempt; note when later ones begin and end."""
    number = attempt()
    if number == 1:
        swell(megabytes, folder, "first")
    return noted(log, "alone", 0.2, number)


def noted(log: str, name: str, seconds: float, value: int = 0) -> int:
    """Sleep; note when that began and ended."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    write_line(log, f"{name} {begun} {time.monotonic_ns()}")
    return value


def swelling_child(megabytes: int, folder: str) -> tuple[str, int]:
    """A root whose child elsewhere holds too much, the first time it is called."""
    child = mpsched.spawn(swell_first, megabytes, folder)
    wait_for_file(Path(folder, "child.started"))
    return child.join(), attempt()


def swell_first(megabytes: int, folder: str) -> str:
    if Path(folder, "child.started").exists():
        return "again"
    return swell(megabytes, folder, "child")


def hold_in_attempt(folder: str) -> int:
    """Hold under a name of the attempt's own; return its number."""
    hold(folder, f"attempt{attempt()}")
    return attempt()


class SlowItem:
    """An argument whose pickling waits until the test lets it go on."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        hold(self.folder, "pickling")
        return str, ()


def echo(value: Any) -> Any:
    return value


def hold_with(_array: Any, _data: Any, folder: str, name: str) -> str:
    """As `hold`, with arguments that lie in memory files."""
    return hold(folder, name)
