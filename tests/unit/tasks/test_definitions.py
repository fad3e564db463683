"""A function or class is pickled anew when anything of it has changed."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._tasks import byvalue, codec, namespaces

if TYPE_CHECKING:
    from collections.abc import Callable

CODE = """
import dataclasses, functools
K = 1
def helper(a, b=1, *, c=2): return K
def f(a=1): return helper(a)
def other(a=2): return 0
@dataclasses.dataclass
class P:
    x: int
    y: list = dataclasses.field(default_factory=list)
    n = 1
    table = []
    def m(self, a=1): return super().__repr__() + str(K)
    @property
    def p(self): return 1
    @staticmethod
    def s(): return 2
class Sub(P):
    def k(self): return 1
def closure():
    cell = 1
    class Local:
        def get(self): return cell
        def set(self, v):
            nonlocal cell
            cell = v
    return Local
Local = closure()
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(CODE, "<cell>", "exec", dont_inherit=True), vars(module))
    return vars(module)


def pickled(obj: Any) -> bytes:
    return codec.encode(obj, threshold=1 << 30)[0]


@pytest.fixture
def pickled_classes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the classes that were really pickled."""
    names: list[str] = []
    dump = byvalue.Bundle._dump_class

    def noting(self: byvalue.Bundle, cls: type) -> tuple[bytes, bytes]:
        names.append(cls.__name__)
        return dump(self, cls)

    monkeypatch.setattr(byvalue.Bundle, "_dump_class", noting)
    return names


def test_definitions_an_unchanged_class_is_pickled_once(
    main: dict[str, Any], pickled_classes: list[str]
) -> None:
    """The second instance costs no second definition, and has the same one."""
    first = pickled(main["P"](1))
    assert pickled(main["P"](1)) == first
    assert pickled_classes == ["P"]
    main["K"] = 2  # no part of the class: it goes apart
    assert pickled(main["P"](1)) != first
    assert pickled_classes == ["P"]


def set_default(main: dict[str, Any]) -> None:
    main["P"].m.__defaults__ = (2,)


def set_code(main: dict[str, Any]) -> None:
    main["P"].s.__code__ = main["other"].__code__


@pytest.mark.parametrize(
    "change",
    [
        lambda main: setattr(main["P"], "n", 2),
        lambda main: setattr(main["P"], "n", True),  # equal to what it was
        lambda main: setattr(main["P"], "new", None),
        lambda main: delattr(main["P"], "n"),
        lambda main: main["P"].table.append(1),
        lambda main: setattr(main["P"], "m", main["other"]),
        lambda main: setattr(main["P"].m, "tag", 1),
        lambda main: setattr(main["P"].m, "__doc__", "new"),
        lambda main: setattr(main["P"], "s", staticmethod(main["other"])),
        lambda main: setattr(main["P"], "p", property(main["other"])),
        set_default,
        set_code,
    ],
)
def test_definitions_a_changed_class_is_pickled_anew(
    main: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    """An attribute, also in place; a method, its code, defaults, attributes; what wraps one."""
    before = pickled(main["P"])
    change(main)
    assert pickled(main["P"]) != before


def test_definitions_a_changed_cell_or_base_is_seen(main: dict[str, Any]) -> None:
    """The variable of a closure, and the class that another one derives from."""
    before = pickled(main["Local"])
    main["Local"]().set(2)
    assert pickled(main["Local"]) != before
    before = pickled(main["Sub"])
    main["P"].n = 5
    assert pickled(main["Sub"]) != before


def test_definitions_a_changed_function_is_pickled_anew(main: dict[str, Any]) -> None:
    """Defaults, code, documentation, and what it refers to."""
    seen = {pickled(main["f"])}
    main["f"].__defaults__ = (True,)
    seen.add(pickled(main["f"]))
    main["f"].__doc__ = "new"
    seen.add(pickled(main["f"]))
    main["helper"].__kwdefaults__["c"] = 3
    seen.add(pickled(main["f"]))
    main["K"] = 2
    seen.add(pickled(main["f"]))
    main["f"].__code__ = main["other"].__code__
    seen.add(pickled(main["f"]))
    assert len(seen) == 6


def test_definitions_keep_no_dict_of_no_module_alive() -> None:
    """The globals of a function made by `exec` are forgotten with it."""
    before = len(namespaces.registry.definitions)
    for i in range(50):
        namespace: dict[str, Any] = {"__name__": "__console__"}
        exec(f"def f(): return {i}\nclass C:\n    def m(self): return f()", namespace)
        codec.dumps_callable(namespace["f"])
        pickled(namespace["C"]())
    assert len(namespaces.registry.definitions) == before
    assert len(namespaces.registry.anonymous) <= 16
