"""Functions by value in another interpreter: what they see, and what they share.

The parent is this process with a notebook's `__main__`; the worker is a second interpreter.
"""

from __future__ import annotations

import functools
import importlib.util
import struct
import sys
import types
from typing import TYPE_CHECKING, Any

from tests.support import library

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.peer import Notebook, Peer


def test_globals_a_changed_constant_takes_effect(main: Notebook, peer: Peer) -> None:
    """Each call sees the globals that its function had when it was sent, in whatever order."""
    main.cell("FEE = 1\ndef task(x): return x + FEE")
    before = peer.send(main["task"], 10)
    main.cell("FEE = 2")
    after = peer.send(main["task"], 10)
    assert [peer.call(frame) for frame in (before, after, before, after)] == [11, 12, 11, 12]


def test_globals_a_helper_defined_again_takes_effect(main: Notebook, peer: Peer) -> None:
    """A function that was not changed itself calls the new helper."""
    main.cell("def helper(x): return x\ndef task(x): return helper(x)")
    assert peer.run(main["task"], 3) == 3
    main.cell("def helper(x): return -x")
    assert peer.run(main["task"], 3) == -3


def test_globals_what_an_initializer_assigned_stays(main: Notebook, peer: Peer) -> None:
    """The parent's unchanged value does not overwrite it, in functions, methods and lambdas."""
    main.cell(
        """
        MODEL = None
        def init(value):
            global MODEL
            MODEL = value
        def read(): return MODEL
        class C:
            def read(self): return MODEL
        """
    )
    peer.run(main["init"], "loaded")
    assert peer.run(main["read"]) == "loaded"
    main.cell("also = lambda: MODEL\ndef caller(): return read()")
    assert peer.run(main["also"]) == "loaded"
    assert peer.run(main["caller"]) == "loaded"
    assert peer.run(main["C"]().read) == "loaded"


def test_globals_a_new_value_of_the_parent_replaces_an_initializers(
    main: Notebook, peer: Peer
) -> None:
    """What the parent assigns after an initializer ran is the newer will."""
    main.cell("X = None\ndef init():\n    global X\n    X = 1\ndef read(): return X")
    peer.run(main["init"])
    main.cell("X = 2")
    assert peer.run(main["read"]) == 2


def test_globals_that_only_the_worker_has_are_shared_there(main: Notebook, peer: Peer) -> None:
    """A global that no cell ever assigned, but an initializer, is found by tasks."""
    main.cell("def init():\n    global db\n    db = 'open'\ndef use(): return db")
    peer.run(main["init"])
    assert peer.run(main["use"]) == "open"


def test_globals_keep_what_tasks_put_into_them(main: Notebook, peer: Peer) -> None:
    """A dict used as a cache lives in the worker from task to task."""
    main.cell("CACHE = {}\ndef put(k):\n    CACHE[k] = k\n    return len(CACHE)")
    assert [peer.run(main["put"], k) for k in "abca"] == [1, 2, 3, 3]


def test_functions_may_refer_to_each_other_and_themselves(main: Notebook, peer: Peer) -> None:
    """Recursion works: direct, mutual, in a closure, through a decorator, through attributes."""
    main.cell(
        """
        import functools
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        def nested(n):
            def fact(k): return 1 if k == 0 else k * fact(k - 1)
            return fact
        fact = nested(0)
        def counted(f):
            @functools.wraps(f)
            def inner(*a): return f(*a) + 1
            return inner
        @counted
        def depth(n): return 0 if n == 0 else depth(n - 1)
        def partner(x): return x
        partner.other = fib
        fib.other = partner
        def through(x): return partner.other.other(x)
        """
    )
    assert peer.run(main["fib"], 10) == 55
    assert peer.run(main["even"], 11) is False
    assert peer.run(main["fact"], 5) == 120
    assert peer.run(main["depth"], 3) == 4
    assert peer.run(main["through"], 9) == 9


