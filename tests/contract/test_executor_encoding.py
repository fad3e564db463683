"""Arguments, functions and results that do not survive their way fail their own future only."""

from __future__ import annotations

import io
import math
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import WorkStealingExecutor
from mpsched.errors import DecodeError, EncodeError, ResultEncodeError, WorkerDied
from tests.contract.conftest import alive
from tests.support import faults, tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    import concurrent.futures as cf
    from collections.abc import Callable

HANG_S = 60.0
HOW = ["raise", "exit", "interrupt", "recurse", "memory"]


def error_of(future: cf.Future[Any]) -> BaseException:
    """Return the exception of a future that has one."""
    error = future.exception(HANG_S)
    assert error is not None
    return error


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        lambda: (n for n in range(3)),
        socket.socket,
        lambda: {"deep": [{"lock": threading.Lock()}]},
        faults.Deep,
    ],
    ids=["lock", "generator", "socket", "nested", "deep"],
)
def test_argument_that_cannot_be_pickled_fails_its_future(
    default_pool: WorkStealingExecutor, make: Callable[[], Any]
) -> None:
    """Not the call of `submit`: whoever reads the future sees it, and the default_pool goes on."""
    value = make()
    good = default_pool.submit(tasks.square, 2)
    bad = [
        default_pool.submit(tasks.identity, value),
        default_pool.submit(tasks.everything, 1, key=value),
    ]
    more = default_pool.submit(tasks.square, 3)
    for future in bad:
        assert future.done()
        error = error_of(future)
        assert isinstance(error, EncodeError)
        assert error.__cause__ is not None
    assert (good.result(), more.result()) == (4, 9)
    if isinstance(value, socket.socket):
        value.close()


def test_encode_error_names_the_part(pool: WorkStealingExecutor) -> None:
    """The message says where in the arguments it is."""
    arguments = [1, {"key": [tasks.Point(1, 2), threading.Lock()]}]
    text = str(error_of(pool.submit(tasks.nothing, 0, arguments)))
    assert "args[1][1]['key'][1]" in text
    assert "lock" in text
    text = str(error_of(pool.submit(tasks.nothing, named=threading.Lock())))
    assert "named" in text


def test_function_that_cannot_be_pickled_fails_its_future(pool: WorkStealingExecutor) -> None:
    """A closure over a lock is named."""
    lock = threading.Lock()
    future = pool.submit(
        lambda: lock.locked()  # noqa: PLW0108 - the lambda is the question
    )
    error = error_of(future)
    assert isinstance(error, EncodeError)
    assert "lock" in str(error)
    assert pool.submit(tasks.square, 3).result() == 9


@pytest.mark.parametrize("how", HOW)
def test_argument_that_goes_off_when_pickled_fails_its_future(
    default_pool: WorkStealingExecutor, how: str
) -> None:
    """`__reduce__` may raise what it likes, SystemExit too; a real Ctrl-C is not swallowed."""
    if how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            default_pool.submit(tasks.identity, faults.Bomb("pickle", how))
    else:
        error = error_of(default_pool.submit(tasks.identity, faults.Bomb("pickle", how)))
        assert isinstance(error, EncodeError)
    assert default_pool.submit(tasks.square, 3).result() == 9


