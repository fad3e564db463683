"""What happens to a task that fails: the error, its traceback, its notes, and everybody else."""

from __future__ import annotations

import concurrent.futures as cf
import gc
import logging
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mpsched.errors import RemoteError
from tests.support import faults, tasks
from tests.support.gates import wait_until

if TYPE_CHECKING:
    from mpsched import WorkStealingExecutor
    from tests.support.gates import Gate

HANG_S = 60.0


def error_of(future: cf.Future[Any]) -> BaseException:
    """Return the exception of a future that has one."""
    error = future.exception(HANG_S)
    assert error is not None
    return error


def test_failure_has_the_remote_traceback_as_its_cause(pool: WorkStealingExecutor) -> None:
    """What a user sees names the file, the line and the function in the worker."""
    with pytest.raises(ValueError, match="wanted") as caught:
        pool.submit(tasks.fail).result()
    text = str(caught.value.__cause__)
    assert "in fail" in text
    assert "tests/support/tasks.py" in text
    assert "raise ValueError(message)" in text
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" in shown
    assert "mpsched/_worker" not in text


def test_failure_keeps_its_own_causes(pool: WorkStealingExecutor) -> None:
    """`raise ... from ...` in the worker is readable in the parent."""
    error = error_of(pool.submit(tasks.outer_fail, 7))
    assert type(error) is KeyError
    text = str(error.__cause__)
    assert "inner 7" in text
    assert "direct cause" in text


def test_failure_has_a_note_with_the_call(pool: WorkStealingExecutor) -> None:
    """Task number, function and arguments, so that a log line can be understood."""
    future = pool.submit(tasks.fail, "message", 7, "x")
    note = "\n".join(error_of(future).__notes__)
    assert "fail('message', 7, 'x')" in note
    assert "task " in note
    note = "\n".join(error_of(pool.options(name="nightly").submit(tasks.fail)).__notes__)
    assert "nightly" in note


def test_failure_note_is_short_and_never_fails(pool: WorkStealingExecutor) -> None:
    """Arguments that are huge or cannot be shown do not spoil the error."""
    for argument in (faults.ReprIsLong(), faults.ReprRaises(), "x" * 1_000_000, list(range(10**5))):
        error = error_of(pool.submit(tasks.fail, "wanted", argument))
        assert type(error) is ValueError
        assert len("\n".join(error.__notes__)) < 1000


def test_failure_is_an_object_of_its_own_for_each_future(pool: WorkStealingExecutor) -> None:
    """Tracebacks and contexts of several readers do not mix."""
    futures = [pool.submit(tasks.fail, "same") for _ in range(20)]
    errors = [error_of(future) for future in futures]
    assert len({id(error) for error in errors}) == 20
    assert all(error is future.exception() for error, future in zip(errors, futures, strict=True))


def test_failure_may_be_raised_many_times(pool: WorkStealingExecutor) -> None:
    """Its traceback does not grow with each `result()`, its notes neither."""
    future = pool.submit(tasks.fail)
    depths, notes = set(), set()
    for _ in range(5):
        try:
            future.result()
        except ValueError as error:
            depths.add(len(traceback.extract_tb(error.__traceback__)))
            notes.add(len(error.__notes__))
    assert len(depths) == 1
    assert len(notes) == 1


def test_failure_reaches_every_reader(pool: WorkStealingExecutor) -> None:
    """Eight threads that wait for one future all get its error."""
    future = pool.submit(tasks.fail)

    def read(_n: int) -> str:
        with pytest.raises(ValueError, match="wanted") as caught:
            future.result(HANG_S)
        return str(caught.value)

    with cf.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(8))) == ["wanted"] * 8


