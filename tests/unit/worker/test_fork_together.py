"""`join_all`: children that are made together, at home and with somebody who takes some of them."""

from __future__ import annotations

import random
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import hot, together
from mpsched._worker.hot import spawn
from mpsched._worker.together import join_all
from tests.support.forking import Elsewhere, double, fail_if_odd, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=["ordinary", "careful"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """A root; in a careful one each child is spawned and joined for itself."""
    with root() as running:

        def run(fn: Callable[[], Any]) -> Any:
            def parent() -> Any:
                hot.careful = request.param == "careful"
                return fn()

            return running(parent)

        yield run


def test_join_all_returns_the_values_in_order(run: Callable[..., Any]) -> None:
    """Each call is a tuple; none is empty, and no calls are no values."""

    def parent() -> None:
        assert join_all((double, 1), (max, 2, 3), [double, 4]) == (2, 3, 8)
        assert join_all() == ()
        assert join_all(*[(double, i) for i in range(50)]) == tuple(range(0, 100, 2))
        assert join_all((tuple,), (double, 1)) == ((), 2)
        for wrong in (double, "ab", (), (1, 2), {double, 1}):
            with pytest.raises(TypeError, match="argument 1"):
                join_all((double, 1), wrong)  # type: ignore[arg-type]

    run(parent)


def test_join_all_calls_in_order_at_home(run: Callable[..., Any]) -> None:
    """As the sequential program does, and each has ended, children and all, before the next begins."""
    ran: list[str] = []

    def child(name: str) -> None:
        ran.append(name)
        if len(name) == 1:
            spawn(child, f"{name}1")
            spawn(child, f"{name}2").join()

    run(lambda: join_all((child, "a"), (child, "bb"), (child, "c"), (child, "d")))
    assert ran == ["a", "a2", "a1", "bb", "c", "c2", "c1", "d", "d2", "d1"]


@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_join_all_raises_the_first_failure_when_all_have_ended(
    run: Callable[..., Any], length: int
) -> None:
    """All calls run; the first failure in their order is raised, the others are its siblings."""
    ran: list[int] = []

    def child(i: int) -> None:
        ran.append(i)
        fail_if_odd(i)

    with pytest.raises(ValueError) as caught:
        run(lambda: join_all(*[(child, i) for i in range(1, length + 1)]))
    assert sorted(ran) == [*range(1, length + 1)]
    assert caught.value.args == (1,)
    siblings = [one.args[0] for one in getattr(caught.value, "siblings", ())]
    assert siblings == [*range(3, length + 1, 2)]


@pytest.mark.parametrize("place", range(3))
def test_join_all_failure_left_open_is_the_childs(run: Callable[..., Any], place: int) -> None:
    """Whichever of the children has left it; it comes before what fails in a later one."""

    def child(i: int) -> int:
        if i == place:
            spawn(fail_if_odd, 11)
        elif i > place:
            fail_if_odd(21)
        return i

    with pytest.raises(ValueError, match="11") as caught:
        run(lambda: join_all((child, 0), (child, 1), (child, 2)))
    siblings = [one.args[0] for one in getattr(caught.value, "siblings", ())]
    assert siblings == [21] * (2 - place)


def test_join_all_again_after_a_failure(run: Callable[..., Any]) -> None:
    """A task that has handled the error goes on with a whole stack."""

    def parent() -> tuple[Any, ...]:
        for failing in range(4):
            with pytest.raises(ValueError, match="7"):
                join_all(*[(fail_if_odd, 7 if i == failing else i * 2) for i in range(4)])
        return join_all((double, 1), (double, 2), (double, 3), (double, 4))

    assert run(parent) == (2, 4, 6, 8)


def test_join_all_drops_the_others_at_the_end_of_the_stack(run: Callable[..., Any]) -> None:
    """Two endless calls in each of some hundred levels would make 2 to the power of that."""
    calls = 0

    def child(n: int) -> None:
        nonlocal calls
        calls += 1
        join_all((child, n + 1), (child, n + 1))

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len_of_stack() + 400)
    try:
        with pytest.raises(RecursionError):
            run(lambda: child(0))
    finally:
        sys.setrecursionlimit(before)
    assert 20 < calls < 2_000


def len_of_stack() -> int:
    frame, length = sys._getframe(), 1
    while frame.f_back is not None:
        frame, length = frame.f_back, length + 1
    return length


class Big:
    """What one looks for afterwards."""


def test_join_all_holds_nothing_afterwards() -> None:
    """Neither arguments nor functions nor values, though handles are used again."""
    gone: list[Any] = []

    def parent() -> None:
        for _ in range(3):
            one, two = Big(), Big()
            fn = lambda *args: len(args)  # noqa: E731 - not the module's
            assert join_all((fn, one), (fn, two, one)) == (1, 2)
            gone.extend(map(weakref.ref, (one, two, fn)))

    before = len(together._kept[2])
    with root() as running:
        running(parent)
    assert [ref() for ref in gone] == [None] * 9
    assert before <= len(together._kept[2]) <= before + 1


def test_join_all_uses_no_handle_again_that_somebody_may_have() -> None:
    """After a failure, an open child or a theft new ones are made."""
    together._kept[3].clear()
    elsewhere = Elsewhere()

    def leave_open(_x: int) -> None:
        spawn(double, 1)

    def let_take(_x: int) -> None:
        elsewhere.take(lambda fn, x, _rest: fn(x))

    def parent() -> None:
        for wrong in (leave_open, let_take):
            join_all((double, 1), (wrong, 2), (double, 3))
            assert not together._kept[3]
        with pytest.raises(ValueError, match="1"):
            join_all((double, 1), (fail_if_odd, 1), (double, 3))
        assert not together._kept[3]
        join_all((double, 1), (double, 2), (double, 3))
        assert len(together._kept[3]) == 1

    with root(elsewhere) as running:
        running(parent)
    assert elsewhere.taken == 1


def shape(path: str) -> list[str]:
    """Return the children of a node of a random tree."""
    levels = path.count(".")
    if levels > 4:
        return []
    width = random.Random(path).choice([0, 1, 2, 3, 3, 18]) if levels > 1 else 3
    return [f"{path}.{n}" for n in range(width)]


def plain(path: str) -> int:
    """Count the nodes of a subtree."""
    return 1 + sum(map(plain, shape(path)))


@pytest.mark.parametrize("seed", range(20))
def test_join_all_with_children_taken_at_random(seed: int) -> None:
    """A tree of any shape is counted right, each node once, whoever runs what and whatever is left open."""
    rng = random.Random(seed)
    elsewhere = Elsewhere()
    left_open: list[str] = []

    def left(path: str) -> int:
        left_open.append(path)
        return 0

    def run_elsewhere(fn: object, path: str, _rest: object) -> int:
        return left(path) if fn is left else plain(path)

    spawned: list[str] = []

    def tree(path: str) -> int:
        if rng.random() < 0.1:
            elsewhere.take(run_elsewhere)
        if rng.random() < 0.1:
            spawned.append(path)
            spawn(left, path)
        counts: tuple[int, ...] = join_all(*[(tree, child) for child in shape(path)])
        return 1 + sum(counts)

    with root(elsewhere) as running:
        assert running(tree, str(seed)) == plain(str(seed))
    assert sorted(left_open) == sorted(spawned)
    assert elsewhere.taken
