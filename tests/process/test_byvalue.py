"""What arrives in another interpreter, and what comes back: functions and classes by value.

The parent is this process with a notebook's `__main__`; the worker is a second interpreter.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import textwrap
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._tasks import codec
from mpsched.errors import DecodeError, EncodeError, RemoteError, ResultEncodeError
from tests.support import library
from tests.support.peer import Peer
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from collections.abc import Iterator


class Notebook:
    """A `__main__` whose code comes in cells."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self._cells = 0

    def cell(self, code: str) -> None:
        self._cells += 1
        code = textwrap.dedent(code)
        compiled = compile(code, f"<cell {self._cells}>", "exec", dont_inherit=True)
        exec(compiled, vars(self.module))

    def __getitem__(self, name: str) -> Any:
        return vars(self.module)[name]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return Notebook(module)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as other:
        yield other


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


def test_classes_keep_their_identity_both_ways(main: Notebook, peer: Peer) -> None:
    """An instance that comes back is one of the very class; over there all tasks have one class."""
    main.cell(
        """
        import abc, collections, dataclasses, enum, functools, typing
        from dataclasses import dataclass, field
        FEE = 5
        @dataclass
        class P:
            x: int
            tags: list = field(default_factory=list)
            def fee(self): return self.x + FEE
            @functools.cached_property
            def slow(self): return self.x * 2
            @classmethod
            def make(cls): return cls(1)
        @dataclass(frozen=True, slots=True, order=True)
        class Q:
            y: int = 3
        class Sub(P):
            def fee(self): return super().fee() + 100
        class Colour(enum.Enum):
            RED = 1
        class Flag(enum.IntFlag):
            A = 1
            B = 2
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            __slots__ = ("side",)
            def __init__(self): self.side = 3
            def area(self): return self.side ** 2
        Pair = collections.namedtuple("Pair", "a b")
        class Named(typing.NamedTuple):
            a: int
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def __init__(self, v): self.v = v
        UserId = typing.NewType("UserId", int)
        KEPT = []
        def keep(p): KEPT.append(type(p))
        def same(p): return KEPT[0] is type(p) and isinstance(p, P) and type(p) is P
        def echo(x): return x
        def user(): return UserId(3)
        """
    )
    values = [main["P"](1), main["Q"](), main["Sub"](2), main["Square"](), main["Pair"](1, 2)]
    values += [main["Named"](1), main["Box"][int](4), main["Colour"].RED, main["Flag"].A]
    for value in values:
        back = peer.run(main["echo"], value)
        assert type(back) is type(value)
    assert peer.run(main["echo"], main["Colour"].RED) is main["Colour"].RED
    assert peer.run(main["echo"], main["Q"](7)) == main["Q"](7)
    assert peer.run(main["P"], 4) == main["P"](4)
    assert peer.run(main["P"].make) == main["P"](1)
    assert peer.run(main["Sub"](1).fee) == 106
    assert peer.run(main["Square"]().area) == 9
    assert peer.run(lambda p: p.slow, main["P"](4)) == 8
    assert peer.run(main["user"]) == 3
    peer.run(main["keep"], main["P"](1))
    assert peer.run(main["same"], main["P"](2)) is True


def test_classes_of_awkward_kinds_arrive_whole(main: Notebook, peer: Peer) -> None:
    """Slots stay slots; metaclasses, hooks with arguments, typed dicts and tuples, protocols work."""
    main.cell(
        """
        import abc, dataclasses, typing
        @dataclasses.dataclass(slots=True)
        class Slotted:
            x: int
            y: int = 2
        class Private:
            __slots__ = ("__a", "b", "__weakref__")
            def __init__(self): self.__a, self.b = 1, 2
            def get(self): return self.__a, self.b
        class Meta(type):
            def __call__(cls, *args): return super().__call__(*args)
        class Plugin(metaclass=Meta):
            kinds = []
            def __init_subclass__(cls, kind): cls.kinds.append(kind)
        class Mine(Plugin, kind="mine"): pass
        class Movie(typing.TypedDict):
            name: str
        T = typing.TypeVar("T")
        class Row(typing.NamedTuple, typing.Generic[T]):
            value: T
            other: int = 5
        class Goes(typing.Protocol):
            def go(self) -> int: ...
        class Goer(Goes):
            def go(self): return 4
        class Registry(abc.ABC): pass
        @Registry.register
        class Registered: pass
        def no_dict(o):
            try: o.not_a_slot = 1
            except AttributeError: return True
        def echo(x): return x
        def kinds(m): return Plugin.kinds, type(type(m)) is Meta
        def movie(): return Movie(name="n")
        def registered(r): return isinstance(r, Registry)
        def second(x: int, *, y: "Slotted" = Slotted(1)): return y.y
        """
    )
    assert peer.run(main["echo"], main["Slotted"](1)) == main["Slotted"](1)
    assert peer.run(main["no_dict"], main["Slotted"](1)) is True
    private = peer.run(main["echo"], main["Private"]())
    assert (type(private), private.get()) == (main["Private"], (1, 2))
    assert peer.run(main["no_dict"], main["Private"]()) is True
    assert peer.run(main["kinds"], main["Mine"]()) == (["mine"], True)
    assert main["Plugin"].kinds == ["mine"]
    assert peer.run(main["movie"]) == {"name": "n"}
    row = peer.run(main["echo"], main["Row"][int](3))
    assert (type(row), row) == (main["Row"], (3, 5))
    assert peer.run(main["Goer"]().go) == 4
    assert peer.run(main["registered"], main["Registered"]()) is True
    assert peer.run(main["second"], 1) == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_classes_and_functions_with_type_parameters_arrive(main: Notebook, peer: Peer) -> None:
    """PEP 695: generic functions and classes, aliases, and what they refer to."""
    main.cell(
        """
        type Alias = int | str
        K = 3
        def same[T](x: T) -> T: return x
        class Box[T]:
            value = K
            def __init__(self, v: T): self.v = v
            def get(self) -> T: return self.v
        def alias(): return Alias.__name__, same.__type_params__[0].__name__
        """
    )
    assert peer.run(main["same"], 3) == 3
    assert peer.run(main["Box"][int](4).get) == 4
    assert type(peer.run(main["Box"], 1)) is main["Box"]
    assert peer.run(main["alias"]) == ("Alias", "T")


