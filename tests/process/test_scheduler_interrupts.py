"""KeyboardInterrupt at each line of the scheduler's own code: the book stays whole, nothing is lost."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from mpsched import Due, Scheduler
from mpsched.errors import StaleVersion
from mpsched.testing import ManualClock
from tests.support import crash_calls as calls
from tests.support.interrupting import SCHEDULER, Interruption
from tests.support.pools import DEADLINE_S, wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator


class Scene:
    """A scheduler, and the handles that its user has got."""

    def __init__(self, scheduler: Scheduler, clock: ManualClock | None = None) -> None:
        self.s = scheduler
        self.clock = clock
        self.handles: list[Any] = []
        self.taken: list[Due] = []

    def schedule(self, task_id: int, after: float = 0.0, **options: Any) -> None:
        options.setdefault("fn", calls.identity)
        self.handles.append(self.s.schedule(task_id, after=after, args=(task_id,), **options))

    def take(self) -> None:
        found = self.s.next()
        if isinstance(found, Due):
            self.taken.append(found)

    def end_all(self) -> None:
        for due in self.taken:
            with contextlib.suppress(StaleVersion):  # an interrupted one may have ended it
                self.s.complete(due)
        self.taken.clear()

    def check(self) -> None:
        """Assert that the scheduler is as if nothing had happened."""
        desk = self.s._desk
        assert not desk.lock._is_owned()  # type: ignore[attr-defined]
        with desk.lock:
            for heap in (desk.workers, desk.inside):
                heap.check_invariants()
        if self.clock is not None:
            self.end_all()
            self.clock.advance(1000.0)
            while isinstance(due := self.s.next(), Due):
                self.s.complete(due)
        wait_until(desk.idle, "nothing left")
        for handle in self.handles:
            assert handle.done(), (handle, vars(handle))
        with desk.lock:
            counts = desk.deadlines, desk.handed, desk.in_threads, len(desk.taken)
            assert counts == (0, 0, 0, 0)
            assert (desk.making, desk.way) == (0, [])
            for heap in (desk.workers, desk.inside):
                heap.check_invariants()
                assert (len(heap), heap.metrics().running, heap.metrics().claimed) == (0, 0, 0)
        self.handles.clear()


def _fill(scene: Scene) -> None:
    scene.schedule(1)
    scene.schedule(2, 50.0, deadline=scene.s.now() + 60.0)
    scene.schedule(3, 50.0)


def _take(scene: Scene) -> None:
    _fill(scene)
    scene.take()


def _schedule(scene: Scene) -> None:
    scene.schedule(1, priority=3)
    scene.schedule(4, 1.0, deadline=scene.s.now() + 2.0)


def _replace(scene: Scene) -> None:
    scene.schedule(1)
    scene.schedule(2, 2.0)


def _replace_and_wait(scene: Scene) -> None:
    scene.schedule(1, if_running="wait")


def _replace_and_ask(scene: Scene) -> None:
    scene.schedule(1, if_running="cancel")


def _cancel(scene: Scene) -> None:
    for task_id in range(1, 4):
        scene.s.cancel(task_id)


def _move(scene: Scene) -> None:
    scene.s.reschedule(2, after=1.0)
    scene.s.reschedule(3, priority=7)


def _next(scene: Scene) -> None:
    scene.take()
    scene.take()


def _complete(scene: Scene) -> None:
    scene.end_all()


def _fail(scene: Scene) -> None:
    for due in scene.taken:
        scene.s.fail(due, ValueError("no"))


def _take_retried(scene: Scene) -> None:
    scene.schedule(1, retries=1, retry_on=(ValueError,), backoff=1.0)
    scene.take()


def _look(scene: Scene) -> None:
    scene.s.status(1)
    scene.s.metrics()


def _run(scene: Scene) -> None:
    assert scene.clock is not None
    scene.clock.advance(70.0)
    scene.s.run_due()


def _both(scene: Scene) -> None:
    """One in a thread, one in a worker, each replaced by the other kind."""
    scene.schedule(1, where="thread")
    scene.schedule(1)
    scene.schedule(2, 0.01)
    scene.schedule(2, where="thread")
    scene.s.cancel(2)


def _due_now(scene: Scene) -> None:
    for task_id in range(4):
        scene.schedule(task_id, timeout=600.0)


def _cancel_dispatched(scene: Scene) -> None:
    for task_id in range(4):
        scene.s.cancel(task_id)


def _move_dispatched(scene: Scene) -> None:
    for task_id in range(4):
        scene.s.reschedule(task_id, after=0.01)


def _fill_the_window(scene: Scene) -> None:
    """A job that is not over soon, and two behind it; windows as they are with such jobs."""
    pool = scene.s._desk.pool
    assert pool is not None
    pool.dispatcher.window = lambda: 2  # type: ignore[method-assign]
    scene.handles.append(scene.s.schedule("nap", after=-10.0, fn=calls.nap, args=(0.03,)))
    wait_until(lambda: scene.handles[-1].running() or scene.handles[-1].done(), "the nap")
    scene.schedule(1, -5.0)
    scene.schedule(2, -5.0)


def _make_way(scene: Scene) -> None:
    scene.schedule(3, -8.0)
    scene.s.reschedule(2, after=-9.0)


PULLED: dict[str, tuple[Any, Any]] = {
    "schedule": (_fill, _schedule),
    "replace": (_fill, _replace),
    "replace-taken": (_take, _replace),
    "replace-and-wait": (_take, _replace_and_wait),
    "replace-and-ask": (_take, _replace_and_ask),
    "cancel": (_fill, _cancel),
    "cancel-taken": (_take, _cancel),
    "move": (_fill, _move),
    "next": (_fill, _next),
    "complete": (_take, _complete),
    "fail": (_take, _fail),
    "fail-and-retry": (_take_retried, _fail),
    "look": (_take, _look),
    "run": (_fill, _run),
}
PUSHED: dict[str, tuple[Any, Any]] = {
    "both": (None, _both),
    "due-now": (None, _due_now),
    "replace-dispatched": (_due_now, _due_now),
    "cancel-dispatched": (_due_now, _cancel_dispatched),
    "move-dispatched": (_due_now, _move_dispatched),
    "make-way": (_fill_the_window, _make_way),
}


def interrupt(scene: Scene, scenario: tuple[Any, Any], at: int) -> Interruption:
    """Interrupt a scenario at one line, and check everything."""
    before, action = scenario
    if before is not None:
        before(scene)
    interruption = Interruption(at, SCHEDULER)
    try:
        interruption.run(lambda: action(scene))
        scene.check()
    except BaseException as problem:
        problem.add_note(f"interrupted at line {at}: {interruption.where}")
        raise
    return interruption


@contextlib.contextmanager
def pulled() -> Iterator[Scene]:
    clock = ManualClock()
    scheduler = Scheduler(0, clock=clock, on_error=lambda _run, _error: None)
    yield Scene(scheduler, clock)
    assert scheduler.close().state == "closed"


@contextlib.contextmanager
def pushed() -> Iterator[Scene]:
    scheduler = Scheduler(1)
    try:
        assert scheduler.schedule(0, after=0, fn=calls.identity, args=(0,)).result(DEADLINE_S) == 0
        yield Scene(scheduler)
    finally:
        report = scheduler.close(timeout=DEADLINE_S, kill_after=1.0)
    assert report.state == "closed"
    assert report.killed == ()


def _points(scene: Scene, scenario: tuple[Any, Any]) -> int:
    most = interrupt(scene, scenario, -1).lines
    assert most > 10
    return most


@pytest.mark.parametrize("name", PULLED)
def test_interrupt_at_each_line_in_pull_mode_leaves_the_book_whole(name: str) -> None:
    """Whatever line it strikes, every version comes to its end and the registers are right."""
    with pulled() as scene:
        most = _points(scene, PULLED[name])
        assert {interrupt(scene, PULLED[name], at).where for at in range(1, most + 1)} != {None}


@pytest.mark.parametrize("name", PUSHED)
def test_interrupt_at_some_lines_leaves_the_book_whole(name: str, rng: random.Random) -> None:
    """With workers and threads; a sample of lines, the same as below."""
    with pushed() as scene:
        most = _points(scene, PUSHED[name])
        points = sorted({rng.randint(1, 8), *rng.sample(range(1, most + 1), min(24, most))})
        assert {interrupt(scene, PUSHED[name], at).where for at in points} != {None}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUSHED)
def test_interrupt_at_each_line_leaves_the_book_whole(name: str) -> None:
    """The same at every line."""
    with pushed() as scene:
        most = _points(scene, PUSHED[name])
        assert {interrupt(scene, PUSHED[name], at).where for at in range(1, most + 1)} != {None}
