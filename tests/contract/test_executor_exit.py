"""Programs that end with their pools in every state: nothing hangs, nothing is lost or left."""

from __future__ import annotations

from tests.support.scripts import run_script

START = """
import mpsched, os, sys, time
METHOD = {method!r}
def say(*words):
    # In one piece: `print` writes the end of the line separately, and others print as well.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def square(n):
    return n * n
def slow(n):
    time.sleep(0.2)
    return n
def fail():
    raise ValueError("unseen")
"""


def program(start_method: str, text: str) -> str:
    """Return a script that begins with the functions above."""
    return START.format(method=start_method) + text


def test_exit_after_shutdown_without_waiting(start_method: str) -> None:
    """What was accepted is done, then the program ends with status 0."""
    result = run_script(
        program(
            start_method,
            """
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
for n in range(6):
    ex.submit(slow, n).add_done_callback(lambda f: say(f.result()))
ex.shutdown(wait=False)
say("end of the script")
""",
        )
    )
    assert (result.rc, result.err) == (0, "")
    lines = result.out.split("\n")
    assert lines[0] == "end of the script" or "end of the script" in lines
    assert sorted(line for line in lines if line.isdigit()) == list("012345")


def test_exit_without_any_shutdown(start_method: str) -> None:
    """The pool is finished at exit, as in the standard library; exit handlers run after that."""
    result = run_script(
        program(
            start_method,
            """
import atexit
atexit.register(lambda: print("atexit", all(f.done() for f in futures), flush=True))
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
futures = [ex.submit(slow, n) for n in range(6)]
print("end", flush=True)
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "end\natexit True\n", "")


def test_exit_with_a_map_that_nobody_read(start_method: str) -> None:
    """It runs to its end at exit."""
    result = run_script(
        program(
            start_method,
            """
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
ex.map(say, range(50))
""",
        )
    )
    assert (result.rc, result.err) == (0, "")
    assert sorted(map(int, result.out.split())) == list(range(50))


def test_exit_that_shuts_down_from_an_exit_handler(start_method: str) -> None:
    """`atexit` is too late for new work, and early enough to shut down again."""
    result = run_script(
        program(
            start_method,
            """
import atexit
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
def at_exit():
    ex.shutdown()
    print(ex.state, future.result(), flush=True)
    try:
        ex.submit(square, 3)
    except mpsched.errors.SchedulerClosed:
        print("closed", flush=True)
atexit.register(at_exit)
future = ex.submit(slow, 5)
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "terminated 5\nclosed\n", "")


def test_exit_by_an_error_inside_of_the_block(start_method: str) -> None:
    """The traceback is the program's own, its status 1."""
    result = run_script(
        program(
            start_method,
            """
with mpsched.WorkStealingExecutor(2, mp_context=METHOD) as ex:
    future = ex.submit(slow, 1)
    raise LookupError("of the script")
""",
        )
    )
    assert result.rc == 1
    assert "LookupError: of the script" in result.err
    assert result.err.count("Traceback") == 1


def test_exit_by_sys_exit_with_a_busy_pool(start_method: str) -> None:
    """The status is the program's own."""
    result = run_script(
        program(
            start_method,
            """
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
futures = [ex.submit(slow, n) for n in range(4)]
sys.exit(7)
""",
        )
    )
    assert (result.rc, result.out, result.err) == (7, "", "")


def test_exit_by_os_exit_leaves_no_worker(start_method: str) -> None:
    """Without any clean-up the processes go by themselves."""
    result = run_script(
        program(
            start_method,
            """
import os
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD)
future = ex.submit(time.sleep, 600)
ex.submit(square, 3).result()
os._exit(5)
""",
        )
    )
    assert (result.rc, result.err) == (5, "")


def test_exit_with_an_unread_failure_logs_it(start_method: str) -> None:
    """On standard error, by the logger, once."""
    result = run_script(
        program(
            start_method,
            """
with mpsched.WorkStealingExecutor(2, mp_context=METHOD) as ex:
    ex.submit(fail)
    ex.submit(square, 3)
""",
        )
    )
    assert result.rc == 0
    assert result.err.count("nobody read it") == 1
    assert "ValueError: unseen" in result.err


def test_exit_with_several_pools(start_method: str) -> None:
    """Open, ended and dropped ones."""
    result = run_script(
        program(
            start_method,
            """
pools = [mpsched.WorkStealingExecutor(1, mp_context=METHOD) for _ in range(4)]
futures = [ex.submit(slow, n) for n, ex in enumerate(pools)]
pools[0].shutdown()
del pools[1]
pools[1].shutdown(wait=False)
print([future.result() for future in futures])
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "[0, 1, 2, 3]\n", "")


def test_exit_with_a_pool_in_a_daemon_thread(start_method: str) -> None:
    """A daemon thread that waits for a result does not keep the program."""
    result = run_script(
        program(
            start_method,
            """
import threading
ex = mpsched.WorkStealingExecutor(1, mp_context=METHOD)
ready = threading.Event()
def wait():
    future = ex.submit(slow, 1)
    ready.set()
    future.result()
threading.Thread(target=wait, daemon=True).start()
ready.wait()
print("end")
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "end\n", "")


def test_exit_with_a_pool_that_a_thread_still_uses(start_method: str) -> None:
    """A thread that submits while the interpreter ends is refused, not hung."""
    result = run_script(
        program(
            start_method,
            """
import threading
ex = mpsched.WorkStealingExecutor(1, mp_context=METHOD)
ready = threading.Event()
def work():
    try:
        while True:
            ex.submit(square, 3).result()
            ready.set()
    except RuntimeError as problem:
        print(type(problem).__name__, flush=True)
threading.Thread(target=work).start()
ready.wait()
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "SchedulerClosed\n", "")


def test_exit_with_the_default_pool() -> None:
    """`mpsched.run` and `mpsched.map` need no shutdown at all."""
    result = run_script(
        program(
            "forkserver",  # of no pool here: the default one starts in the default way
            """
print(mpsched.run(square, 3), mpsched.map(square, range(4)))
""",
        )
    )
    assert (result.rc, result.out, result.err) == (0, "9 [0, 1, 4, 9]\n", "")


def test_exit_of_a_program_that_only_imports() -> None:
    """Importing starts nothing."""
    result = run_script(
        """
import mpsched, threading, os
mpsched.WorkStealingExecutor
print(threading.active_count(), os.listdir(f"/proc/{os.getpid()}/task").__len__())
"""
    )
    assert (result.rc, result.out, result.err) == (0, "1 1\n", "")


def test_exit_closed_standard_streams(start_method: str) -> None:
    """A daemon without standard streams may have a pool."""
    result = run_script(
        program(
            start_method,
            """
import os
out = os.dup(1)
for fd in (0, 1, 2):
    os.close(fd)
with mpsched.WorkStealingExecutor(2, mp_context=METHOD) as ex:
    text = repr(sorted(ex.map(square, range(5))))
os.write(out, text.encode())
os._exit(0)
""",
        )
    )
    assert (result.rc, result.out) == (0, "[0, 1, 4, 9, 16]")