def test_failure_leaves_the_worker_as_it_is(pool: WorkStealingExecutor) -> None:
    """Ordinary errors end no process."""
    before = [worker.pid for worker in pool.stats().workers]
    futures = [pool.submit(tasks.fail_odd, n) for n in range(400)]
    assert sum(future.exception() is not None for future in futures) == 200
    assert [worker.pid for worker in pool.stats().workers] == before


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (SystemExit, (0,)),
        (SystemExit, (3,)),
        (SystemExit, ("a message",)),
        (KeyboardInterrupt, ()),
        (GeneratorExit, ()),
        (BaseException, ("base",)),
        (StopIteration, (7,)),
        (StopAsyncIteration, ()),
        (AssertionError, ("no",)),
        (OSError, (2, "No such file", "name")),
        (UnicodeDecodeError, ("utf-8", b"x", 0, 1, "why")),
        (MemoryError, ()),
        (RecursionError, ("deep",)),
        (TimeoutError, ("own",)),
        (cf.CancelledError, ()),
        (cf.BrokenExecutor, ("own",)),
        (ImportError, ("none",)),
    ],
)
def test_failure_keeps_its_type_and_arguments(
    default_pool: WorkStealingExecutor, kind: type[BaseException], args: tuple[Any, ...]
) -> None:
    """Whatever a task raises is what the future holds; the worker lives on."""
    before = [worker.pid for worker in default_pool.stats().workers]
    future = default_pool.submit(faults.raise_kind, kind, *args)
    error = error_of(future)
    assert type(error) is type(kind(*args))
    assert error.args == kind(*args).args
    assert str(error) == str(kind(*args))
    assert future.done()
    assert not future.cancelled()
    assert [worker.pid for worker in default_pool.stats().workers] == before


def test_sys_exit_is_the_tasks_own_error(pool: WorkStealingExecutor) -> None:
    """`sys.exit()` in a task ends neither the worker nor the script, and keeps its code."""
    for code in (None, 0, 5, "bye"):
        with pytest.raises(SystemExit) as caught:
            pool.submit(tasks.exit_with, code).result()
        assert caught.value.code == code


def test_exception_groups_keep_their_members(pool: WorkStealingExecutor) -> None:
    """`except*` works on what comes back."""
    group = ExceptionGroup("several", [ValueError("a"), KeyError("b"), OSError(2, "c")])
    error = error_of(pool.submit(faults.raise_, group))
    assert isinstance(error, ExceptionGroup)
    assert [type(one) for one in error.exceptions] == [ValueError, KeyError, FileNotFoundError]
    mixed = BaseExceptionGroup("base", [KeyboardInterrupt(), ValueError("x")])
    error = error_of(pool.submit(faults.raise_, mixed))
    assert type(error) is BaseExceptionGroup
    assert [type(one) for one in error.exceptions] == [KeyboardInterrupt, ValueError]


def test_notes_of_the_task_are_kept(pool: WorkStealingExecutor) -> None:
    """`add_note` in the worker, and attributes of the exception."""

    def fails() -> None:
        error = ValueError("with more")
        error.add_note("said in the worker")
        error.code = 17  # type: ignore[attr-defined]
        raise error

    error: Any = error_of(pool.submit(fails))
    assert error.__notes__[0] == "said in the worker"
    assert error.code == 17


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (faults.NeedsTwo, "NeedsTwo"),
        (faults.HoldsALock, "HoldsALock"),
        (faults.ReduceRaises, "ReduceRaises"),
        (faults.ReduceExits, "ReduceExits"),
    ],
)
def test_exception_that_does_not_survive_gets_a_stand_in(
    default_pool: WorkStealingExecutor, error: type[Exception], name: str
) -> None:
    """RemoteError names the class and the text, and has the remote traceback."""
    args = (1, 2) if error is faults.NeedsTwo else ("text",)
    found = error_of(default_pool.submit(faults.raise_kind, error, *args))
    assert isinstance(found, RemoteError)
    assert found.class_name.endswith(name)
    assert name in str(found)
    assert "raise_kind" in str(found.__cause__)
    if error is faults.NeedsTwo:
        assert found.message == "needs 1 and 2"
    assert default_pool.submit(tasks.square, 3).result() == 9


def test_exception_that_cannot_be_shown_is_still_an_error(pool: WorkStealingExecutor) -> None:
    """Its `__str__` raises; its type arrives."""
    error = error_of(pool.submit(faults.raise_kind, faults.StrRaises))
    assert isinstance(error, faults.StrRaises | RemoteError)
    assert pool.submit(tasks.square, 3).result() == 9


