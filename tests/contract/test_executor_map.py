"""`map` and `starmap`: results and their order."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tasks
from tests.support.results import KINDS, result_of_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpsched import WorkStealingExecutor
    from tests.support.gates import Gate

HANG_S = 60.0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 5000])
def test_map_gives_what_the_builtin_map_gives(
    default_pool: WorkStealingExecutor, count: int
) -> None:
    """The same results in the same order, for sized inputs and for generators."""
    expected = [n * n for n in range(count)]
    assert list(default_pool.map(tasks.square, range(count))) == expected
    assert list(default_pool.map(tasks.square, list(range(count)))) == expected
    assert list(default_pool.map(tasks.square, (n for n in range(count)))) == expected
    assert list(default_pool.map(tasks.square, iter(range(count)))) == expected


def test_map_takes_every_kind_of_iterable(pool: WorkStealingExecutor) -> None:
    """Sets, dicts, strings, files and NumPy arrays are inputs."""
    np = pytest.importorskip("numpy")
    assert sorted(pool.map(tasks.square, {1, 2, 3})) == [1, 4, 9]
    assert list(pool.map(tasks.identity, {"a": 1, "b": 2})) == ["a", "b"]
    assert list(pool.map(str.upper, "abc")) == ["A", "B", "C"]
    assert list(pool.map(tasks.square, np.arange(5))) == [0, 1, 4, 9, 16]
    assert list(pool.map(tasks.identity, b"ab")) == [97, 98]
    with open(__file__, encoding="utf-8") as lines:
        assert next(pool.map(len, lines)) == len(__doc__ or "") + 7


def test_map_is_an_iterator(pool: WorkStealingExecutor) -> None:
    """`next` works on it, and at its end it stays ended."""
    results = pool.map(tasks.square, range(3))
    assert iter(results) is results
    assert [next(results), next(results), next(results)] == [0, 1, 4]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(results)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunksize", [None, 1, 3, 1000])
def test_map_gives_every_item_once_whatever_the_chunks(
    pool: WorkStealingExecutor, chunksize: int | None, ordered: bool
) -> None:
    """`chunksize` and `ordered` change the way, not the results."""
    found = pool.map(tasks.square, range(777), chunksize=chunksize, ordered=ordered)
    results = list(found)
    assert sorted(results) == [n * n for n in range(777)]
    assert not ordered or results == sorted(results)
    lazy = (n for n in range(777))
    results = list(pool.map(tasks.square, lazy, chunksize=chunksize, ordered=ordered))
    assert sorted(results) == [n * n for n in range(777)]
    assert not ordered or results == sorted(results)


def test_map_takes_several_iterables_and_ends_with_the_shortest(
    pool: WorkStealingExecutor,
) -> None:
    """As the built-in `map` does, sized or not."""
    assert list(pool.map(tasks.add, [1, 2, 3], [10, 20, 30])) == [11, 22, 33]
    assert list(pool.map(tasks.add, [1, 2, 3], [10, 20])) == [11, 22]
    assert list(pool.map(tasks.add, range(3), itertools.count(10))) == [10, 12, 14]
    assert list(pool.map(tasks.add, itertools.count(), range(3))) == [0, 2, 4]
    assert list(pool.map(tasks.add, [1], [])) == []
    assert list(pool.map(pow, [2, 3], [3, 2], [5, 5])) == [3, 4]


def test_map_without_iterables_has_nothing_to_do(pool: WorkStealingExecutor) -> None:
    """As in the standard library; but the function must be there, and an iterable be one."""
    assert list(pool.map(tasks.square)) == []
    with pytest.raises(TypeError):
        pool.map()  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        pool.map(tasks.square, 5)  # type: ignore[call-overload]


def test_starmap_unpacks_each_item(pool: WorkStealingExecutor) -> None:
    """Tuples, lists and any other iterable are argument lists."""
    assert list(pool.starmap(pow, [(2, 3), [3, 2], (5, 1, 3)])) == [8, 9, 2]
    assert list(pool.starmap(tasks.add, ((n, n) for n in range(100)))) == [
        n + n for n in range(100)
    ]
    assert list(pool.starmap(tasks.everything, [(), (1,), "ab"])) == [
        ((), {}),
        ((1,), {}),
        (("a", "b"), {}),
    ]
    assert list(pool.starmap(tasks.add, enumerate([5, 6]))) == [5, 7]
    assert list(pool.starmap(tasks.add, {"a": 1, "b": 2}.items() and [("a", "b")])) == ["ab"]


@pytest.mark.parametrize("name", ["chunksize", "buffersize"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True])
def test_map_refuses_sizes_that_make_no_sense(
    default_pool: WorkStealingExecutor, name: str, value: Any
) -> None:
    """The message names the parameter and the value, at the call."""
    options: dict[str, Any] = {name: value}
    with pytest.raises((ValueError, TypeError), match=name):
        default_pool.map(tasks.square, [1], **options)


def test_map_refuses_unknown_keywords(pool: WorkStealingExecutor) -> None:
    """Arguments of the function do not go through `map`'s keywords."""
    with pytest.raises(TypeError):
        pool.map(tasks.add, [1], scale=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "fn",
    [
        functools.partial(tasks.add, scale=2),
        lambda number: number * 2,
        tasks.Base(2),
        tasks.Base(0).method,
        tasks.Base.of_class,
    ],
    ids=["partial", "lambda", "instance", "bound method", "class method"],
)
def test_map_takes_callables_of_every_kind(
    pool: WorkStealingExecutor, fn: Callable[[int], int]
) -> None:
    """By value or by name, the function is the same for all items."""
    assert list(pool.map(fn, range(200))) == [fn(n) for n in range(200)]


