"""One steal, step by step: what goes into a child's entry, and what comes back out of it."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._shm import layout as lay
from mpsched._tasks import children as ch, state as st
from mpsched._worker import awaiting, contract, hot, idle, publish, stolen
from mpsched.errors import DecodeError
from tests.support.quiet_pool import QuietPool
from tests.unit.worker.test_fork_parking import home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched._worker.worker import Worker

calls: list[Any] = []


def noted(value: Any, *rest: Any) -> Any:
    """A function that an import finds."""
    calls.append((value, *rest))
    return value


def with_default(value: Any, seen: list[Any] | None = None) -> Any:
    return value if seen is None else seen


def asked() -> object:
    raise NotImplementedError


def asking(value: Any) -> Any:
    calls.append(asked())
    return value


@pytest.fixture
def home() -> Iterator[tuple[QuietPool, Worker]]:
    quiet = QuietPool()
    with home_of(quiet, 1) as worker:
        yield quiet, worker
    quiet.close()


def stolen_by(thief: Worker, home: Worker, fn: Any, *args: Any) -> tuple[hot.Handle[Any], int]:
    """Spawn a call, and let the thief run it; returns its handle and entry."""
    handle = hot.spawn(fn, *args)
    publish.give_all()
    entry = stolen.take(thief, home.index)
    assert entry is not None
    stolen.run(thief, entry)
    return handle, entry


PLAIN = [None, True, -1, 1 << 80, 1.5, float("inf"), "", "\udc80 é", b"", b"\0\xff"]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_steal_of_plain_arguments_and_value_is_exact(
    home: tuple[QuietPool, Worker], value: object
) -> None:
    """They come and go without a pickle, and are what they were, also as further arguments."""
    quiet, worker = home
    calls.clear()
    handle, entry = stolen_by(quiet.workers[0], worker, noted, value, value, 7)
    assert calls == [(value, value, 7)]
    assert [type(one) for one in calls[0]] == [type(value), type(value), int]
    assert worker.table.meta[entry] == ch.O_PLAIN
    assert handle.join() == value
    assert type(handle.join()) is type(value)
    assert worker.children.in_use == 0


def test_steal_of_other_values_goes_by_pickle(home: tuple[QuietPool, Worker]) -> None:
    """A subclass of a plain type, a container, a value that is too large for its entry."""
    quiet, worker = home

    for value in ([1, 2], (1,), types.SimpleNamespace(a=1), "x" * 10_000):
        handle, entry = stolen_by(quiet.workers[0], worker, noted, value)
        assert worker.table.meta[entry] & ch.C_MASK in {ch.O_VALUE, ch.O_VALUE_FILES}
        assert handle.join() == value
    handle, entry = stolen_by(quiet.workers[0], worker, noted, st.TaskState.DONE)
    assert worker.table.meta[entry] & ch.C_MASK == ch.O_VALUE
    assert handle.join() is st.TaskState.DONE


def test_steal_sends_a_function_by_the_name_that_it_has_now(
    home: tuple[QuietPool, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function whose name was given to another one is not called by that name."""
    quiet, worker = home
    handle, _ = stolen_by(quiet.workers[0], worker, noted, 1)
    assert handle.join() == 1
    old = noted
    monkeypatch.setattr(f"{__name__}.noted", lambda _: "another")
    handle = hot.spawn(old, 2)
    publish.give_all()
    assert handle.join() == 2


