"""What fails at each place of a task's way, and in each manner: its own future, and nothing else."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import mpsched
from mpsched.errors import DecodeError, EncodeError, ResultEncodeError, WorkerDied
from tests.support import crash_calls as calls
from tests.support.pools import (
    DEADLINE_S,
    assert_full_width,
    kill,
    pids,
    pool,
    release,
    wait_for_holders,
)
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CRASHES = ["_exit 0", "_exit 3", f"signal {signal.SIGKILL:d}", "abort"]

Call = tuple["Callable[..., Any]", tuple[Any, ...]]


def cell(stage: str, how: str) -> Call:
    """Return the call that fails at `stage`."""
    if stage == "argument pickled":
        return calls.identity, (calls.OnPickle(how),)
    if stage == "argument unpickled":
        return calls.identity, (calls.OnUnpickle(how),)
    if stage == "run":
        return calls.act, (how,)
    if stage == "result pickled":
        return calls.make, (calls.OnPickle, how)
    assert stage == "result unpickled"
    return calls.make, (calls.OnUnpickle, how)


EXPECTED: dict[str, dict[str, type[BaseException]]] = {
    "argument pickled": {"raise": EncodeError, "exit": EncodeError},
    "argument unpickled": {"raise": DecodeError, "exit": DecodeError},
    "run": {"raise": ValueError, "exit": SystemExit},
    "result pickled": {"raise": ResultEncodeError, "exit": ResultEncodeError},
    "result unpickled": {"raise": ResultEncodeError, "exit": ResultEncodeError},
}
for _stage, _how in EXPECTED.items():
    if _stage != "argument pickled":  # that is the caller's own process
        _how |= dict.fromkeys(CRASHES, WorkerDied)

CELLS = [(stage, how) for stage, row in EXPECTED.items() for how in row]


def test_each_failure_is_its_own_futures_alone(start_method: str, tmp_path: Path) -> None:
    """{raise, exit, crash} x {argument, run, result}: the neighbours and the pool go on."""
    with pool(2, start_method) as ex:
        futures = []
        neighbours: list[mpsched.Future[Any]] = []
        for stage, how in CELLS:
            function, args = cell(stage, how)
            futures.append(ex.submit(function, *args))
            for _ in range(3):
                neighbours.append(ex.submit(calls.identity, len(neighbours)))
        found = {
            at: type(future.exception(DEADLINE_S))
            for at, future in zip(CELLS, futures, strict=True)
        }
        assert found == {(stage, how): EXPECTED[stage][how] for stage, how in CELLS}
        # A neighbour is claimed and not started while a worker dies, or it runs somewhere else.
        values = [future.result(DEADLINE_S) for future in neighbours]
        assert values == list(range(len(neighbours)))
        assert_full_width(ex, tmp_path)


@pytest.mark.parametrize("stage", EXPECTED)
def test_each_failure_in_a_map_is_its_own_items_alone(stage: str) -> None:
    """The same among the items of a map: each other item has its value."""
    with pool(2) as ex:
        for how, kind in EXPECTED[stage].items():
            items: list[Any] = [(calls.identity, (number,)) for number in range(12)]
            items[5] = cell(stage, how)
            # One by one: what a dead worker had finished less than 1 ms ago would go with it.
            results = list(ex.starmap(calls.call, items, chunksize=1, return_exceptions=True))
            assert type(results.pop(5)) is kind, how
            assert results == [number for number in range(12) if number != 5], how


def joined_elsewhere(stage: str, how: str) -> bool:
    """Give a child away and join it; False if nobody took it, so that it ran here."""
    function, args = cell(stage, how)
    child = mpsched.spawn(function, *args)
    value = child.join()
    # What fails on its way has not been on any.
    return not isinstance(value, calls.OnPickle | calls.OnUnpickle)


def test_each_failure_of_a_stolen_child_is_its_roots_alone(
    start_method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same on a child's way to another worker and back: its join tells, and the pool goes on."""
    monkeypatch.setenv("MPSCHED_DEBUG", "steal")
    # With what the tasks import: most of the time goes by in workers that begin anew.
    with pool(2, start_method, preload=[calls.__name__]) as ex:
        for stage, how in CELLS:
            if how in CRASHES[::2]:
                continue  # in the roots' matrix; here two ways to die are enough
            if stage == "argument pickled":
                # Nothing can be given away: the child runs at home, where nothing is pickled.
                assert not ex.submit(joined_elsewhere, stage, how).result(DEADLINE_S)
                continue
            error: BaseException | None = None
            until = time.monotonic() + DEADLINE_S
            while error is None:
                assert time.monotonic() < until, f"nobody takes the child: {stage}, {how}"
                future = ex.submit(joined_elsewhere, stage, how)
                error = future.exception(DEADLINE_S)
                # Else the other worker was just being replaced.
                assert error is not None or not future.result()
            assert type(error) is EXPECTED[stage][how], (stage, how)
        for how in CRASHES[1::2]:
            # That is home's own process, and with it the root's.
            error = ex.submit(joined_elsewhere, "argument pickled", how).exception(DEADLINE_S)
            assert type(error) is WorkerDied, how
        assert_full_width(ex, tmp_path)


