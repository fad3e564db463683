"""No main guard: scripts, standard input, `-c`, a prompt, a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tests.support import leaks
from tests.support.scripts import ROOT, ScriptResult, run_script

if TYPE_CHECKING:
    from pathlib import Path

# Everything that people define in their main program, used in tasks and coming back. No blank line
# inside a block: it is typed at a prompt as well.
PROGRAM = """
import dataclasses, enum, functools, os, typing
import mpsched
FACTOR = 10
TABLE = {"a": 1}
def helper(n):
    return n * FACTOR
def work(n: int) -> int:
    return helper(n) + TABLE["a"]
def recursive(n):
    return 1 if n < 2 else n * recursive(n - 1)
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
def counter():
    count = 0
    def step(by):
        nonlocal count
        count += by
        return count
    return step
def traced(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return "traced", fn(*args)
    return wrapper
@traced
def decorated(n):
    return n + 1
@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    def norm(self):
        return self.x + self.y
    @classmethod
    def origin(cls):
        return cls(0, 0)
class Base:
    def name(self):
        return "base"
class Derived(Base):
    def name(self):
        return "derived of " + super().name()
    def __eq__(self, other):
        return isinstance(other, Derived)
    __hash__ = None
class Colour(enum.Enum):
    RED = 1
class Pair(typing.NamedTuple):
    left: int
    right: int
class Own(Exception):
    pass
def moved(p):
    assert isinstance(p, Point), type(p)
    return Point(p.x + 1, p.norm())
def colour(c):
    assert c is Colour.RED
    return c
def fail(n):
    raise Own(n)
LOADED = None
def init(value):
    global LOADED
    LOADED = value
def loaded(n):
    return LOADED, n
def main_name(_):
    return __name__, os.getpid()
ex = mpsched.WorkStealingExecutor(2, mp_context=METHOD, initializer=init, initargs=("model",))
print("work", ex.submit(work, 4).result(), list(ex.map(work, range(3))))
print("recursive", ex.submit(recursive, 5).result(), ex.submit(even, 7).result())
print("lambda", [f.result() for f in [ex.submit(lambda k=k: k * FACTOR) for k in range(3)]])
print("closure", ex.submit(counter(), 5).result(), ex.submit(decorated, 1).result())
p = ex.submit(moved, Point(3)).result()
print("dataclass", p, isinstance(p, Point), p == Point(4, 5), ex.submit(Point.origin).result())
d = ex.submit(Derived).result()
print("class", isinstance(d, Derived), isinstance(d, Base), ex.submit(d.name).result())
print("enum", ex.submit(colour, Colour.RED).result() is Colour.RED, ex.submit(Pair, 1, 2).result())
e = ex.submit(fail, 7).exception()
print("error", isinstance(e, Own), e.args, type(e) is Own, "fail" in str(e.__cause__))
print("initializer", ex.submit(loaded, 1).result(), set(ex.map(loaded, range(9))) == {("model", n) for n in range(9)})
FACTOR = 100
print("constant", ex.submit(work, 4).result(), ex.submit(loaded, 2).result())
def helper(n):
    return -n
print("helper", ex.submit(work, 4).result(), list(ex.map(work, [1])), ex.submit(loaded, 3).result())
name, pid = ex.submit(main_name, 0).result()
print("main", name, pid != os.getpid())
print("deaths", ex.stats().deaths)
ex.shutdown()
"""

EXPECTED = """
work 41 [1, 11, 21]
recursive 120 False
lambda [0, 10, 20]
closure 5 ('traced', 2)
dataclass Point(x=4, y=5) True True Point(x=0, y=0)
class True True derived of base
enum True Pair(left=1, right=2)
error True (7,) True True
initializer ('model', 1) True
constant 401 ('model', 2)
helper -3 [0] ('model', 3)
main __main__ True
deaths 0
""".lstrip()


def program(start_method: str) -> str:
    """Return the program for a start method."""
    return PROGRAM.replace("METHOD", repr(start_method))


def test_main_of_a_script_without_guard(start_method: str) -> None:
    """A file that is run."""
    result = run_script(program(start_method))
    assert (result.rc, result.err, result.out) == (0, "", EXPECTED)


def test_main_from_standard_input(start_method: str) -> None:
    """`python -`: a program without a file."""
    result = run_script(program(start_method), stdin=True)
    assert (result.rc, result.err, result.out) == (0, "", EXPECTED)


def test_main_of_the_option_c(start_method: str, tmp_path: Path) -> None:
    """`python -c`: a program in an argument."""
    result = run_python(["-c", program(start_method)], tmp_path)
    assert (result.rc, result.err, result.out) == (0, "", EXPECTED)


def test_main_of_the_option_m(start_method: str, tmp_path: Path) -> None:
    """`python -m package.module`: functions of `__main__` again."""
    package = tmp_path / "package_of_the_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "module.py").write_text(program(start_method), encoding="utf-8")
    result = run_python(["-m", "package_of_the_test.module"], tmp_path)
    assert (result.rc, result.err, result.out) == (0, "", EXPECTED)


def test_main_with_a_guard_works_as_ever(start_method: str) -> None:
    """What runs under the standard library runs here: the main block is run once."""
    result = run_script(
        f"""
import mpsched
print("top", __name__, flush=True)
def square(n):
    return n * n
if __name__ == "__main__":
    with mpsched.WorkStealingExecutor(2, mp_context={start_method!r}) as ex:
        print(list(ex.map(square, range(4))), flush=True)
"""
    )
    assert (result.rc, result.err, result.out) == (0, "", "top __main__\n[0, 1, 4, 9]\n")


def test_main_that_was_changed_or_deleted_meanwhile(start_method: str) -> None:
    """Workers never read the script: it may be gone."""
    result = run_script(
        f"""
import mpsched, os
def square(n):
    return n * n
os.unlink(__file__)
with mpsched.WorkStealingExecutor(2, mp_context={start_method!r}) as ex:
    print(list(ex.map(square, range(4))))
"""
    )
    assert (result.rc, result.err, result.out) == (0, "", "[0, 1, 4, 9]\n")


def test_main_functions_that_take_much_with_them_warn_once(start_method: str) -> None:
    """A large global inside of a function is named, once, and everything works."""
    result = run_script(
        f"""
import mpsched
PRICES = b"x" * 3_000_000
def backtest(n):
    return len(PRICES) + n
with mpsched.WorkStealingExecutor(2, mp_context={start_method!r}) as ex:
    print([ex.submit(backtest, n).result() for n in range(3)])
"""
    )
    assert (result.rc, result.out) == (0, "[3000000, 3000001, 3000002]\n")
    assert result.err.count("RuntimeWarning") == 1
    assert "PRICES" in result.err
    assert "3.0 MB" in result.err


def test_main_with_a_pool_at_the_top_and_functions_below(start_method: str) -> None:
    """Functions that are defined after the pool was made are sent like all others."""
    result = run_script(
        f"""
import mpsched
ex = mpsched.WorkStealingExecutor(1, mp_context={start_method!r})
ex.submit(abs, 1).result()
def later(n):
    return n + 1
class Later:
    def __call__(self, n):
        return later(n) + 1
print(ex.submit(later, 1).result(), ex.submit(Later(), 1).result())
"""
    )
    assert (result.rc, result.err, result.out) == (0, "", "2 3\n")


def test_main_isinstance_holds_in_nested_results(start_method: str) -> None:
    """Classes of `__main__` inside containers, as arguments, results and errors."""
    result = run_script(
        f"""
import mpsched
class Node:
    def __init__(self, left=None, right=None):
        self.left, self.right = left, right
class Fault(Exception):
    def __init__(self, node):
        super().__init__(node)
        self.node = node
def grow(node):
    assert all(isinstance(one, Node) for one in node["nodes"])
    return [Node(node["nodes"][0], Node()), Node]
def fault(node):
    raise Fault(node)
with mpsched.WorkStealingExecutor(2, mp_context={start_method!r}) as ex:
    tree, kind = ex.submit(grow, dict(nodes=[Node(), Node()])).result()
    print(type(tree) is Node, type(tree.left) is Node, type(tree.right) is Node, kind is Node)
    error = ex.submit(fault, Node()).exception()
    print(type(error) is Fault, type(error.node) is Node)
"""
    )
    assert (result.rc, result.err, result.out) == (0, "", "True True True True\nTrue True\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_main_of_a_prompt(start_method: str) -> None:
    """A real `python -i` on a terminal, one statement after the other."""
    from tests.support.terminal import Terminal

    shown = []
    with Terminal() as prompt:
        for statement in statements(program(start_method)):
            shown.append(prompt.run(statement))
            assert "Traceback" not in shown[-1], (statement, shown[-1])
        session = prompt.pid
        assert prompt.end() == 0
    assert [line for text in shown for line in text.splitlines()] == EXPECTED.splitlines()
    deadline = time.monotonic() + 20
    while left := leaks.processes_of_session(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


# Cells that are changed and run again on the same pool, and a pool that is dropped.
CELLS = [
    "FEE = 1\ndef cost(n):\n    return n + FEE",
    "pool = mpsched.WorkStealingExecutor(2, mp_context=METHOD)",
    "print(pool.submit(cost, 1).result())",
    "FEE = 2",
    "print(pool.submit(cost, 1).result())",
    "class Thing:\n    kind = 1",
    "print(pool.submit(lambda t: (t.kind, isinstance(t, Thing)), Thing()).result())",
    "class Thing:\n    kind = 2",
    "print(pool.submit(lambda t: (t.kind, isinstance(t, Thing)), Thing()).result())",
    "pool = mpsched.WorkStealingExecutor(1, mp_context=METHOD)",
    "print(pool.submit(cost, 2).result())",
    "pool.shutdown()",
]
EXPECTED_OF_CELLS = EXPECTED + "2\n3\n(1, True)\n(2, True)\n4\n"


def cells(start_method: str) -> list[str]:
    """Return the program, part by part, and the cells above."""
    return statements(program(start_method)) + [
        cell.replace("METHOD", repr(start_method)) for cell in CELLS
    ]


def test_main_of_cells(start_method: str) -> None:
    """What a notebook does, without its kernel: a `__main__` without a file, cell after cell."""
    result = run_script(
        f"""
import sys, types
main = sys.modules["__main__"] = types.ModuleType("__main__")
for number, cell in enumerate({cells(start_method)!r}):
    exec(compile(cell, f"<cell {{number}}>", "exec"), vars(main))
"""
    )
    assert (result.rc, result.err, result.out) == (0, "", EXPECTED_OF_CELLS)


def test_main_of_a_notebook(start_method: str) -> None:
    """A real IPython kernel; it needs the extra `notebook`."""
    pytest.importorskip("ipykernel")
    pytest.importorskip("jupyter_client")
    result = run_script(
        f"""
from jupyter_client.manager import start_new_kernel
CELLS = {cells(start_method)!r}
manager, client = start_new_kernel()
def show(message):
    if message["msg_type"] == "stream":
        print(message["content"]["text"], end="", flush=True)
    elif message["msg_type"] == "error":
        print("\\n".join(message["content"]["traceback"]), flush=True)
for cell in CELLS:
    reply = client.execute_interactive(cell, timeout=60, output_hook=show)
    if reply["content"]["status"] != "ok":
        break
client.stop_channels()
manager.shutdown_kernel()
""",
        env={
            "IPYTHONDIR": "/nonexistent",
            "JUPYTER_PLATFORM_DIRS": "1",
            "PYTHONWARNINGS": "ignore",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        },
        timeout=100,
    )
    assert (result.rc, result.out) == (0, EXPECTED_OF_CELLS), result.err


def statements(text: str) -> list[str]:
    """Part a program into its top-level statements, decorators and blocks included."""
    import ast

    lines = text.splitlines()
    found = []
    for node in ast.parse(text).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        found.append("\n".join(lines[first - 1 : node.end_lineno]))
    return found


def run_python(arguments: list[str], folder: Path) -> ScriptResult:
    """Run this interpreter in `folder`, in a session of its own, and look for what it leaves."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    }
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while left := leaks.processes_of_session(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    return ScriptResult(process.returncode, out, textwrap.dedent(err))