@pytest.mark.parametrize("how", HOW)
def test_argument_that_goes_off_when_unpickled_fails_its_future(
    default_pool: WorkStealingExecutor, how: str
) -> None:
    """In the worker, which lives on."""
    before = [worker.pid for worker in default_pool.stats().workers]
    futures: list[cf.Future[Any]] = []
    for number in range(6):
        futures.append(default_pool.submit(tasks.identity, faults.Bomb("unpickle", how)))
        futures.append(default_pool.submit(tasks.square, number))
    for number, future in enumerate(futures):
        if number % 2:
            assert future.result(HANG_S) == (number // 2) ** 2
        else:
            error = error_of(future)
            assert isinstance(error, DecodeError)
            assert "arguments" in str(error)
            if how == "raise":
                assert "RuntimeError: the bomb went off" in str(error)
    assert [worker.pid for worker in default_pool.stats().workers] == before


@pytest.mark.parametrize("when", ["pickle", "unpickle"])
@pytest.mark.parametrize("how", HOW)
def test_result_that_goes_off_fails_its_future(
    default_pool: WorkStealingExecutor, when: str, how: str
) -> None:
    """Found in the worker, so that the parent never unpickles it."""
    before = [worker.pid for worker in default_pool.stats().workers]
    bad = [default_pool.submit(faults.make, when, how) for _ in range(3)]
    good = [default_pool.submit(tasks.square, number) for number in range(3)]
    for future in bad:
        assert isinstance(error_of(future), ResultEncodeError)
    assert [future.result(HANG_S) for future in good] == [0, 1, 4]
    assert [worker.pid for worker in default_pool.stats().workers] == before


def test_result_that_cannot_be_pickled_fails_its_future(pool: WorkStealingExecutor) -> None:
    """A lock, a generator, something nested too deeply."""
    for fn in (threading.Lock, faults.Deep, lambda: (n for n in range(3)), lambda: [io.StringIO]):
        future = pool.submit(fn)
        if fn is faults.Deep or isinstance(future.exception(HANG_S), Exception):
            assert isinstance(error_of(future), ResultEncodeError)
        else:
            assert future.result() == [io.StringIO]
    assert pool.submit(tasks.square, 3).result() == 9


def test_objects_that_end_the_process_cost_one_worker_each(start_method: str) -> None:
    """`os._exit` while pickling or unpickling in the worker: that future fails, no other."""
    with WorkStealingExecutor(2, mp_context=start_method) as ex:
        bad: list[cf.Future[Any]] = [
            ex.submit(tasks.identity, faults.Bomb("unpickle", "die")),
            ex.submit(faults.make, "pickle", "die"),
            ex.submit(faults.make, "unpickle", "die"),
            ex.submit(faults.raise_kind, faults.ReduceDies),
        ]
        good = [ex.submit(tasks.square, number) for number in range(100)]
        for future in bad:
            error = error_of(future)
            assert isinstance(error, WorkerDied)
            assert error.exitcode == 3
        assert [future.result(HANG_S) for future in good] == [n * n for n in range(100)]
        wait_until(lambda: all(alive(w.pid) for w in ex.stats().workers), "all workers")
        assert ex.stats().deaths == 4


def test_object_with_its_own_way_of_pickling_uses_it(pool: WorkStealingExecutor) -> None:
    """`copyreg` of the parent and `__reduce__` are respected."""
    value = tasks.Point(3, 4)
    assert pool.submit(tasks.identity, value).result() == value
    assert pool.submit(tasks.Point.moved, value, 2).result() == tasks.Point(5, 6)


def test_plain_arguments_arrive_as_what_they_are(pool: WorkStealingExecutor) -> None:
    """Numbers and texts at every edge, and what only looks like one: same value, same type."""
    plain = [0, -1, 1 << 63, -(1 << 200), True, None, 1.5, -0.0, math.inf, "", "é\ud800\0", b"\0"]
    others = [faults.Text("text"), faults.Number(3), bytearray(b"b"), 2j, (1, "a"), [b""], ...]
    for value in [*plain, *others]:
        back = pool.submit(tasks.identity, value).result(HANG_S)
        assert (type(back), back) == (type(value), value)
    assert math.copysign(1, pool.submit(tasks.identity, -0.0).result(HANG_S)) == -1
    assert math.isnan(pool.submit(tasks.identity, math.nan).result(HANG_S))
    got, kwargs = pool.submit(tasks.everything, *plain).result(HANG_S)
    assert (got, kwargs) == (tuple(plain), {})
    for size in (200, 5_000, 20_000, 300_000):
        assert pool.submit(len, "x" * size).result(HANG_S) == size


def test_self_referring_objects_survive(pool: WorkStealingExecutor) -> None:
    """Cycles and shared parts keep their shape."""
    ring: list[Any] = [1]
    ring.append(ring)
    back = pool.submit(tasks.identity, ring).result()
    assert back[0] == 1
    assert back[1] is back
    part = [1]
    one, two = pool.submit(tasks.identity, (part, part)).result()
    assert one is two
