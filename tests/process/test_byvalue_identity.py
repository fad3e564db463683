"""What is the same object in the program is so in another interpreter, where code can tell.

The parent is this process with a notebook's `__main__`; the worker is a second interpreter.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.peer import Notebook, Peer


def test_identity_of_a_bare_sentinel(main: Notebook, peer: Peer) -> None:
    """A default, a cell, a class attribute and an item are the global that they are."""
    main.cell(
        """
        import functools
        MISSING = object()
        ALSO = MISSING
        KNOWN = [MISSING]
        def get(default=MISSING): return default is MISSING
        def key(*, default=MISSING): return default is ALSO
        def through(default=MISSING): return inner(default)
        def inner(given): return given is MISSING and given in KNOWN
        class Holder:
            value = MISSING
            def get(self, default=MISSING): return default is MISSING is self.value
        def holding(missing):
            def held(): return missing is MISSING
            return held
        def wrapped(f):
            @functools.wraps(f)
            def wrapper(*args): return f(*args)
            return wrapper
        decorated = wrapped(get)
        """
    )
    held = main["holding"](main["MISSING"])
    lambdas = main.module.__dict__["again"] = eval(
        "lambda d=MISSING: d is MISSING", vars(main.module)
    )
    calls = [main["get"], main["key"], main["through"], main["Holder"]().get, held, lambdas]
    for _ in range(2):
        assert [peer.run(call) for call in [*calls, main["decorated"]]] == [True] * 7
    main.cell("MISSING = ALSO = object()")  # the defaults are the old one
    assert not any(call() for call in calls)
    assert [peer.run(call) for call in calls] == [False] * 6


def test_identity_of_an_instance_that_is_a_default(main: Notebook, peer: Peer) -> None:
    """Such a sentinel has a name, say; a changed one is changed for the default as well."""
    main.cell(
        """
        class Marker:
            def __init__(self, name): self.name = name
        class Slotted:
            __slots__ = ()
        ABSENT, NOTHING = Marker("absent"), Slotted()
        def get(a=ABSENT, *, b=NOTHING): return a is ABSENT, b is NOTHING, a.name
        """
    )
    for name in ("absent", "away"):
        main["ABSENT"].name = name
        assert peer.run(main["get"]) == (True, True, name)
        assert peer.run(lambda f: f(), main["get"]) == (True, True, name)


def test_identity_does_not_make_a_method_share_its_object(main: Notebook, peer: Peer) -> None:
    """A bound method's object is the task's own, also if it is a global: no task sees another's."""
    main.cell(
        """
        class Counter:
            count = 0
            def add(self):
                self.count += 1
                return self.count
        counter = Counter()
        """
    )
    assert [peer.run(main["counter"].add) for _ in range(3)] == [1, 1, 1]
    assert main["counter"].count == 0


def test_identity_of_a_sentinel_whose_class_has_it_as_a_default(main: Notebook, peer: Peer) -> None:
    """To load it leads back to itself."""
    main.cell(
        """
        class Node:
            pass
        NIL = Node()
        def find(self, node=NIL): return node is NIL
        Node.find = find
        """
    )
    assert peer.run(main["NIL"].find)
    assert peer.run(main["find"], None)


ORDERED = {
    "threading": "import threading",
    "key": "def key(x): return hash((x, SALT))",
    "SALT": "SALT = 3",
    "Guarded": """
class Guarded:
    def __init__(self): self.__setstate__({})
    def __getstate__(self): return {}
    def __setstate__(self, state): self.lock = threading.Lock()
""",
    "Keyed": """
class Keyed:
    def __init__(self, x): self.x = x
    def __hash__(self): return key(self.x)
    def __eq__(self, other): return self.x == other.x
""",
    "Built": """
def rebuild(x): return Built(x + SALT)
class Built:
    def __init__(self, x): self.x = x
    def __reduce__(self): return rebuild, (self.x - SALT,)
""",
}


@pytest.mark.parametrize("names", list(itertools.permutations(["GUARD", "TABLE", "BUILT"])))
def test_identity_order_what_loading_calls_is_there(
    main: Notebook, peer: Peer, names: tuple[str, ...]
) -> None:
    """The code that unpickles a global finds the globals that it names, whatever the function names first."""
    for code in ORDERED.values():
        main.cell(code)
    main.cell("GUARD, TABLE, BUILT = Guarded(), {Keyed(1): {Keyed(2)}}, Built(4)")
    main.cell(f"def task(): return [str(type(one)) for one in ({', '.join(names)})], BUILT.x")
    assert peer.run(main["task"]) == main["task"]()
    main.cell("TABLE = {Keyed(1): [Built(5)]}\ndef look(): return TABLE[Keyed(1)][0].x")
    assert peer.run(main["look"]) == 5


def test_identity_of_nested_and_local_classes_keep_their_names(main: Notebook, peer: Peer) -> None:
    """`__qualname__` is what a dataclass shows."""
    main.cell(
        """
        import dataclasses
        class Outer:
            @dataclasses.dataclass
            class Inner:
                x: int
        def local():
            class Local: pass
            return Local
        LOCAL = local()
        def names(): return repr(Outer.Inner(1)), LOCAL.__qualname__, local().__qualname__
        """
    )
    assert peer.run(main["names"]) == main["names"]()
    assert main["names"]() == ("Outer.Inner(x=1)", "local.<locals>.Local", "local.<locals>.Local")


def test_identity_of_what_another_library_has_copied(main: Notebook, peer: Peer) -> None:
    """A dataclass that has come by cloudpickle has sentinels of its own; they become Python's again."""
    main.cell(
        """
        import copy, dataclasses
        @dataclasses.dataclass
        class D:
            a: int
        field = D.__dataclass_fields__["a"]
        field.default = object.__new__(type(dataclasses.MISSING))
        def task(): return D(1).a, dataclasses.fields(D)[0].default is dataclasses.MISSING
        """
    )
    assert peer.run(main["task"]) == (1, True)
