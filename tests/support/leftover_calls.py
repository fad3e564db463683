"""Tasks that leave their worker otherwise than they found it, and tasks that look at it."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

KEPT = "MPSCHED_TEST_KEPT"
NEW = "MPSCHED_TEST_NEW"


def _raise(*_args: Any) -> NoReturn:
    raise RuntimeError("from what a task has left")


def _follow(_frame: FrameType, _event: str, _arg: Any) -> Any:
    return _follow


def look() -> dict[str, Any]:
    """Return what tasks must not change for each other."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    return {
        "directory": os.getcwd(),
        "variable": os.environ.get(KEPT),
        "handlers": {number: str(signal.getsignal(number)) for number in numbers},
        "timers": [signal.getitimer(which) for which in range(3)],
        "held": sorted(held),
        "limit": sys.getrecursionlimit(),
        "collects": (gc.isenabled(), gc.get_threshold()),
        "switches": sys.getswitchinterval(),
        "traces": (sys.gettrace(), sys.getprofile()),
        "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "children": subprocess.run([sys.executable, "-c", ""], check=False).returncode,
    }


def for_a_while(change: Callable[[], Any]) -> Any:
    """Call, and go on for as long as it takes to be looked after."""
    result = change()
    time.sleep(0.002)
    return result


def pid(_item: Any = None) -> int:
    return os.getpid()


def directory(_item: Any = None) -> str:
    return os.getcwd()


def change_directory() -> None:
    os.chdir("/")


def change_directory_at(item: int, victim: int) -> str:
    """Change the directory at one item; return what each item begins with."""
    here = os.getcwd()
    if item == victim:
        os.chdir("/")
        time.sleep(0.002)
    return here


def change_variables() -> None:
    os.environ[KEPT] = "changed"


def remove_variables() -> None:
    os.environ.clear()


def replace_variables() -> None:
    os.environ = {KEPT: "replaced"}  # type: ignore[assignment]  # noqa: B003


def add_variable() -> None:
    os.environ[NEW] = "new"


def get_variable() -> str | None:
    return os.environ.get(NEW)


def lower_limit() -> None:
    sys.setrecursionlimit(100)


def take_interrupt() -> None:
    signal.signal(signal.SIGINT, _raise)


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def ignore_end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def leave_alarm() -> None:
    """Forget a time limit."""
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def leave_bare_alarm() -> None:
    """Forget an alarm that would end the process."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})


def leave_wakeup() -> None:
    """Let signals be written to a descriptor that others will use."""
    signal.set_wakeup_fd(os.eventfd(0, os.EFD_NONBLOCK))


def get_wakeup() -> int:
    return signal.set_wakeup_fd(-1)


def leave_cpu_timer() -> None:
    signal.setitimer(signal.ITIMER_PROF, 1.0)


def stop_collecting() -> None:
    gc.disable()


def never_collect() -> None:
    gc.set_threshold(0)


def hog_the_interpreter() -> None:
    sys.setswitchinterval(5)


def trace() -> None:
    sys.settrace(_follow)


def profile() -> None:
    sys.setprofile(lambda *_args: None)


def redirect() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - left open on purpose
    sys.stderr = None


class _Bad:
    """A stream that fails in every way."""

    closed = False

    def write(self, _text: str) -> NoReturn:
        raise RuntimeError("write")

    def flush(self) -> NoReturn:
        raise SystemExit(3)


def redirect_badly() -> None:
    sys.stdout = _Bad()
    sys.stderr = _Bad()


def alarms_for_ever() -> int:
    """Let a handler raise again and again, wherever the worker is."""
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.000_3)
    return os.getpid()


def interrupt_later() -> int:
    """Let a thread set an exception in the main thread when the worker is idle."""
    from mpsched._shm import layout as lay
    from mpsched._worker import context

    main, worker = threading.main_thread().ident, context._worker
    assert main is not None
    assert worker is not None

    def run() -> None:
        while worker.words[worker.block + lay.B_STATE] != lay.PARKED:
            time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(main), ctypes.py_object(KeyboardInterrupt)
        )

    threading.Thread(target=run, daemon=True).start()
    return os.getpid()


def close_descriptors() -> int:
    os.closerange(3, 256)
    return os.getpid()


def replace_descriptors(path: str) -> int:
    """Close all descriptors; what is opened then has the worker's numbers, and is written to by nobody."""
    taken = [fd for fd in range(3, 256) if _is_open(fd)]
    os.closerange(3, 256)
    for _ in taken:
        os.open(path, os.O_RDWR | os.O_CREAT)
    time.sleep(0.02)
    return os.getpid()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def close_output() -> int:
    sys.stdout.close()
    return os.getpid()