def test_map_calls_by_value_functions_of_that_moment(pool: WorkStealingExecutor) -> None:
    """Maps with lambdas that differ only in what they close over do not mix."""
    maps = [pool.map(lambda n: n * factor, range(50)) for factor in range(20)]  # noqa: B023
    for factor, results in enumerate(maps):
        assert list(results) == [n * factor for n in range(50)]


def test_map_results_of_all_sizes_stay_in_place(pool: WorkStealingExecutor) -> None:
    """Items and results from nothing to more than a ring holds, mixed in one map."""
    sizes = [0, 1, 4095, 4096, 70_000, 300_000, 1_100_000] * 3
    results = pool.map(tasks.identity, (bytes([n % 251]) * size for n, size in enumerate(sizes)))
    for number, (size, result) in enumerate(zip(sizes, results, strict=True)):
        assert len(result) == size
        assert result == bytes([number % 251]) * size


def test_map_items_are_taken_as_they_are(pool: WorkStealingExecutor) -> None:
    """A task may change its item; the caller's list stays as it is."""
    items = [[3, 1, 2] for _ in range(50)]
    assert list(pool.map(list.sort, items)) == [None] * 50
    assert items == [[3, 1, 2]] * 50


def test_map_from_several_threads_at_once(pool: WorkStealingExecutor) -> None:
    """Six threads, each with three maps that it reads in turns."""

    def job(base: int) -> list[list[int]]:
        maps = [pool.map(tasks.add, range(300), itertools.repeat(base + k)) for k in range(3)]
        rows = list(zip(*maps, strict=True))
        return [list(column) for column in zip(*rows, strict=True)]

    with cf.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(job, range(0, 600, 100)))
    for base, columns in zip(range(0, 600, 100), found, strict=True):
        assert columns == [[n + base + k for n in range(300)] for k in range(3)]


def test_map_may_be_read_by_another_thread(pool: WorkStealingExecutor) -> None:
    """Whoever reads it leads; it need not be the thread that called `map`."""
    results = pool.map(tasks.square, range(500))
    first = next(results)
    with cf.ThreadPoolExecutor(1) as threads:
        rest = threads.submit(list, results).result(HANG_S)
    assert [first, *rest] == [n * n for n in range(500)]


