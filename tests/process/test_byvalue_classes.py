"""Classes by value: their identity in another interpreter, and on what comes back.

The parent is this process with a notebook's `__main__`; the worker is a second interpreter.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from mpsched._tasks import codec
from mpsched.errors import DecodeError

if TYPE_CHECKING:
    from tests.support.peer import Notebook, Peer


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