def test_causes_are_told() -> None:
    """Each error names what was raised where, in a text that a user can act on."""
    with pool(1) as ex:
        encode = ex.submit(*flat(cell("argument pickled", "raise"))).exception(DEADLINE_S)
        assert isinstance(encode, EncodeError)
        assert isinstance(encode.__cause__, ValueError)
        decode = ex.submit(*flat(cell("argument unpickled", "raise"))).exception(DEADLINE_S)
        assert isinstance(decode, DecodeError)
        assert "a trap" in _texts(decode)
        result = ex.submit(*flat(cell("result unpickled", "raise"))).exception(DEADLINE_S)
        assert isinstance(result, ResultEncodeError)
        assert "a trap" in _texts(result)
        own = ex.submit(*flat(cell("run", "exit"))).exception(DEADLINE_S)
        assert isinstance(own, SystemExit)
        assert own.code == 3


def flat(call: Call) -> tuple[Any, ...]:
    return (call[0], *call[1])


def _texts(error: BaseException | None) -> str:
    text = ""
    while error is not None:
        text += f"{error}\n" + "\n".join(getattr(error, "__notes__", []))
        error = error.__cause__
    return text


def test_argument_whose_unpickling_kills_is_the_poison_alone(tmp_path: Path) -> None:
    """As out of `os.kill` in `__setstate__`; twenty ordinary tasks around it complete."""
    with pool(2) as ex:
        before = [ex.submit(calls.nap, 0.001) for _ in range(10)]
        poison = ex.submit(calls.identity, calls.OnUnpickle(f"signal {signal.SIGKILL:d}"))
        after = [ex.submit(calls.nap, 0.001) for _ in range(10)]
        error = poison.exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.signal == "SIGKILL"
        assert [future.result(DEADLINE_S) for future in before + after] == [0.001] * 20
        assert_full_width(ex, tmp_path)


@pytest.mark.parametrize(
    ("how", "status"), [("_exit 7", 7), (f"signal {signal.SIGKILL:d}", -signal.SIGKILL)]
)
def test_crash_while_the_caller_pickles_leaves_no_process(
    start_method: str, how: str, status: int
) -> None:
    """That ends the program itself; its workers go with it."""
    result = run_script(
        """
        import sys
        import mpsched
        from tests.support import crash_calls as calls

        ex = mpsched.WorkStealingExecutor(2, sys.argv[1])
        ex.submit(calls.pid).result()
        ex.submit(calls.identity, calls.OnPickle(sys.argv[2]))
        """,
        args=[start_method, how],
    )
    assert result.rc == status


# --- large values on their way ----------------------------------------------------------------------

LARGE = 32 << 20


def test_kill_while_a_large_argument_is_read(tmp_path: Path) -> None:
    """The worker dies with the argument in its hands; the next ones get theirs whole."""
    with pool(2) as ex:
        data = bytes(LARGE)
        slow = ex.submit(calls.size_of, calls.Slow(str(tmp_path), "slow", data))
        waiting = [ex.submit(calls.size_of, data) for _ in range(10)]
        kill(wait_for_holders(tmp_path, "slow")["slow"])
        assert isinstance(slow.exception(DEADLINE_S), WorkerDied)
        assert [future.result(DEADLINE_S) for future in waiting] == [LARGE] * 10


def test_kill_while_large_values_travel_resolves_all(start_method: str, tmp_path: Path) -> None:
    """Ten arguments and ten results of 32 MB, and kills among them: each future is right or dead."""
    with pool(2, start_method) as ex:
        futures: list[mpsched.Future[Any]] = []
        for number in range(10):
            futures.append(ex.submit(calls.size_of, bytes(LARGE + number)))
            futures.append(ex.submit(calls.large, LARGE + number))
        for at in (1, 5, 9, 13):
            futures[at].exception(DEADLINE_S)
            kill(pids(ex)[0])
            kill(pids(ex)[1])
        for number, future in enumerate(futures):
            error = future.exception(DEADLINE_S)
            if error is not None:
                assert isinstance(error, WorkerDied)
                continue
            value = future.result()
            size = value if number % 2 == 0 else len(value)
            assert size == LARGE + number // 2
        assert_full_width(ex, tmp_path)