def test_map_and_submit_share_the_workers(pool: WorkStealingExecutor, gate: Gate) -> None:
    """A task submitted while a map runs is served before the map is over."""
    results = pool.map(gate.hold, range(2))
    gate.wait_for(2)
    more = pool.map(tasks.square, range(1000))
    future = pool.submit(tasks.square, 5)
    gate.open()
    assert future.result(HANG_S) == 25
    assert list(results) == [0, 1]
    assert list(more) == [n * n for n in range(1000)]


def test_map_unordered_gives_a_quick_item_before_a_slow_one(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """With `ordered=False` the first item holds nobody back."""
    results = pool.map(functools.partial(hold_zero, gate), range(20), ordered=False)
    found = [next(results) for _ in range(19)]
    assert sorted(found) == list(range(1, 20))
    gate.open()
    assert list(results) == [0]


def hold_zero(gate: Gate, number: int) -> int:
    """Return the number; zero waits for the gate. In a worker."""
    if not number:
        gate.hold(number)
    return number


def test_map_delivers_items_one_by_one_when_they_take_long(
    pool: WorkStealingExecutor, gate: Gate
) -> None:
    """A result does not wait for its neighbours in the same piece."""
    results = pool.map(functools.partial(hold_last, gate, 39), range(40), chunksize=20)
    assert [next(results) for _ in range(39)] == list(range(39))
    gate.open()
    assert list(results) == [39]


def hold_last(gate: Gate, last: int, number: int) -> int:
    """Return the number; the last waits for the gate. In a worker."""
    if number == last:
        gate.hold(number)
    return number


def test_map_with_a_bar_gives_the_same(
    pool: WorkStealingExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """`progress=True` shows how far it is, on standard error."""
    pytest.importorskip("tqdm")
    assert list(pool.map(tasks.square, range(50), progress=True)) == [n * n for n in range(50)]
    shown = capsys.readouterr()
    assert "50/50" in shown.err
    assert shown.out == ""


def test_map_with_a_bar_names_the_extra_when_it_is_missing(
    pool: WorkStealingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tqdm the error is raised at the call and says what to install."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"mpsched\[progress\]"):
        pool.map(tasks.square, range(50), progress=True)


def test_map_counts_its_items_in_the_stats(pool: WorkStealingExecutor) -> None:
    """`items` grows by exactly the items that ran."""
    before = pool.stats().items
    assert sum(pool.map(tasks.identity, range(1234))) == 1234 * 1233 // 2
    from tests.support.gates import wait_until

    wait_until(lambda: pool.stats().items == before + 1234, "1234 more items")


def test_map_of_a_generator_that_depends_on_results_does_not_hang(
    pool: WorkStealingExecutor,
) -> None:
    """Each item is made from the result before: with buffersize=1 the caller stays in charge."""
    latest = [0]

    def inputs() -> Iterator[int]:
        for _ in range(20):
            yield latest[0]

    for result in pool.map(functools.partial(tasks.add, 1), inputs(), buffersize=1):
        latest[0] = result
    assert latest == [20]


def test_map_results_of_all_kinds_are_what_the_function_returned(
    pool: WorkStealingExecutor,
) -> None:
    """Also of functions that return the same object again; each item gets an object of its own."""
    items = [kind for kind in KINDS for _ in range(8)]
    for chunksize in (None, 1, 100):
        found = list(pool.map(result_of_kind, items, range(len(items)), chunksize=chunksize))
        for number, (kind, value) in enumerate(zip(items, found, strict=True)):
            expected = result_of_kind(kind, number)
            assert type(value) is type(expected), kind
            assert repr(value) == repr(expected)
        changed = [value for value in found if isinstance(value, (list, dict, set))]
        assert len(set(map(id, changed))) == len(changed)


def test_map_items_that_are_equal_tuples_arrive_as_they_are(pool: WorkStealingExecutor) -> None:
    """Tuples of plain values, one of them many times, beside one that holds a list."""
    pair = (1, ("a", None))
    items = [pair] * 50 + [(1, [2]), ((),), (b"x", 1.5)]
    assert list(pool.map(tasks.identity, items)) == items
    assert list(pool.starmap(tasks.everything, items)) == [(item, {}) for item in items]