def test_functions_of_every_shape_arrive(main: Notebook, peer: Peer) -> None:
    """Defaults, keyword-only arguments, annotations, attributes, doc, bodies of nested classes."""
    main.cell(
        '''
        K = 4
        def f(a, b=2, *args, c: "int" = K, **kw) -> "int":
            """Doc."""
            class Local:
                value = K
            return a + b + c + Local.value + len(args) + len(kw)
        f.tag = "t"
        def show(g): return g.__doc__, g.tag, g.__annotations__, g.__module__, g.__qualname__
        def outer():
            def inner(): "no doc after all"
            inner.__doc__ = None
            inner.__qualname__ = "renamed"
            return inner
        inner = outer()
        def show_inner(): return inner.__doc__, inner.__qualname__, inner.__name__
        '''
    )
    assert peer.run(main["f"], 1) == 11
    assert peer.run(functools.partial(main["f"], 1, 1, 1, 1, c=0, d=1)) == 9
    annotations = {"c": "int", "return": "int"}
    assert peer.run(main["show"], main["f"]) == ("Doc.", "t", annotations, "__main__", "f")
    assert peer.run(main["show_inner"]) == (None, "renamed", "inner")


def test_functions_closures_share_their_cells(main: Notebook, peer: Peer) -> None:
    """Two closures over one variable see each other's assignments, as they do at home."""
    main.cell(
        """
        def make():
            n = 0
            def inc():
                nonlocal n
                n += 1
            def get(): return n
            return inc, get
        def use(pair):
            inc, get = pair
            inc()
            inc()
            return get()
        """
    )
    assert peer.run(main["use"], main["make"]()) == 2


def test_functions_a_mutable_closure_is_new_for_each_task(main: Notebook, peer: Peer) -> None:
    """What a task does to a list in its closure, in a default or behind partial, no other sees."""
    main.cell(
        """
        def make():
            seen = []
            def add(x):
                seen.append(x)
                return list(seen)
            return add
        add = make()
        def keep(x, seen=[]):
            seen.append(x)
            return list(seen)
        keep_lambda = lambda x, seen=[]: seen.append(x) or list(seen)
        """
    )
    calls = [main["add"], main["keep_lambda"], functools.partial(main["keep"], seen=[])]
    for fn in calls:
        assert [peer.run(fn, x) for x in (1, 2)] == [[1], [2]]


def test_functions_submodules_that_they_use_are_imported(main: Notebook, peer: Peer) -> None:
    """`import xml.dom` binds `xml` alone; the function finds `xml.dom` over there."""
    main.cell("import xml.dom\ndef use(): return xml.dom.Node.ELEMENT_NODE")
    assert peer.run(main["use"]) == 1


def test_loading_costs_a_worker_no_cloudpickle(main: Notebook, peer: Peer) -> None:
    """Functions, closures and classes are loaded without its import, which takes 30 ms."""
    main.cell(
        """
        import sys
        K = [1]
        class C:
            __slots__ = ("a",)
            def get(self): return K
        def helper(): return "cloudpickle" in sys.modules
        def task(c): return helper(), (lambda: c.get())()
        """
    )
    assert peer.run(main["task"], main["C"]()) == (False, [1])


def test_decorators_of_the_standard_library_work(main: Notebook, peer: Peer) -> None:
    """lru_cache (its cache stays in the worker), singledispatch, wraps, partialmethod."""
    main.cell(
        """
        import functools
        CALLS = []
        @functools.lru_cache(None)
        def cached(n):
            CALLS.append(n)
            return n if n < 2 else cached(n - 1) + cached(n - 2)
        def use(n): return cached(n), len(CALLS)
        @functools.singledispatch
        def kind(x): return "other"
        @kind.register
        def _(x: int): return "int"
        class C:
            def add(self, a, b): return a + b
            inc = functools.partialmethod(add, 1)
        """
    )
    assert peer.run(main["use"], 30) == (832040, 31)
    assert peer.run(main["use"], 30) == (832040, 31)
    assert peer.run(main["cached"], 20) == 6765
    assert [peer.run(main["kind"], x) for x in (1, "a")] == ["int", "other"]
    assert peer.run(main["C"]().inc, 4) == 5


