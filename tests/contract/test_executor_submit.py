"""`submit` and `run`: what can be called, and with what."""

from __future__ import annotations

import concurrent.futures as cf
import functools
import math
import operator
import os
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from tests.support import tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched import WorkStealingExecutor


def test_submit_returns_a_future_of_the_standard_library(pool: WorkStealingExecutor) -> None:
    """A future is an instance of both classes, and the executor is an Executor."""
    future = pool.submit(tasks.add, 1, 2)
    assert isinstance(pool, cf.Executor)
    assert isinstance(future, cf.Future)
    assert isinstance(future, mpsched.Future)
    assert future.result() == 3
    assert future.exception() is None
    assert future.done()
    assert not future.running()
    assert not future.cancelled()
    assert future.result(timeout=0) == 3


def test_submit_runs_in_another_process(pool: WorkStealingExecutor) -> None:
    """The function runs in one of the workers that `stats` lists."""
    pids = {pool.submit(tasks.pid).result() for _ in range(20)}
    assert pids <= {worker.pid for worker in pool.stats().workers}
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((), {"a": 1}),
        ((1, "two", [3], {"four": 4}), {"five": (5,), "six": None}),
        ((b"x" * 100_000,), {"y": "y" * 100_000}),
        ((None, True, 2**80, 1.5, float("inf"), -0.0), {}),
    ],
)
def test_submit_passes_arguments_as_they_are(
    default_pool: WorkStealingExecutor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Positional and keyword arguments arrive unchanged."""
    assert default_pool.submit(tasks.everything, *args, **kwargs).result() == (args, kwargs)


def test_submit_leaves_every_keyword_to_the_function(pool: WorkStealingExecutor) -> None:
    """The executor takes no parameter's name for itself: not self, fn, args, timeout, priority."""
    assert pool.submit(tasks.shadow, self=1, fn=2, args=3, kwargs=4).result() == (1, 2, 3, 4)
    names = dict.fromkeys(("self", "fn", "timeout", "priority", "options", "index", "pool"), 7)
    assert pool.submit(tasks.everything, **names).result() == ((), names)
    assert pool.run(tasks.everything, **names) == ((), names)
    assert pool.options(priority=1).submit(tasks.everything, **names).result() == ((), names)


def _local(number: int) -> Callable[[int], int]:
    def inner(other: int) -> int:
        return number - other

    return inner


CALLABLES: list[tuple[str, Callable[..., Any], tuple[Any, ...], Any]] = [
    ("function", tasks.square, (3,), 9),
    ("builtin", abs, (-3,), 3),
    ("function of a C module", math.sqrt, (9.0,), 3.0),
    ("bound method of a builtin", "a-b".split, ("-",), ["a", "b"]),
    ("unbound method of a builtin", str.upper, ("a",), "A"),
    ("class", tasks.Point, (1, 2), tasks.Point(1, 2)),
    ("builtin class", int, ("11", 2), 3),
    ("exception class", ValueError, ("x",), None),
    ("partial", functools.partial(tasks.add, 1, scale=2), (3,), 8),
    ("partial of a partial", functools.partial(functools.partial(pow, 2), 3), (), 8),
    ("partial of a lambda", functools.partial(lambda a, b: a - b, 5), (2,), 3),
    ("bound method", tasks.Base(5).method, (2,), 7),
    ("method of a class", tasks.Base.of_class, (2,), 20),
    ("method of a derived class", tasks.Child.of_class, (2,), 200),
    ("static method", tasks.Base.of_nobody, (2,), -2),
    ("function of a class, with the instance", tasks.Base.method, (tasks.Base(5), 2), 7),
    ("callable instance", tasks.Base(5), (2,), 10),
    ("method of a dataclass", tasks.Point(1, 2).moved, (1,), tasks.Point(2, 3)),
    ("itemgetter", operator.itemgetter(1), ([1, 2],), 2),
    ("attrgetter", operator.attrgetter("x"), (tasks.Point(1, 2),), 1),
    ("methodcaller", operator.methodcaller("moved", 1), (tasks.Point(1, 2),), tasks.Point(2, 3)),
    ("lambda", lambda a: a + 1, (1,), 2),
    ("closure", _local(5), (2,), 3),
    ("lru_cache", functools.lru_cache(maxsize=None)(_local(5)), (2,), 3),
    ("wrapped", functools.wraps(tasks.square)(lambda number: -number), (2,), -2),
]


@pytest.mark.parametrize(
    ("fn", "args", "expected"), [case[1:] for case in CALLABLES], ids=[c[0] for c in CALLABLES]
)
def test_submit_takes_callables_of_every_kind(
    pool: WorkStealingExecutor, fn: Callable[..., Any], args: tuple[Any, ...], expected: Any
) -> None:
    """What can be called here can be called there, more than once."""
    for _ in range(3):
        result = pool.submit(fn, *args).result()
        if expected is not None:
            assert result == expected
            assert type(result) is type(expected)
        else:
            assert repr(result) == repr(fn(*args))


@pytest.mark.parametrize(
    "value", [3, None, "f", [len], tasks.square(3)], ids=["int", "none", "str", "list", "called"]
)
def test_submit_refuses_what_cannot_be_called_at_once(
    default_pool: WorkStealingExecutor, value: Any
) -> None:
    """`submit(fn(x))` and the like are a TypeError of the call, which says what to write."""
    with pytest.raises(TypeError, match="submit\\(fn, x\\)"):
        default_pool.submit(value)
    with pytest.raises(TypeError, match="function"):
        default_pool.options(priority=1).submit(value)
    with pytest.raises(TypeError, match="function"):
        default_pool.run(value)
    with pytest.raises(TypeError, match="function"):
        default_pool.map(value, [1])
    with pytest.raises(TypeError, match="function"):
        default_pool.starmap(value, [(1,)])


def test_submit_without_a_function_is_a_type_error(pool: WorkStealingExecutor) -> None:
    """The function is a positional parameter that must be there."""
    with pytest.raises(TypeError):
        pool.submit()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        pool.submit(fn=tasks.square)  # type: ignore[call-arg]


VALUES: list[Any] = [
    *(None, True, False, ..., NotImplemented),
    *(0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**200),
    *(0.0, float("-inf"), 1e-320, 1 + 2j),
    *("", "ß\N{SNOWMAN}\0", b"", b"\0" * 4096, b"x" * 4097, bytearray(b"x")),
    *((), [1, [2, [3]]], {"a": {1, 2}}, frozenset({1}), range(5)),
    *(tasks.Colour.RED, tasks.Point(1, 2), tasks.Base(3), len, tasks.square, tasks.Base),
]


def test_submit_gives_back_what_was_returned(pool: WorkStealingExecutor) -> None:
    """Values keep their type and value on the way there and back."""
    futures = [(value, pool.submit(tasks.identity, value)) for value in VALUES]
    for value, future in futures:
        result = future.result()
        assert type(result) is type(value)
        assert result == value


def test_submit_keeps_singletons_and_members_of_enumerations(pool: WorkStealingExecutor) -> None:
    """Members, functions and classes come back as the very same objects."""
    for value in (tasks.Colour.RED, tasks.square, tasks.Base, len, ..., NotImplemented):
        assert pool.submit(tasks.identity, value).result() is value


def test_submit_keeps_nan_and_the_sign_of_zero(pool: WorkStealingExecutor) -> None:
    """Floats travel bit by bit."""
    assert math.isnan(pool.submit(tasks.identity, math.nan).result())
    assert math.copysign(1, pool.submit(tasks.identity, -0.0).result()) == -1


def test_submit_keeps_subclasses_of_the_simple_types(pool: WorkStealingExecutor) -> None:
    """A bool is no int, and a subclass of int or str stays one."""
    assert pool.submit(tasks.identity, tasks.Colour.BLUE.value == 2).result() is True
    import http
    import signal

    for value in (http.HTTPStatus.OK, signal.SIGTERM):
        assert pool.submit(tasks.identity, value).result() is value


def test_submit_takes_arguments_as_they_are_at_the_call(pool: WorkStealingExecutor) -> None:
    """What the caller changes after `submit` is not seen by the task."""
    for _ in range(20):
        items = [1, 2, 3]
        futures = [pool.submit(sum, items) for _ in range(8)]
        items.clear()
        assert [future.result() for future in futures] == [6] * 8


def test_submit_lets_nothing_of_a_task_change_the_callers_objects(
    pool: WorkStealingExecutor,
) -> None:
    """Arguments are values: what a task changes stays in its process."""
    items = [3, 1, 2]
    assert pool.submit(list.sort, items).result() is None
    assert items == [3, 1, 2]


def test_submit_closes_over_what_the_loop_variable_was(pool: WorkStealingExecutor) -> None:
    """A lambda in a loop is taken as it is at its `submit`, not as it is when it runs."""
    futures = [pool.submit(lambda: number * 2) for number in range(50)]  # noqa: B023 - on purpose
    assert [future.result() for future in futures] == [number * 2 for number in range(50)]


def test_submit_works_from_several_threads_at_once(pool: WorkStealingExecutor) -> None:
    """Eight threads submit and read, each gets its own results."""

    def job(base: int) -> list[int]:
        futures = [pool.submit(tasks.square, base + n) for n in range(300)]
        return [future.result() for future in futures]

    with cf.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(job, range(0, 8000, 1000)))
    assert found == [[(base + n) ** 2 for n in range(300)] for base in range(0, 8000, 1000)]


