"""Items in, outcomes out, with an executor that does as the test says."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import errors
from mpsched.cli import engine as engines, task
from mpsched.cli.args import parse_map
from mpsched.cli.engine import Outcome, Pool, PoolBroken
from mpsched.cli.func import FuncRef
from mpsched.cli.inputs import Inputs, Item
from mpsched.cli.plan import Plan
from mpsched.cli.problems import Broken
from mpsched.cli.reduce import Fold
from tests.support.fake_executor import FakeExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAN = Plan(func=FuncRef("operator:not_", "operator", None, "not_"))


@pytest.fixture
def fake() -> Iterator[FakeExecutor]:
    """An executor; this process stands in for its worker."""
    yield FakeExecutor()
    task.forget()


def made(fake: FakeExecutor, *words: str, plan: Plan = PLAN) -> tuple[Pool, Inputs]:
    options = parse_map(["operator:not_", *words])
    inputs = Inputs(options, as_bytes=False, stamps=False, note=pytest.fail)
    return Pool(plan, options, fake.made), inputs


def collect(pool: Pool, inputs: Inputs) -> list[Outcome]:
    outcomes = [one for batch in pool.outcomes(inputs) for one in batch]
    pool.close()
    inputs.close()
    return outcomes


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_engine_gives_an_outcome_for_each_item(fake: FakeExecutor) -> None:
    """Each item ends once; the options reach the executor."""
    pool, inputs = made(fake, "a", "", "b", "--timeout", "3", "--retries", "2")
    outcomes = collect(pool, inputs)
    assert [(one.of.i, one.kind, one.fragment) for one in outcomes if isinstance(one.of, Item)] == [
        (0, "ok", b"false"),
        (1, "ok", b"true"),
        (2, "ok", b"false"),
    ]
    assert fake.views[0]["timeout"] == 3
    assert fake.views[0]["retries"] == 2
    assert fake.views[0]["retry_on"] == (errors.WorkerDied, errors.TaskTimeout)


def test_engine_opens_a_bounded_number_of_items(
    fake: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many inputs there are, no more than the window are open."""
    monkeypatch.setattr(engines, "WINDOW", 10)
    fake.at_once = False
    pool, inputs = made(fake, *map(str, range(100)))
    seen = 0
    for batch in pool.outcomes(inputs):
        seen += len(batch)
        for _ in range(len(fake.held)):
            fake.run()
    assert seen == 100
    assert fake.most_open <= 10
    pool.close()
    inputs.close()