def test_globals_a_compiled_struct_travels_by_its_format(main: Notebook, peer: Peer) -> None:
    """`struct.Struct` and its bound methods, as globals and as arguments."""
    main.cell(
        """
        import struct
        BE = struct.Struct(">I")
        pack = BE.pack
        def use(other): return pack(258), BE.unpack(b"\\0\\0\\1\\2"), other.format, other.size
        """
    )
    found = peer.run(main["use"], struct.Struct("!d"))
    assert found == (b"\0\0\1\2", (258,), "!d", 8)


def test_namespaces_of_no_module_are_kept_apart(main: Notebook, peer: Peer) -> None:
    """Two consoles with a dict each: globals are shared within one, never between two."""
    code = "X = None\ndef init(v):\n    global X\n    X = v\ndef read(): return X"
    some: dict[str, Any] = {"__name__": "__console__"}
    others: dict[str, Any] = {"__name__": "__console__"}
    exec(code, some)
    exec(code, others)
    peer.run(some["init"], 1)
    peer.run(others["init"], 2)
    assert (peer.run(some["read"]), peer.run(others["read"])) == (1, 2)
    del main


def test_namespaces_of_handmade_modules_travel(main: Notebook, peer: Peer) -> None:
    """A module that only this process has arrives with what it holds."""
    module = types.ModuleType("handmade")
    exec("K = 2\ndef f(x): return g(x) * K\ndef g(x): return x + 1", vars(module))
    vars(main.module)["handmade"] = module
    main.cell("def use(): return handmade.f(1), handmade.K")
    assert peer.run(main["use"]) == (4, 2)
    assert peer.run(module.f, 2) == 6


def test_importable_modules_share_state_with_what_travels(peer: Peer) -> None:
    """An initializer by name and a lambda, or the other way round, mean the same global."""
    peer.run(library.set_state, "by name")
    assert peer.run(library.state_reader()) == "by name"
    assert peer.run(library.get_state) == "by name"
    peer.run(library.state_writer(), "by value")
    assert peer.run(library.get_state) == "by value"
    assert peer.run(library.state_reader()) == "by value"


def test_importable_modules_a_changed_global_reaches_lambdas(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program assigned to a module's global goes with a lambda of that module."""
    assert peer.run(library.config_reader()) == "as imported"
    monkeypatch.setattr(library, "CONFIG", "changed")
    assert peer.run(library.config_reader()) == "changed"


def test_importable_modules_keep_what_has_only_identity(peer: Peer) -> None:
    """Sentinels, locks and tables are those of the module over there, not copies."""
    assert peer.run(library.user_of_what_has_only_identity()) == (True, True, True)


def test_importable_modules_are_imported_relative_to_a_program_of_a_package(
    main: Notebook, peer: Peer
) -> None:
    """`python -m package` gives `__main__` a `__package__`, which an import in a function asks for."""
    vars(main.module)["__package__"] = "tests.support"
    main.cell(
        """
        def task():
            from . import library as found
            from .library import get_state
            return found.__name__, get_state.__module__, __package__
        """
    )
    assert peer.run(main["task"]) == (
        "tests.support.library",
        "tests.support.library",
        "tests.support",
    )


def test_importable_modules_one_loaded_by_hand_travels_with_its_functions(
    main: Notebook, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the program has put it into `sys.modules`, where no other process finds it."""
    path = tmp_path / "a_plugin.py"
    path.write_text("Q = 4\nclass K:\n    def m(self): return Q\ndef f(x): return K().m() + x\n")
    spec = importlib.util.spec_from_file_location("a_plugin", path)
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "a_plugin", plugin)
    spec.loader.exec_module(plugin)
    vars(main.module)["plugin"] = plugin
    main.cell("def task(): return plugin.f(1), plugin.K().m(), plugin.K()")
    number, four, back = peer.run(main["task"])
    assert (number, four, type(back)) == (5, 4, plugin.K)
    assert peer.run(plugin.f, 2) == 6
