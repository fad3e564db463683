"""The stack of private children, while somebody takes from its left end at any moment."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._worker import away, hot
from mpsched._worker.hot import spawn
from tests.support.forking import Elsewhere, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Node = tuple[int, int]
"""(name, levels below)."""


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def kids(node: Node) -> list[Node]:
    name, levels = node
    if not levels:
        return []
    return [(name * 4 + i + 1, levels - 1) for i in range(random.Random(name).randrange(4))]


def tree(node: Node) -> set[int]:
    return {node[0]}.union(*[tree(kid) for kid in kids(node)])


class Tree:
    """Runs a random tree; each child joins its own in a random order, late, twice, or not at all."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.ran: dict[int, bool] = {}

    def visit(self, node: Node) -> int:
        """Note that `node` runs; the first time."""
        assert node[0] not in self.ran, f"{node} ran twice"
        self.ran[node[0]] = True
        return node[0]

    def elsewhere(self, _fn: object, node: Node, _rest: object) -> int:
        """Run a whole subtree, as another worker would."""
        self.visit(node)
        return 1 + sum(self.elsewhere(None, kid, None) for kid in kids(node))

    def run(self, node: Node) -> int:
        self.visit(node)
        dice, handles = self.dice, []
        for kid in kids(node):
            handles.append(spawn(self.run, kid))
            if dice.random() < 0.5:
                time.sleep(0)
        how = dice.random()
        if how < 0.3:
            return 1 + sum(h.join() for h in handles)
        if how < 0.6:
            return 1 + sum(h.join() for h in reversed(handles))
        if how < 0.8:
            dice.shuffle(handles)
            once = [h.join() for h in handles]
            assert once == [h.join() for h in handles]
            assert all(h.done() for h in handles)
            return 1 + sum(once)
        return 1  # joined by nobody: its end waits for them


@pytest.mark.parametrize("seed", range(4))
def test_fork_stack_each_child_runs_once_while_others_take_the_oldest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is taken meanwhile, each child runs once, and before its parent has ended."""
    dice = random.Random(seed)
    elsewhere = Elsewhere()
    current: list[Tree] = []
    problems: list[BaseException] = []
    stop = threading.Event()
    _assert_whole_subtrees(monkeypatch, current)

    def subtree(fn: object, node: Any, rest: object) -> int:
        return current[0].elsewhere(fn, node, rest)

    def take() -> None:
        pace = random.Random(seed + 100)
        try:
            while not stop.is_set():
                if not current or not elsewhere.take(
                    subtree,
                    between=lambda: [None for _ in range(pace.randrange(30))],
                ):
                    time.sleep(0)
        except BaseException as problem:
            problems.append(problem)

    thief = threading.Thread(target=take)
    thief.start()
    try:
        until = time.monotonic() + 60
        done = 0
        with root(elsewhere) as run:
            while done < 40 or not elsewhere.taken:  # else nothing was tested
                done += 1
                whole: Node = (dice.randrange(1, 1000), 6)
                current[:] = [Tree(dice)]
                run(current[0].run, whole)
                assert set(current[0].ran) == tree(whole)
                assert not problems, problems
                assert time.monotonic() < until
    finally:
        stop.set()
        thief.join()


def _assert_whole_subtrees(monkeypatch: pytest.MonkeyPatch, current: list[Tree]) -> None:
    """Assert at the end of each inline child that all below it has run."""
    run = away.Away.run

    def checked_run(record: away.Away) -> None:
        x = record.x
        run(record)
        _check(x)

    def _check(node: Any) -> None:
        if type(node) is tuple and len(node) == 2 and type(node[0]) is int:
            assert tree(node) <= set(current[0].ran), f"{node} ended before its children"

    monkeypatch.setattr(away.Away, "run", checked_run)


def _drop_serials_of_stale(_leave: Callable[[], Any]) -> Callable[[], Any]:
    """Make a wrong `leave`: stale handles go without a serial of their own."""

    def leave() -> away.Away | None:
        while len(hot.stack) > 1:
            fn = hot.stack[1]._fn
            if fn is not hot._done and type(fn) is not away.Away:
                break
            del hot.stack[1]
        record: away.Away | None = _leave()
        return record

    return leave


def test_fork_stack_stale_handles_without_a_serial_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A `leave` that gives stale handles no serial makes the deterministic case below fail."""
    monkeypatch.setattr(away, "leave", _drop_serials_of_stale(away.leave))
    with pytest.raises((RuntimeError, AssertionError)):
        _below_leaves_while_its_task_runs()


def test_fork_stack_below_that_leaves_tells_its_serial() -> None:
    """A task finds its children although the entry it remembers, a stale one, left meanwhile."""
    _below_leaves_while_its_task_runs()


def _below_leaves_while_its_task_runs() -> None:
    elsewhere = Elsewhere()
    ran: list[str] = []

    def leaf(name: str) -> str:
        ran.append(name)
        return name

    def forgetful(name: str) -> str:
        """Leave a child open; the entry below it, and the child, are taken meanwhile."""
        spawn(leaf, "child")
        while elsewhere.take(lambda fn, x, _rest: fn(x)):
            pass
        return leaf(name)

    def parent() -> int:
        first = spawn(leaf, "first")
        second = spawn(leaf, "second")
        third = spawn(forgetful, "third")
        assert first.join() == "first"  # stale now, at the left end
        assert second.join() == "second"  # the entry below `third`, stale
        assert third.join() == "third"
        assert "child" in ran, "a task ended before its child"
        return 7

    with root(elsewhere) as run:
        assert run(parent) == 7
    assert sorted(ran) == ["child", "first", "second", "third"]