def test_exception_with_a_large_payload_arrives(pool: WorkStealingExecutor) -> None:
    """Errors are not limited to what fits into a ring."""
    for size in (1000, 100_000, 5_000_000):
        error = error_of(pool.submit(faults.raise_kind, ValueError, "x" * size))
        assert isinstance(error, Exception)
        if size <= 100_000:
            assert error.args == ("x" * size,)
    assert pool.submit(tasks.square, 3).result() == 9


def test_recursion_without_end_is_an_error_of_the_task(pool: WorkStealingExecutor) -> None:
    """The worker survives a RecursionError."""
    before = [worker.pid for worker in pool.stats().workers]
    assert type(error_of(pool.submit(faults.go_off, "recurse"))) is RecursionError
    assert [worker.pid for worker in pool.stats().workers] == before


def test_failure_that_nobody_reads_is_logged_once(
    pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """When the future is dropped: one record with the task's traceback."""
    future = pool.submit(tasks.fail, "unseen")
    cf.wait([future], HANG_S)
    assert caplog.records == []
    del future
    # Whoever has read the result may have the future in its hands for a moment yet.
    wait_until(lambda: gc.collect() >= 0 and caplog.records, "the log record")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.name == "mpsched"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "unseen"
    assert "in fail" in "".join(traceback.format_exception(record.exc_info[1]))


@pytest.mark.parametrize("read", ["result", "exception", "callback"])
def test_failure_that_was_read_is_not_logged(
    default_pool: WorkStealingExecutor, caplog: pytest.LogCaptureFixture, read: str
) -> None:
    """Whoever asked has seen it, in a callback too."""
    future = default_pool.submit(tasks.fail, "seen")
    if read == "callback":
        with cf.ThreadPoolExecutor(1):
            done: list[Any] = []
            future.add_done_callback(lambda one: done.append(one.exception()))
            cf.wait([future], HANG_S)
            wait_until(lambda: done, "the callback")
    elif read == "exception":
        assert error_of(future) is not None
    else:
        with pytest.raises(ValueError, match="seen"):
            future.result()
    gone = weakref.ref(future)
    del future
    wait_until(lambda: gc.collect() >= 0 and gone() is None, "the end of the future")
    assert caplog.records == []


def test_cancelled_tasks_are_no_unread_failures(
    pool: WorkStealingExecutor, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is logged for what was never run."""
    held = [pool.submit(gate.hold) for _ in range(2)]
    gate.wait_for(2)
    futures = [pool.submit(tasks.fail) for _ in range(20)]
    assert all(future.cancel() for future in futures)
    gate.open()
    cf.wait(held, HANG_S)
    gone = [weakref.ref(future) for future in futures]
    del futures
    wait_until(lambda: gc.collect() >= 0 and not any(one() for one in gone), "the futures' end")
    assert caplog.records == []


def test_failure_keeps_nothing_of_the_parent_alive(pool: WorkStealingExecutor) -> None:
    """No cycle from the exception to the future: both go when they are dropped."""
    gc.collect()
    gc.disable()
    try:
        future = pool.submit(faults.raise_kind, faults.Plain, "wanted")
        with pytest.raises(faults.Plain, match="wanted") as caught:
            future.result()
        error = weakref.ref(caught.value)
        seen = weakref.ref(future)
        del caught, future
        # Without the collector. (Whoever has brought the result may still have it in its hands.)
        wait_until(lambda: seen() is None and error() is None, "the end of both")
    finally:
        gc.enable()


def test_result_is_freed_with_its_future(pool: WorkStealingExecutor) -> None:
    """The pool keeps no result that nobody can ask for."""
    future = pool.submit(tasks.Base, 5)
    value = weakref.ref(future.result())
    seen = weakref.ref(future)
    del future
    wait_until(lambda: seen() is None and value() is None, "the end of both")


def test_argument_is_freed_at_the_end_of_its_task(pool: WorkStealingExecutor) -> None:
    """A future that is kept does not keep what was passed."""
    argument = tasks.Base(5)
    seen = weakref.ref(argument)
    future = pool.submit(tasks.nothing, argument)
    del argument
    future.result()
    wait_until(lambda: gc.collect() >= 0 and seen() is None, "the end of the argument")
    assert future.result() is None