def test_submit_of_many_keeps_each_result_with_its_future(pool: WorkStealingExecutor) -> None:
    """Twenty thousand small tasks, far more than the table holds, read in another order."""
    futures = {number: pool.submit(tasks.square, number) for number in range(20_000)}
    for number in sorted(futures, key=lambda n: n * 7919 % 20_011):
        assert futures[number].result() == number * number


def test_run_returns_or_raises_what_the_function_does(pool: WorkStealingExecutor) -> None:
    """`run` is `submit(...).result()`."""
    assert pool.run(tasks.add, 1, right=2, scale=3) == 9
    with pytest.raises(ValueError, match="wanted"):
        pool.run(tasks.fail)
    assert pool.options(name="named").run(tasks.add, 1, 1) == 2


def test_future_says_what_its_run_was_like(pool: WorkStealingExecutor) -> None:
    """`attempts`, `seconds` and `worker` are known once it is done."""
    future = pool.submit(tasks.cpu, 20_000)
    future.result()
    assert future.attempts == 1
    assert future.worker in {0, 1}
    assert future.seconds is not None
    assert future.seconds > 0
    failed = pool.submit(tasks.fail)
    assert isinstance(failed.exception(), ValueError)
    assert failed.attempts == 1
    assert failed.seconds is not None


def test_result_waits_only_so_long(pool: WorkStealingExecutor, gate: Any) -> None:
    """A time-out ends the waiting, not the task."""
    future = pool.submit(gate.hold, "late")
    gate.wait_for(1)
    assert future.running()
    for timeout in (0, 0.01, -1):
        with pytest.raises(TimeoutError):
            future.result(timeout)
        with pytest.raises(cf.TimeoutError):
            future.exception(timeout)
    assert not future.done()
    gate.open()
    assert future.result(60) == "late"