def test_classes_what_comes_back_does_not_change_them(main: Notebook, peer: Peer) -> None:
    """The parent's class keeps its attributes, and its methods keep their globals."""
    main.cell("FEE = 1\nclass C:\n    n = 1\n    def fee(self): return FEE\ndef make(): return C()")
    frame = peer.send(main["make"])
    main.cell("FEE = 2\nC.n = 2")
    back = peer.call(frame)
    assert (back.n, back.fee(), type(back)) == (2, 2, main["C"])


def test_classes_a_changed_attribute_takes_effect(main: Notebook, peer: Peer) -> None:
    """A class attribute assigned, or a method replaced, in the parent is seen by the next task."""
    main.cell("class C:\n    n = 1\n    def m(self): return self.n\ndef use(): return C().m()")
    frames = [peer.send(main["use"])]
    main.cell("C.n = 2")
    frames.append(peer.send(main["use"]))
    main.cell("C.m = lambda self: -self.n")
    frames.append(peer.send(main["use"]))
    assert [peer.call(frame) for frame in [*frames, *frames]] == [1, 2, -2, 1, 2, -2]


def test_classes_defined_again_are_told_apart(main: Notebook, peer: Peer) -> None:
    """An instance of the former class is none of the new one, here and there."""
    main.cell("class C:\n    v = 1\ndef is_c(c): return isinstance(c, C), c.v")
    old = main["C"]()
    assert peer.run(main["is_c"], old) == (True, 1)
    main.cell("class C:\n    v = 2")
    assert peer.run(main["is_c"], main["C"]()) == (True, 2)
    assert peer.run(main["is_c"], old) == (False, 1)


def test_classes_of_a_worker_come_back_whole(main: Notebook, peer: Peer) -> None:
    """A class defined inside a task arrives here, uses this program's globals, and goes back."""
    main.cell(
        """
        FEE = 1
        class P:
            def base(self): return 10
        def make():
            class Local(P):
                def __init__(self): self.v = 5
                def get(self): return self.v + FEE + self.base()
            return Local()
        def get(obj): return obj.get(), isinstance(obj, P)
        """
    )
    local = peer.run(main["make"])
    assert local.get() == 16
    main.cell("FEE = 2")
    assert local.get() == 17
    assert isinstance(local, main["P"])
    assert peer.run(main["get"], local) == (17, True)


def test_classes_can_be_pickled_plainly_inside_a_task(main: Notebook, peer: Peer) -> None:
    """A task that writes an instance into a file of its own finds the class in `__main__`."""
    main.cell(
        """
        import pickle
        class P: pass
        def task(p): return type(pickle.loads(pickle.dumps(p))) is type(p)
        """
    )
    assert peer.run(main["task"], main["P"]()) is True


def test_classes_that_the_program_dropped_are_a_clear_error(main: Notebook, peer: Peer) -> None:
    """Only after hundreds of other classes: then the error names the class and the way out."""
    main.cell("def make(i): return type(f'C{i}', (), {'__module__': '__main__'})")
    first = main["make"](0)
    frame = peer.send(first)
    del first
    for i in range(1, 600):
        codec.dumps_callable(main["make"](i))
    gc.collect()
    with pytest.raises(DecodeError, match=r"class 'C0' has come back.*Keep a reference"):
        peer.call(frame)


def test_results_may_be_functions(main: Notebook, peer: Peer) -> None:
    """A closure from a task works here, with this program's globals; its own are itself."""
    main.cell(
        """
        FEE = 1
        def adder(n): return lambda x: x + n + FEE
        def task(): return task, adder
        def fresh():
            global made_there
            made_there = 7
            return lambda: made_there
        """
    )
    add = peer.run(main["adder"], 10)
    assert add(1) == 12
    main.cell("FEE = 2")
    assert add(1) == 13
    assert peer.run(main["task"]) == (main["task"], main["adder"])
    assert peer.run(main["fresh"])() == 7


def test_results_do_not_change_the_programs_globals(main: Notebook, peer: Peer) -> None:
    """What a worker has in its namespace stays there, even when a function of it comes back."""
    main.cell(
        """
        MODEL = None
        def init():
            global MODEL
            MODEL = 1
        def reader(): return lambda: MODEL
        """
    )
    peer.run(main["init"])
    assert peer.run(main["reader"])() is None
    assert main["MODEL"] is None


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
