"""The stack of private children with another thread at its left end: before each line of the main one.

A helper takes the oldest child, stands at some line of that, and goes on some lines of the main thread
later, or when the main thread wants the lock that it has.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from mpsched._worker import away, hot, together
from mpsched._worker.hot import spawn
from mpsched._worker.together import join_all
from tests.support.forking import Elsewhere, root
from tests.support.lines import Paused, before_lines

if TYPE_CHECKING:
    from collections.abc import Callable

HELPER: Final = (away.leave, Elsewhere.take)
"""Where the helper may stand."""


class Lock:
    """Stands for `fork_lock`: whoever wants it while the helper stands lets the helper finish."""

    def __init__(self, helper: Paused | None) -> None:
        self._lock = threading.RLock()
        self._helper = helper
        self._mine = 0
        self.depth = 0

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if not self._lock.acquire(blocking=False):
            if self._helper is not None and main:
                self._helper.finish()
            assert self._lock.acquire(timeout=60)
        self._mine += main
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._mine -= threading.current_thread() is threading.main_thread()
        self._lock.release()

    def mine(self) -> bool:
        """Whether the main thread has it, so that the helper can go no further."""
        return bool(self._mine)


class Run:
    """One run of a program, which notes what ran where, and asserts that tasks end after their children."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.elsewhere = Elsewhere()
        self.helper: Paused | None = None
        self.called: Callable[[], object] = int

    def leaf(self, name: str) -> str:
        self.ran.append(name)
        if threading.current_thread() is threading.main_thread():
            self.called()
        return name

    def parent(self, name: str) -> str:
        """A child with two children, one of which it joins."""
        self.leaf(name)
        first, _second = spawn(self.leaf, f"{name}1"), spawn(self.leaf, f"{name}2")
        assert first.join() == f"{name}1"
        return name

    def forgetful(self, name: str) -> str:
        """A child that joins none of its children."""
        self.leaf(name)
        spawn(self.leaf, f"{name}1")
        spawn(self.leaf, f"{name}2")
        return name

    def ended(self, *names: str) -> None:
        """Assert that these have run: whoever spawned them has just ended."""
        assert {*names} <= {*self.ran}, f"{ {*names} - {*self.ran} } have not run"

    def wait(self, record: away.Away) -> None:
        if self.helper is not None:
            self.helper.finish()
        self.elsewhere.wait(record)


MAIN: Final = (
    hot.Handle.join,
    together.join_all,
    together._go_on,
    away.join,
    away.leftover,
    away.newest,
    away._drop_stale,
    away.Away.outcome,
)
"""Where the main thread may be when the helper comes."""


def lifo(run: Run) -> None:
    a, b = spawn(run.leaf, "a"), spawn(run.parent, "b")
    assert b.join() == "b"
    run.ended("b", "b1", "b2")
    assert a.join() == "a"


def fifo(run: Run) -> None:
    a, b = spawn(run.parent, "a"), spawn(run.leaf, "b")
    assert (a.join(), b.join(), a.join()) == ("a", "b", "a")
    run.ended("a", "a1", "a2", "b")


def left_open(run: Run) -> None:
    a = spawn(run.leaf, "a")
    b = spawn(run.forgetful, "b")
    spawn(run.leaf, "c")
    assert b.join() == "b"
    run.ended("b", "b1", "b2")
    assert a.join() == "a"


def stale_below(run: Run) -> None:
    """What a task remembers as the newest entry may be a finished child, which leaves meanwhile."""
    a, b, c = spawn(run.leaf, "a"), spawn(run.leaf, "b"), spawn(run.forgetful, "c")
    assert (a.join(), b.join(), c.join()) == ("a", "b", "c")
    run.ended("c", "c1", "c2")


def all_together(run: Run) -> None:
    """Of which some leave children open, the last one among them."""
    assert join_all((run.forgetful, "a"), (run.leaf, "b"), (run.forgetful, "c")) == ("a", "b", "c")
    run.ended("a", "a1", "a2", "b", "c", "c1", "c2")


PROGRAMS: Final[list[tuple[Callable[[Run], None], str]]] = [
    (lifo, "a b b1 b2"),
    (fifo, "a a1 a2 b"),
    (left_open, "a b b1 b2 c"),
    (stale_below, "a b c c1 c2"),
    (all_together, "a a1 a2 b c c1 c2"),
]


def call_elsewhere(fn: Callable[..., Any], x: Any, rest: tuple[Any, ...]) -> Any:
    """Run a child of a program in the helper's thread, its children too: as another process would."""
    run: Run = fn.__self__  # type: ignore[attr-defined]
    assert not rest
    run.leaf(x)
    if fn.__name__ != "leaf":
        run.leaf(f"{x}1")
        run.leaf(f"{x}2")
    return x