def close_standard_descriptors() -> int:
    for fd in range(3):
        os.close(fd)
    return os.getpid()


def at_exit(path: str) -> int:
    """Register functions that run when the worker leaves; one of them fails."""
    atexit.register(Path(path).write_text, "left")
    atexit.register(_raise)
    return os.getpid()


def say(text: str, end: str = "\n") -> None:
    print(text, end=end)


def leave_a_child(seconds: float, *, daemon: bool) -> int:
    """Leave a process of `multiprocessing` behind."""
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(seconds,), daemon=daemon
    )
    process.start()
    assert process.pid is not None
    return process.pid


def leave_a_thread(seconds: float) -> int:
    """Leave a thread behind that Python would wait for at its exit."""
    threading.Thread(target=time.sleep, args=(seconds,)).start()
    return os.getpid()


def leave_a_thread_until(path: str) -> int:
    """As `leave_a_thread`; it ends when there is such a file."""
    from tests.support import crash_calls

    threading.Thread(target=crash_calls.wait_for_file, args=(Path(path),)).start()
    return os.getpid()


def exit_in_a_thread() -> int:
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return os.getpid()


def break_hooks() -> int:
    sys.excepthook = threading.excepthook = sys.unraisablehook = _raise
    return os.getpid()


def wait_for_every_child() -> int:
    """Reap whatever there is, as careless servers do."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return os.getpid()


def few_descriptors() -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return os.getpid()


def be_nice() -> int:
    os.nice(1)
    os.umask(0o777)
    return os.getpid()


def be_strict() -> int:
    import locale
    import warnings

    warnings.simplefilter("error")
    locale.setlocale(locale.LC_ALL, "C")
    return os.getpid()


def children_actions() -> list[str]:
    """Return what a program that a task starts does at SIGINT, and what it blocks and ignores."""
    code = "import signal as s; print(s.getsignal(2).__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    raw = subprocess.run(
        ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"],
        check=True,
        capture_output=True,
        text=True,
    )
    # 32 and 33 belong to the C library, which lets what it starts by posix_spawn ignore them.
    own = ~(1 << 31 | 1 << 32)
    sets = [f"{int(word, 16) & own:x}" for word in raw.stdout.split()[1::2]]
    return [done.stdout.strip(), *sets]


def hold_at_exit(folder: str, name: str) -> None:
    """Let this worker wait when it leaves."""
    from tests.support import crash_calls

    atexit.register(crash_calls.hold, folder, name)


def ring_helper(error: type[BaseException], times: int) -> int:
    """Let the helper of this worker fail so many times, ring it once; return how often it tried."""
    from mpsched._worker import context, helper

    worker = context._worker
    assert worker is not None
    share = helper.share
    tries = 0

    def failing(of: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= times:
            raise error("a test's")
        share(of)

    helper.share = failing  # type: ignore[assignment]
    try:
        worker.helper_bells[worker.index].wake()
        until = time.monotonic() + 60.0
        while tries <= times and time.monotonic() < until:
            time.sleep(0.002)
    finally:
        helper.share = share
    return tries


def take_all_memory(seconds: float) -> str:
    """Hold all the memory that this process may have, and let the helper be asked meanwhile."""
    import resource

    from mpsched._worker import context

    worker = context._worker
    assert worker is not None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    hoard: list[bytearray] = []
    size = 1 << 24
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
    try:
        while size >= 512:
            try:
                hoard.append(bytearray(size))
            except MemoryError:
                size //= 2
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            worker.helper_bells[worker.index].wake()
            time.sleep(0.005)
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)
    return "freed"


def ask_for_too_much() -> None:
    """Ask for more than the limit of this task allows."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
    try:
        bytearray(1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def asks_for_threads() -> tuple[bool, int]:
    """Fork, and return whether spawns ask which thread they are in, and the sum of two children."""
    from mpsched import spawn
    from mpsched._worker import hot

    first = spawn(abs, -3).join()
    code = hot.Handle.join.__code__
    return hot.careful and code is not hot._join.__code__, first + spawn(abs, -4).join()


def spawns_in_a_thread() -> tuple[bool, int]:
    """Spawn beside a thread that spawns, too; then as `asks_for_threads`."""
    from mpsched import spawn

    found = asks_for_threads()
    assert not found[0]
    sums: list[int] = []
    thread = threading.Thread(target=lambda: sums.append(spawn(abs, -5).join()))
    thread.start()
    thread.join()
    asks, total = asks_for_threads()
    return asks, total + sums[0]