def test_engine_bounds_the_bytes_too(fake: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large payloads fill the window sooner; one that is larger than it goes alone."""
    monkeypatch.setattr(engines, "WINDOW_BYTES", 100)
    fake.at_once = False
    pool, inputs = made(fake, *["x" * 60] * 4, "y" * 500, *["x" * 60] * 4)
    seen = 0
    for batch in pool.outcomes(inputs):
        seen += len(batch)
        if fake.held:
            fake.run()
    assert seen == 9
    assert fake.most_open == 1
    pool.close()
    inputs.close()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errors.WorkerDied("gone", signal="SIGSEGV"), "crash"),
        (errors.WorkerDied("gone", cause="memory"), "memory"),
        (errors.TaskTimeout("slow", seconds=3.0), "timeout"),
        (errors.EncodeError("no"), "load"),
        (errors.DecodeError("no"), "load"),
        (MemoryError("none left"), "memory"),
    ],
)
def test_engine_says_why_no_worker_could_answer(
    fake: FakeExecutor, error: BaseException, why: str
) -> None:
    """What the pool reports about a call becomes an error with its reason."""
    fake.at_once = False
    pool, inputs = made(fake, "a")
    outcomes: list[Outcome] = []
    for batch in pool.outcomes(inputs):
        outcomes += batch
        if fake.held:
            fake.fail(error)
    pool.close()
    inputs.close()
    assert [one.kind for one in outcomes] == ["error"]
    assert f'"why": "{why}"'.encode() in outcomes[0].fragment
    assert f'"type": "{type(error).__name__}"'.encode() in outcomes[0].fragment


def test_engine_failed_pool_breaks_the_run(fake: FakeExecutor) -> None:
    """PoolFailed is not the failure of an input."""
    fake.at_once = False
    pool, inputs = made(fake, "a", "b")
    stream = pool.outcomes(inputs)
    assert next(stream) == []
    wait_until(lambda: len(fake.held) == 2)
    fake.fail(errors.PoolFailed("the initializer raised"))
    with pytest.raises(PoolBroken, match="the initializer raised"):
        list(stream)
    pool.close()
    inputs.close()


def test_engine_problem_of_the_inputs_reaches_the_main_thread(
    fake: FakeExecutor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that cannot be read any more is raised where outcomes are read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").write_text("1\n")
    (tmp_path / "two").write_text("2\n")
    pool, inputs = made(fake, "--lines", "one", "two")
    (tmp_path / "two").unlink()
    with pytest.raises(Broken, match="two cannot be read"):
        for _ in pool.outcomes(inputs):
            pass
    pool.close()
    inputs.close()


def test_engine_drain_starts_no_more(fake: FakeExecutor) -> None:
    """After drain what is held is cancelled without outcome, and the run ends."""
    fake.at_once = False
    pool, inputs = made(fake, "a", "b", "c")
    outcomes: list[Outcome] = []
    drained = False
    for batch in pool.outcomes(inputs):
        outcomes += batch
        if not drained and len(fake.held) == 3:
            fake.run()
            pool.drain()
            drained = True
    pool.close()
    inputs.close()
    assert [one.of.text for one in outcomes if isinstance(one.of, Item)] == ["a"]


def test_engine_makes_no_fold_while_stopping(fake: FakeExecutor) -> None:
    """A value that comes after drain is not folded: the pool takes nothing any more."""
    fake.at_once = False
    pool, inputs = made(fake, "a", "b")
    stream = pool.outcomes(inputs)
    assert next(stream) == []
    wait_until(lambda: len(fake.held) == 2)
    pool.drain()
    pool.fold(Fold(1, 0, (b"", b""), last=False))
    assert [one for batch in stream for one in batch] == []
    pool.close()
    inputs.close()


def test_engine_abandon_gives_what_has_ended_meanwhile(fake: FakeExecutor) -> None:
    """Abandon ends the pool within the grace, and returns outcomes that nobody has read yet."""
    fake.at_once = False
    pool, inputs = made(fake, "a", "b", "c")
    for batch in pool.outcomes(inputs):
        assert not batch
        if len(fake.held) == 3:
            fake.run()
            break
    outcomes = pool.abandon()
    assert [one.of.text for one in outcomes if isinstance(one.of, Item)] == ["a"]
    assert fake.closed == {"timeout": engines.GRACE, "cancel_pending": True, "kill_after": 0.0}
    pool.close()
    inputs.close()


def test_engine_abandon_lets_a_full_window_go(
    fake: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for room ends with the run."""
    monkeypatch.setattr(engines, "WINDOW", 2)
    fake.at_once = False
    pool, inputs = made(fake, *map(str, range(10)))
    for _ in pool.outcomes(inputs):
        if len(fake.held) == 2:
            break
    pool.abandon()
    pool.close()
    inputs.close()
    assert "mpsched-feeder" not in [thread.name for thread in threading.enumerate()]


def test_engine_wake_gives_an_empty_batch(
    fake: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's wake ends the wait at once, long before the tick."""
    monkeypatch.setattr(engines, "_TICK", 60.0)
    fake.at_once = False
    pool, inputs = made(fake, "a")
    stream = pool.outcomes(inputs)
    pool.wake()
    assert next(stream) == []
    fake_ready = len(fake.held)
    wait_until(lambda: fake_ready or fake.held)
    fake.run()
    assert [one.kind for batch in stream for one in batch] == ["ok"]
    pool.close()
    inputs.close()


def test_engine_folds_end_as_items_do(fake: FakeExecutor) -> None:
    """A fold's outcome is among the others, and the run waits for it."""
    import pickle

    plan = Plan(
        func=FuncRef("operator:not_", "operator", None, "not_"),
        reduce=FuncRef("operator:add", "operator", None, "add"),
    )
    pool, inputs = made(fake, "a", plan=plan)
    fold = Fold(1, 0, (pickle.dumps("x"), pickle.dumps("y")), last=True)
    outcomes: list[Outcome] = []
    for batch in pool.outcomes(inputs):
        if any(isinstance(one.of, Item) for one in batch):
            pool.fold(fold)
        outcomes += batch
    pool.close()
    inputs.close()
    assert [one.kind for one in outcomes] == ["value", "ok"]
    assert outcomes[1].fragment == b'"xy"'


def test_engine_totals_stay_when_the_pool_is_gone(fake: FakeExecutor) -> None:
    """The summary needs the counters after the workers have ended."""
    pool, inputs = made(fake, "a")
    collect(pool, inputs)
    assert pool.totals().steals == 3
    assert len(pool.loads()) == 2
