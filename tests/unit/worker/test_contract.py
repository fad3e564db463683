"""What a function brings along, and whether a call has changed it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import contract
from mpsched.arrays import shared_array
from mpsched.errors import ArgumentChanged

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(x: int) -> int:
    return x


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


def make_recursive() -> Callable[[int], int]:
    def countdown(n: int) -> int:
        return n and countdown(n - 1)

    return countdown


def make_counter() -> Callable[[int], int]:
    seen: list[int] = []

    def count(n: int) -> int:
        seen.append(n)
        return len(seen)

    return count


@pytest.mark.parametrize(
    "fn", [plain, decorated(plain), decorated(decorated(plain)), make_recursive(), abs, int]
)
def test_contract_function_without_state_is_not_copied(fn: Callable[..., Any]) -> None:
    """Functions among what it closes over are no state: a decorator's, or itself."""
    assert contract.prints(fn, (), {})[0] is None
    called, (kept, *_), _ = contract.prepare(fn, (5,), {})
    assert called is contract.on_copy
    assert kept is fn


@pytest.mark.parametrize("wrap", [lambda fn: fn, decorated])
def test_contract_state_of_a_closure_is_looked_at(wrap: Callable[[Any], Any]) -> None:
    """Also of one that another function wraps."""
    fn = wrap(make_counter())
    before = contract.prints(fn, (1,), {})
    assert contract.changed(before, fn, (1,), {}) is None
    fn(1)
    assert contract.changed(before, fn, (1,), {}) == contract.STATE


def test_contract_argument_of_a_decorated_function_has_its_name() -> None:
    """Not the wrapper's, which has none."""

    @decorated
    def append(one: int, values: list[int]) -> None:
        values.append(one)

    copy = contract.Copy(*contract.prepare(append, (1, [2]), {})[1])
    copy.fn(*copy.args)
    with pytest.raises(ArgumentChanged, match="append changed its argument `values`"):
        copy.check()


def test_contract_values_of_a_shared_array_may_change() -> None:
    """They are the same memory everywhere; its form is the child's own, and is looked at."""
    array = shared_array((4, 6))
    before = contract.prints(plain, (array,), {})
    array += 1
    assert contract.changed(before, plain, (array,), {}) is None
    array.flags.writeable = False
    assert contract.changed(before, plain, (array,), {}) == 1
    other = shared_array((4, 6))
    for one in (other, array[1:], array.T, array.view("i8")):
        assert contract.changed(before, plain, (one,), {}) == 1
    copied = array * 2.0
    before = contract.prints(plain, (copied,), {})
    copied[0] = 3.0
    assert contract.changed(before, plain, (copied,), {}) == 1
