"""By-value pickles as a whole: errors, memory, threads, and whole programs without a main guard.

The parent is this process with a notebook's `__main__`; the worker is a second interpreter.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import types
from typing import TYPE_CHECKING

import pytest

from mpsched._tasks import codec
from mpsched.errors import EncodeError, RemoteError, ResultEncodeError
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from tests.support.peer import Notebook, Peer


def test_memory_many_distinct_lambdas_leave_both_sides_flat(main: Notebook, peer: Peer) -> None:
    """Thousands of lambdas, each of its own code, are forgotten again here and there."""
    main.cell(
        """
        import gc
        def many(start, stop):
            return [eval(f"lambda: {i}") for i in range(start, stop)]
        def count():
            gc.collect()
            return sum(type(o) is type(count) for o in gc.get_objects())
        """
    )

    def here_and_there() -> tuple[int, int]:
        return main["count"](), peer.run(main["count"])

    def use(start: int, stop: int) -> None:
        for i, fn in enumerate(main["many"](start, stop), start):
            assert peer.run(fn) == i

    use(0, 600)  # more than are kept
    before = here_and_there()
    use(600, 3000)
    after = here_and_there()
    assert after[0] - before[0] < 100
    assert after[1] - before[1] < 100


def test_threads_may_encode_at_the_same_time(main: Notebook, peer: Peer) -> None:
    """Pickling by value has no state that two threads share."""
    main.cell("K = list(range(50))\nclass P:\n    def m(self): return K\ndef f(p): return p.m()")
    frames: list[bytes] = []

    def work() -> None:
        frames.extend(peer.send(main["f"], main["P"]()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(frames) == 200
    assert all(peer.call(frame) == main["K"] for frame in frames)


def test_errors_name_what_a_function_takes_along(main: Notebook, peer: Peer) -> None:
    """A global, a variable of a closure, an attribute, an element: the text says which."""
    main.cell(
        """
        import threading
        lock = threading.Lock()
        def uses_global(): return lock
        def closure():
            inner = threading.Lock()
            return lambda: inner
        class Holder:
            def __init__(self): self.handle = {"lock": threading.Lock()}
        def f(*a): return a
        """
    )
    f = main["f"]
    cases = [
        (main["uses_global"], (), r"global 'lock' that uses_global refers to .* _thread\.lock"),
        (main["closure"](), (), r"variable 'inner' of closure\.<locals>\.<lambda> "),
        (f, (1, main["Holder"]()), r"args\[1\]\.handle\['lock'\] cannot be pickled"),
        (f, ([0] * 50 + [main["lock"]],), r"args\[0\]\[50\] cannot be pickled"),
    ]
    for fn, args, text in cases:
        with pytest.raises(EncodeError, match=text) as caught:
            peer.send(fn, *args)
        assert isinstance(caught.value.__cause__, TypeError)


def test_errors_exceptions_of_the_program_keep_their_class(main: Notebook, peer: Peer) -> None:
    """Also with a message made from arguments, in a group, and as exit; or a stand-in names it."""
    main.cell(
        """
        class Odd(Exception):
            def __init__(self, ident):
                super().__init__(f"item {ident} failed")
                self.ident = ident
        class Two(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")
        def fail(kind):
            if kind == "odd": raise Odd(3)
            if kind == "group": raise ExceptionGroup("some", [Odd(4), ValueError(5)])
            if kind == "exit": raise SystemExit(6)
            if kind == "two": raise Two(7, 8)
        """
    )
    with pytest.raises(main["Odd"]) as odd:
        peer.run(main["fail"], "odd")
    assert (odd.value.args, odd.value.ident) == (("item 3 failed",), 3)
    assert "<cell 1>" in str(odd.value.__cause__)
    assert odd.value.__notes__ == ["a call"]
    with pytest.raises(ExceptionGroup) as group:
        peer.run(main["fail"], "group")
    assert [str(one) for one in group.value.exceptions] == ["item 4 failed", "5"]
    with pytest.raises(SystemExit) as left:
        peer.run(main["fail"], "exit")
    assert left.value.code == 6
    with pytest.raises(RemoteError, match="Two: 7 and 8") as two:
        peer.run(main["fail"], "two")
    assert (two.value.class_name, two.value.message) == ("__main__.Two", "7 and 8")
    assert "in fail" in str(two.value.__cause__)


def test_errors_a_result_that_does_not_survive_fails_alone(main: Notebook, peer: Peer) -> None:
    """Unpickling that raises or exits is found in the worker, which goes on."""
    main.cell(
        """
        import sys
        def explode(): raise OSError("on arrival")
        class Raises:
            def __reduce__(self): return explode, ()
        class Exits:
            def __reduce__(self): return sys.exit, (3,)
        class CannotGo:
            def __reduce__(self): sys.exit(4)
        def make(name): return [globals()[name]()]
        def ok(): return Raises, Exits, CannotGo
        """
    )
    peer.run(main["ok"])
    for name in ("Raises", "Exits", "CannotGo"):
        with pytest.raises(ResultEncodeError):
            peer.run(main["make"], name)
    with pytest.raises(EncodeError):
        peer.run(main["make"], main["CannotGo"]())
    assert peer.run(len, "abc") == 3


def test_large_functions_are_warned_about_once(main: Notebook, peer: Peer) -> None:
    """Over 1 MiB: the warning names the largest global, or variable, and its size."""
    main.cell(
        """
        PRICES = bytes(3_000_000)
        SMALL = 1
        def backtest(): return len(PRICES) + SMALL
        def closure():
            table = list(range(500_000))
            return lambda: len(table)
        """
    )
    with pytest.warns(RuntimeWarning, match=r"'backtest' .* global 'PRICES' \(bytes\) .*3\.0 MB"):
        assert peer.run(main["backtest"]) == 3_000_001
    assert peer.run(main["backtest"]) == 3_000_001
    with pytest.warns(RuntimeWarning, match=r"variable 'table' of closure\.<locals>\.<lambda>"):
        peer.run(main["closure"]())


def test_pickles_are_loaded_by_plain_pickle(main: Notebook, peer: Peer) -> None:
    """A by-value pickle is an ordinary one, out-of-band buffers included."""
    main.cell("class P:\n    def __init__(self, v): self.v = v")
    payload = bytearray(b"x" * 1000)
    value = main["P"](pickle.PickleBuffer(payload))
    data, buffers = codec.encode((value, 1), threshold=1000)
    assert len(buffers) == 1
    back, one = pickle.loads(data, buffers=buffers)
    assert (type(back), one, len(back.v.raw() if hasattr(back.v, "raw") else back.v)) == (
        main["P"], 1, 1000
    )  # fmt: skip
    del peer


SCRIPT = """
import dataclasses
from tests.support.peer import Peer
MODEL = None
FEE = 1
def init(value):
    global MODEL
    MODEL = value
@dataclasses.dataclass
class P:
    x: int
    def fee(self): return self.x + FEE
def task(p): return MODEL, isinstance(p, P), p.fee(), P(p.x + 1)
with Peer() as peer:
    peer.run(init, "set")
    assert peer.run(task, P(1)) == ("set", True, 2, P(2))
    FEE = 5
    assert peer.run(task, P(1)) == ("set", True, 6, P(2))
    assert peer.run(lambda x: x + FEE, 1) == 6
print("all well")
"""


@pytest.mark.parametrize("way", ["file", "stdin", "-c"])
def test_programs_without_main_guard_work(way: str) -> None:
    """A script, a program on standard input and `python -c` need no guard and are not run again."""
    if way == "-c":
        source = (
            f"import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', {SCRIPT!r}]))"
        )
        result = run_script(source)
    else:
        result = run_script(SCRIPT, stdin=way == "stdin")
    assert (result.rc, result.out.strip(), result.err) == (0, "all well", "")


def test_program_of_functions_needs_no_cloudpickle() -> None:
    """Neither the program nor a worker whose task forks imports it: it takes longer than all the rest."""
    result = run_script(
        """
        import sys
        import mpsched
        LIMIT = 2
        def fib(n):
            if n < LIMIT: return n
            child = mpsched.spawn(fib, n - 1)
            return fib(n - 2) + child.join()
        def heavy(): return sorted({"cloudpickle", "dataclasses", "inspect", "logging"} & set(sys.modules))
        def task():
            left = mpsched.spawn(fib, 15)
            return fib(14) + left.join(), heavy()
        before = set(heavy())
        with mpsched.WorkStealingExecutor(max_workers=2) as pool:
            found = [pool.run(task) for _ in range(8)]
        stats = pool.stats()
        assert all(number == 987 for number, _ in found), found
        assert all(not names for _, names in found), found
        assert "cloudpickle" not in set(heavy()) - before
        print("published", stats.published > 0)
        """,
        env={"MPSCHED_DEBUG": "steal"},
    )
    assert result.out == "published True\n", result


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_workers_start_with_what_is_sent_to_them(main: Notebook) -> None:
    """A forked worker inherits the program's classes and functions; it takes those it is sent."""
    main.cell(
        """
        FEE = 1
        class P:
            def fee(self): return FEE
        def use(p): return isinstance(p, P), p.fee(), P()
        """
    )
    codec.dumps_callable(main["use"])
    codec.encode(main["P"](), threshold=1 << 30)
    requests, answers = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sys.modules["__main__"] = types.ModuleType("__main__")
            codec.enter_worker()
            for _ in range(2):
                fn, arg = pickle.loads(os.read(requests[0], 1 << 16))
                data, _buffers = codec.encode_result(
                    codec.loads_callable(fn)(codec.decode(arg)), 1 << 30
                )
                os.write(answers[1], data)
        finally:
            os._exit(0)
    try:
        for fee in (1, 2):
            vars(main.module)["FEE"] = fee
            fn = codec.dumps_callable(main["use"])
            arg, _ = codec.encode(main["P"](), threshold=1 << 30)
            os.write(requests[1], pickle.dumps((fn, arg)))
            known, seen, back = codec.decode(os.read(answers[0], 1 << 16))
            assert (known, seen, type(back)) == (True, fee, main["P"])
    finally:
        os.waitpid(pid, 0)
        for fd in (*requests, *answers):
            os.close(fd)