def one_run(
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[Run], None],
    at: int,
    stands: int,
    goes_on: int | None,
) -> Run:
    """Let the helper begin before line `at` of the main thread and stand before line `stands` of its own.

    It goes on before line `goes_on`, or in the middle of the child that the main thread calls next.
    """
    run = Run()

    def take() -> None:
        run.elsewhere.take(call_elsewhere)

    helper = Paused(HELPER, (stands,), take)
    run.helper = helper
    lock = Lock(helper)
    monkeypatch.setattr(away, "fork_lock", lock)

    # The helper would wait for a main thread that has the lock, and this test for the helper.
    def begin() -> None:
        if not lock.mine():
            helper.start()

    def go_on() -> None:
        if not lock.mine():
            run.called = int  # it is told once
            helper.go_on()

    with root(run.elsewhere) as call:
        away.wait = run.wait
        actions = {at: begin}
        if goes_on is None:
            run.called = go_on
        else:
            actions[goes_on] = go_on
        with before_lines(MAIN, actions):
            call(program, run)
        helper.finish()
    return run


def places_of_the_helper(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return at which lines of the helper something has changed that the main thread can see."""
    run = Run()
    lock = Lock(None)
    monkeypatch.setattr(away, "fork_lock", lock)
    children: list[Any] = []
    seen: list[tuple[object, ...]] = []

    def look() -> None:
        (child,) = children
        record = child._fn if type(child._fn) is away.Away else None
        kind = None if record is None else record.kind
        entries = [id(entry) for entry in hot.stack]
        seen.append((lock.depth, entries, kind, len(away.opened), len(run.ran)))

    def program() -> None:
        children.append(spawn(run.leaf, "a"))
        with before_lines(HELPER, dict.fromkeys(range(200), look)):
            run.elsewhere.take(call_elsewhere)

    with root(run.elsewhere) as call:
        away.wait = run.wait
        call(program)
    return [line for line in range(len(seen)) if not line or seen[line] != seen[line - 1]]


def lines_of_the_main_thread(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[Run], None]
) -> list[int]:
    """Return at which lines a program does not have the lock."""
    lock = Lock(None)
    monkeypatch.setattr(away, "fork_lock", lock)
    run = Run()
    free: list[bool] = []
    actions = dict.fromkeys(range(1000), lambda: free.append(not lock.mine()))
    with root(run.elsewhere) as call, before_lines(MAIN, actions):
        call(program, run)
    assert len(free) < len(actions)
    return [line for line, is_free in enumerate(free) if is_free]


def explore(monkeypatch: pytest.MonkeyPatch, program: Callable[[Run], None], names: str) -> int:
    """Run a program with the helper at every place; returns how often it took something."""
    taken = 0
    places = places_of_the_helper(monkeypatch)
    for at in lines_of_the_main_thread(monkeypatch, program):
        for stands in places:
            for goes_on in (at + 1000, None):
                run = one_run(monkeypatch, program, at, stands, goes_on)
                assert sorted(run.ran) == names.split(), (at, stands, goes_on)
                taken += run.elsewhere.taken
    return taken


@pytest.mark.parametrize(("program", "names"), PROGRAMS, ids=[p.__name__ for p, _ in PROGRAMS])
def test_fork_lines_each_child_runs_once_wherever_the_helper_stands(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[Run], None], names: str
) -> None:
    """And each task ends after all of its children, whether it joins them or not."""
    assert explore(monkeypatch, program, names) > 50


# --- the test can fail: protocols that are wrong in one line -----------------------------------------


def _takes_no_notice(record: away.Away) -> Any:
    """Run what the helper has in its hands, without a word to the helper."""
    kind = record.kind
    if kind == away.PUBLISHING:
        record.run()
    elif kind == away.PUBLISHED:
        away.wait(record)
    return record.tell()


def _looks_at_no_record(_serial: int) -> None:
    """Wait for none of the children that have left the stack."""


def _takes_what_is_newest(handle: hot.Handle[Any]) -> Any:
    """Join what another thread may have taken as if it were on the stack."""
    fn, x, rest = handle._fn, handle._x, handle._rest
    if type(fn) is away.Away:
        return fn.outcome()
    return fn(x, *rest)


def _leaves_open(
    handles: list[hot.Handle[Any]], values: list[Any], _error: object, _below: object
) -> tuple[Any, ...]:
    """Join what is left of calls that were made together, and nothing that they have left open."""
    return (*values, *[handle.join() for handle in handles[len(values) :]])


MUTANTS: Final[list[tuple[Any, str, Callable[..., Any], Callable[[Run], None], str]]] = [
    (away.Away, "outcome", _takes_no_notice, fifo, "a a1 a2 b"),
    (away, "_oldest_after", _looks_at_no_record, left_open, "a b b1 b2 c"),
    (away, "join", _takes_what_is_newest, fifo, "a a1 a2 b"),
    (together, "_go_on", _leaves_open, all_together, "a a1 a2 b c c1 c2"),
]


@pytest.mark.parametrize(
    ("where", "name", "wrong", "program", "names"), MUTANTS, ids=[m[2].__name__ for m in MUTANTS]
)
def test_fork_lines_find_a_wrong_protocol(
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    wrong: Callable[..., Any],
    program: Callable[[Run], None],
    names: str,
) -> None:
    """The exploration notices each of the usual mistakes."""
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, RuntimeError)):
        explore(monkeypatch, program, names)