def test_large_results_that_were_published_survive_their_worker(tmp_path: Path) -> None:
    """A result's memory belongs to the parent once its record is there."""
    with pool(1) as ex:
        results = [ex.submit(calls.large, 1 << 20) for _ in range(5)]
        victim = ex.submit(calls.hold, str(tmp_path), "victim")
        kill(wait_for_holders(tmp_path, "victim")["victim"])
        assert isinstance(victim.exception(DEADLINE_S), WorkerDied)
        assert [len(future.result(DEADLINE_S)) for future in results] == [1 << 20] * 5


def test_retries_send_a_large_argument_again(tmp_path: Path) -> None:
    """Every attempt maps the same memory; a task may change its copy."""
    with pool(1) as ex:
        data = bytearray(b"a" * LARGE)
        log = tmp_path / "log"
        future = ex.options(retries=1).submit(calls.change_and_die_once, data, str(log))
        assert future.result(DEADLINE_S) == b"a" * 10
        assert data[:1] == b"a"


# --- maps -------------------------------------------------------------------------------------------


def killing_map(ex: mpsched.WorkStealingExecutor, **options: Any) -> list[Any]:
    items = [(number, 3, 0.05) for number in range(8)]
    return list(ex.starmap(calls.die_at, items, return_exceptions=True, **options))


@pytest.mark.parametrize("chunksize", [None, 1])
def test_item_that_kills_its_worker_fails_alone(start_method: str, chunksize: int | None) -> None:
    """Seven values and one error that names signal 9; the next task works."""
    with pool(2, start_method) as ex:
        results = killing_map(ex, chunksize=chunksize)
        error = results.pop(3)
        assert isinstance(error, WorkerDied)
        assert error.signal == "SIGKILL"
        assert "item 3" in str(error)
        assert results == [0, 1, 2, 4, 5, 6, 7]
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_death_inside_of_a_chunk_keeps_its_neighbours() -> None:
    """Items over a millisecond are delivered one by one: the finished ones of the chunk count."""
    with pool(1) as ex:
        items = [(number, 5, 0.01) for number in range(12)]
        results = list(ex.starmap(calls.die_at, items, chunksize=12, return_exceptions=True))
        assert isinstance(results.pop(5), WorkerDied)
        assert results == [number for number in range(12) if number != 5]


def test_death_among_tiny_items_fails_no_more_than_a_block(tmp_path: Path) -> None:
    """Items that take next to nothing: those that were started together fail together."""
    with pool(2) as ex:
        items = [(number, 5_000, 0.0) for number in range(20_000)]
        results = list(ex.starmap(calls.die_at_plain, items, return_exceptions=True))
        failed = [number for number, value in enumerate(results) if value != number]
        assert 5_000 in failed
        assert all(isinstance(results[number], WorkerDied) for number in failed)
        # Finished but not delivered: a millisecond of such items at most.
        assert len(failed) <= 5_000
        assert failed == list(range(failed[0], failed[-1] + 1))
        assert_full_width(ex, tmp_path)


def test_map_without_return_exceptions_raises_the_death_in_its_place() -> None:
    """Items before it are given first; the map is over then, the pool is not."""
    with pool(2) as ex:
        results = ex.starmap(calls.die_at, [(number, 3, 0.01) for number in range(8)])
        assert [next(results), next(results), next(results)] == [0, 1, 2]
        with pytest.raises(WorkerDied):
            next(results)
        with pytest.raises(StopIteration):
            next(results)
        assert ex.submit(calls.identity, 1).result(DEADLINE_S) == 1


def test_map_survives_kills_from_outside(tmp_path: Path) -> None:
    """Killed between and inside of its items, a map gives each value once or a death."""
    with pool(3) as ex:
        items = [(str(tmp_path), str(number)) for number in range(9)]
        results = ex.starmap(calls.hold, items, chunksize=3, return_exceptions=True)
        victims = wait_for_holders(tmp_path, "0", "3", "6")
        kill(victims["0"])
        kill(victims["6"])
        release(tmp_path, *map(str, range(9)))
        values: list[Any] = list(results)
        assert isinstance(values[0], WorkerDied)
        assert isinstance(values[6], WorkerDied)
        assert [value for at, value in enumerate(values) if at not in {0, 6}] == list("1234578")


def test_function_that_kills_whoever_loads_it_fails_its_map_only(tmp_path: Path) -> None:
    """After a few deaths without an item started, all items fail; there is no endless row of deaths."""
    with pool(2) as ex:
        results = list(ex.map(calls.Poison(), range(1000), return_exceptions=True))
        assert {type(value) for value in results} == {WorkerDied}
        assert len(results) == 1000
        assert ex.stats().deaths < 20
        assert_full_width(ex, tmp_path)
        error = ex.submit(calls.Poison(), 1).exception(DEADLINE_S)
        assert isinstance(error, WorkerDied)
        assert error.exitcode == 3
