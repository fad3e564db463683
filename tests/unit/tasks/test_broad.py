"""Functions are pickled without cloudpickle, and the same as with it."""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
from typing import Any

import pytest

from mpsched._tasks import byvalue, codec, namespaces
from mpsched.errors import EncodeError

PLAIN = """
import math, json
LIMIT, NAMES, KINDS, BLOB = 3, ("a", None, 2.5, 1j), (int, ValueError), bytearray(b"x")
TABLE = {"a": [1, {2}], range(3): ...}
UPPER, ROOT = len, math.sqrt
def helper(a, b=1, *, c=2): return LIMIT, NAMES, TABLE
def fib(n: int) -> int: return n if n < 2 else fib(n - 1) + fib(n - 2)
def task(x): return helper(x), fib(x), ROOT(x), UPPER("a"), KINDS, BLOB, json.dumps(x)
def outer():
    seen = []
    def inner(x):
        seen.append(x)
        return inner if x else seen
    return inner
inner = outer()
square = lambda x: x * x
"""

OTHERS = """
import dataclasses, threading
@dataclasses.dataclass
class P:
    x: int
POINT = P(1)
def first(): return POINT
def second(): return first(), P
def third(p=P(2)): return p
fourth = dataclasses.field().default
def fifth(): return fourth
"""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a process that has pickled nothing but functions so far."""
    monkeypatch.setattr(byvalue, "_broad", None)


def cell(monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, Any]:
    """Run code as that of `__main__`; nothing of it was pickled before."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(code, "<cell>", "exec", dont_inherit=True), vars(module))
    namespaces.registry.definitions.clear()
    return vars(module)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["helper", "fib", "task", "inner", "square"])
def test_broad_is_not_needed_for_functions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What they name may be constants, modules, other functions and what an import finds."""
    main = cell(monkeypatch, PLAIN)
    narrow = codec.dumps_callable(main[name])
    assert byvalue._broad is None
    byvalue._broaden()
    namespaces.registry.definitions.clear()
    assert codec.dumps_callable(main[name]) == narrow


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["first", "second", "third", "fifth"])
def test_broad_comes_with_the_first_object_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The pickle that met it is begun anew, and is what it would have been from the start."""
    main = cell(monkeypatch, OTHERS)
    data = codec.dumps_callable(main[name])
    assert byvalue._broad is not None
    namespaces.registry.definitions.clear()
    assert codec.dumps_callable(main[name]) == data


@pytest.mark.usefixtures("narrow")
def test_broad_keeps_the_buffers_of_a_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are out of band, and cannot be taken back when a pickle is begun anew."""
    main = cell(monkeypatch, OTHERS)
    array = pytest.importorskip("numpy").arange(1000.0)
    data, buffers = codec.encode((array, main["P"](3)), threshold=100)
    assert len(buffers) == 1
    back, point = codec.decode(data, [buffer.raw() for buffer in buffers])
    assert back.tolist() == array.tolist()
    assert dataclasses.asdict(point) == {"x": 3}


@pytest.mark.usefixtures("narrow")
def test_broad_tells_what_cannot_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the one that a broad pickler gives."""
    main = cell(monkeypatch, "lock = None\ndef task(): return lock")
    main["lock"] = threading.Lock()
    with pytest.raises(EncodeError, match="global 'lock'"):
        codec.dumps_callable(main["task"])