def test_steal_of_a_function_that_is_gone_fails_as_undecodable(
    home: tuple[QuietPool, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thief whose module does not have it says so at the join."""
    quiet, worker = home
    handle = hot.spawn(noted, 1)
    publish.give_all()
    monkeypatch.delattr(f"{__name__}.noted")
    entry = stolen.take(quiet.workers[0], worker.index)
    assert entry is not None
    stolen.run(quiet.workers[0], entry)
    with pytest.raises(DecodeError, match="noted"):
        handle.join()


def test_contract_bare_functions_bring_nothing_along() -> None:
    """No closure, no defaults, no object: then nobody looks at them."""

    def closed(_: object) -> object:
        return calls

    def over(value: object) -> Callable[[object], object]:
        return lambda _: value

    assert contract.is_bare(noted)
    assert contract.is_bare(closed)
    others: list[Any] = [over([]), with_default, calls.append, types.SimpleNamespace, len]
    for other in others:
        assert not contract.is_bare(other), other


def test_steal_takes_nothing_that_comes_after_its_look(home: tuple[QuietPool, Worker]) -> None:
    """Who may take only what is below a child gets nothing that home pushes after that child's end."""
    quiet, worker = home
    thief = quiet.workers[0]
    first = hot.spawn(noted, 1)
    publish.give_all()
    entry = stolen.take(thief, worker.index)
    assert entry is not None
    second = hot.spawn(noted, 2)

    def look() -> bool:
        # Home goes on while the thief has the lock, since a push takes none.
        publish.give_all()
        return True

    third = hot.spawn(noted, 3)
    publish.give_all()
    before = worker.deque.handles()
    assert len(before) == 2
    assert stolen.take(thief, worker.index, look) == before[0]
    worker.table.state[before[0]] = st.word(st.RETURNED, worker.index)
    fourth = hot.spawn(noted, 4)
    last = worker.deque.handles()
    assert stolen.take(thief, worker.index, look) == last[0]
    worker.table.state[last[0]] = st.word(st.RETURNED, worker.index)
    # Now nothing was there at the look but what came during it.
    assert len(worker.deque.handles()) == 1
    stolen.run(thief, entry)
    assert [h.join() for h in (first, second, third, fourth)] == [1, 2, 3, 4]


def test_linger_runs_a_child_that_comes(
    home: tuple[QuietPool, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thief that is awake runs it at once, and says so; meanwhile it asks nobody for work."""
    quiet, worker = home
    thief, words = quiet.workers[0], quiet.segment.words
    hot.spawn(noted, 0).join()
    handles: list[hot.Handle[Any]] = []
    calls.clear()

    def what_it_says() -> tuple[int, int]:
        return words[thief.block + lay.B_STATE], words[thief.block + lay.B_WAITS]

    def spawn_now() -> None:
        assert not handles
        calls.append(what_it_says())
        handles.append(hot.spawn(asking, 5))

    monkeypatch.setattr(f"{__name__}.asked", what_it_says)

    monkeypatch.setattr(quiet.workers[0], "settings", quiet.settings._replace(fork_linger_s=30.0))
    monkeypatch.setattr("os.sched_yield", spawn_now)
    assert idle.linger(thief) == idle.RAN
    assert words[thief.block + lay.B_CHILDREN_RUN] == 1
    assert calls == [(lay.LINGERING, lay.WAITS_ANY), (lay.AWAKE, 0)]
    assert handles[0].join() == 5
    assert words[worker.block + lay.B_PUBLISHED] == 1


def test_linger_leaves_what_somebody_else_has_taken(
    home: tuple[QuietPool, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks everywhere again then; roots of its own come first anyway."""
    quiet, _ = home
    thief = quiet.workers[0]
    handle = hot.spawn(noted, 1)
    publish.give_all()
    monkeypatch.setattr(stolen, "take", lambda *_: None)
    assert idle.linger(thief) == idle.CAME
    assert quiet.segment.words[thief.block + lay.B_WAITS] == lay.WAITS_ANY
    quiet.push(0)
    monkeypatch.undo()
    assert idle.linger(thief) == idle.CAME
    assert quiet.segment.words[thief.block + lay.B_CHILDREN_RUN] == 0
    assert thief.find_work()
    assert quiet.segment.words[thief.block + lay.B_WAITS] == 0
    assert handle.join() == 1


def test_join_takes_only_plain_values_in_one_go(home: tuple[QuietPool, Worker]) -> None:
    """What has more to it, or has not ended, is left to the longer way."""
    quiet, worker = home
    for value, plain in ((1, True), ([1], False)):
        handle = hot.spawn(noted, value)
        publish.give_all()
        record = handle._fn
        assert not awaiting.take_plain(record)
        entry = stolen.take(quiet.workers[0], worker.index)
        assert entry is not None
        assert not awaiting.take_plain(record)
        stolen.run(quiet.workers[0], entry)
        assert awaiting.take_plain(record) == plain
        assert handle.join() == value
        assert worker.children.in_use == 0
        assert not awaiting.take_plain(record)


def test_publish_counts_thieves_that_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sleep: the third child is for the third one, though the first two have not taken theirs yet."""
    monkeypatch.setattr(publish, "_FREE_NS", 1 << 60)  # this test may be put aside meanwhile
    quiet = QuietPool(width=4)
    with home_of(quiet, 1) as worker:
        words = quiet.segment.words
        thieves = [quiet.workers[index] for index in (0, 2, 3)]
        for thief in thieves:
            words[thief.block + lay.B_WAITS] = lay.WAITS_ANY
            words[thief.block + lay.B_STATE] = lay.PARKED
        handles = []
        for number in range(3):
            handles.append(hot.spawn(noted, number))
            assert words[worker.block + lay.B_PUBLISHED] == number + 1
            assert hot.want[0] == (number < 2)
            # Rung, awake, and before its first look.
            assert thieves[number].bell.wait(0)
            words[thieves[number].block + lay.B_STATE] = lay.AWAKE
        handles.append(hot.spawn(noted, 3))
        assert words[worker.block + lay.B_PUBLISHED] == 3
        assert [handle.join() for handle in handles] == [0, 1, 2, 3]
    quiet.close()


def test_publish_rings_those_whom_it_leaves_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home has spent its share: who sleeps since before it forked has no patience, and is rung for that."""
    quiet = QuietPool(width=3)
    with home_of(quiet, 1) as worker:
        words = quiet.segment.words
        thieves = [quiet.workers[index] for index in (0, 2)]
        for thief in thieves:
            words[thief.block + lay.B_WAITS] = lay.WAITS_ANY
            words[thief.block + lay.B_STATE] = lay.PARKED
        monkeypatch.setattr(publish, "_FREE_NS", -1)
        monkeypatch.setattr(publish, "_SHARE", 1 << 40)  # of any time: it has spent too much
        monkeypatch.setattr(publish, "_gained_ns", -1)
        handles = [hot.spawn(noted, 0)]
        published = words[worker.block + lay.B_PUBLISHED]
        handles.append(hot.spawn(noted, 1))
        assert words[worker.block + lay.B_PUBLISHED] == published == 1
        assert hot.want[0] == 0
        # The first was rung for the child, the second because there is none for it.
        assert [thief.bell.wait(0) for thief in thieves] == [True, True]
        hot.want[0] = 1
        handles.append(hot.spawn(noted, 2))
        assert hot.want[0] == 0
        assert [thief.bell.wait(0) for thief in thieves] == [False, False]
        assert [handle.join() for handle in handles] == [0, 1, 2]
    quiet.close()


@pytest.mark.parametrize("coarse", [False, True])
def test_linger_asks_the_helper_at_once_if_children_are_coarse(
    home: tuple[QuietPool, Worker], monkeypatch: pytest.MonkeyPatch, coarse: bool
) -> None:
    """Home may be in the next long one, and reads WANT no more; a quick one will look by itself."""
    quiet, worker = home
    thief, bell = quiet.workers[0], quiet.workers[0].helper_bells[worker.index]
    hot.spawn(noted, 0).join()
    seconds = 60.0 if coarse else 0.01
    monkeypatch.setattr(thief, "settings", quiet.settings._replace(fork_linger_s=seconds))
    rung: list[int] = []

    def look() -> None:
        if bell.wait(0):
            rung.append(1)
            quiet.push(0)

    monkeypatch.setattr("os.sched_yield", look)
    thief.child_ns = int(quiet.settings.patience_s * 2e9) if coarse else 1000
    assert idle.linger(thief) == (idle.CAME if coarse else 0)
    assert len(rung) == coarse
    assert not bell.wait(0)
