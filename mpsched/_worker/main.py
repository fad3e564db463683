"""A worker's life: set up, initialise, find work and run it, leave. See README.md, "Main loop"."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from typing import TYPE_CHECKING, Final, NoReturn

from mpsched._shm import layout as lay
from mpsched._tasks import codec, failure, records as rec
from mpsched._worker import (
    awaiting,
    context,
    forked,
    frames,
    helper,
    idle,
    long,
    outcome,
    publish,
    signals,
)
from mpsched._worker.baseline import UNFIT, Baseline
from mpsched._worker.run import Runner
from mpsched._worker.worker import Worker

if TYPE_CHECKING:
    from mpsched._worker.boot import BootSpec
    from mpsched._worker.config import WorkerConfig

_BATCH: Final = 128
_NONE: Final = -1


def main(spec: BootSpec, index: int, incarnation: int) -> None:
    """Run worker `index` until the parent stops it; the process leaves afterwards."""
    config: WorkerConfig = pickle.loads(spec.config)
    worker = Worker(config, index, incarnation)
    context._enter(worker)  # noqa: SLF001 - the one place that may
    codec.enter_worker()
    words, block = worker.words, worker.block
    words[block + lay.B_INCARNATION] = incarnation
    # crash-point: worker.entered
    words[block + lay.B_STATE] = lay.AWAKE
    _continue_counters(worker)
    helper.start(worker)
    forked.watch(worker)
    long.enter(worker)
    awaiting.enter(worker)
    publish.enter(worker)
    signals.enter()
    if not _initialise(worker, config):
        _leave(worker, 1)
    with worker.write_lock:
        worker.results.write(os.getpid(), 0, rec.R_READY, 0)
    worker.ring_the_parent()
    # crash-point: worker.ready
    worker.baseline = baseline = Baseline(worker)
    try:
        frames.roomy(_loop, worker, baseline, Runner(worker, spec.parent_pid), config.max_tasks)
    except BaseException as problem:
        if worker.busy():
            raise  # with what it ran, of which nobody knows how far it came
        baseline.hush()
        baseline.unfit = baseline.unfit or (
            f"{type(problem).__name__} was raised between two tasks: {failure.short_text(problem)}"
        )
    if baseline.unfit:
        _say(f"mpsched: worker {index} makes room for a new one: {baseline.unfit}")
        _let_go(worker)
        os._exit(UNFIT)
    _leave(worker, 0)


def _continue_counters(worker: Worker) -> None:
    """Go on from what the dead one before counted, so that the pool's totals never go back."""
    words, block = worker.words, worker.block
    worker.executed = words[block + lay.B_EXECUTED]
    worker.items = words[block + lay.B_ITEMS]
    worker.busy_ns = words[block + lay.B_BUSY_NS]
    for stale in (
        *(lay.B_CLAIMED, lay.B_LEFT, lay.B_PROGRESS, lay.B_UNSENT),
        *(lay.B_FORKS, lay.B_RUN, lay.B_WAITS, lay.B_JOINING, lay.B_BLOCKED, lay.B_WANT),
    ):
        words[block + stale] = 0


def _initialise(worker: Worker, config: WorkerConfig) -> bool:
    if config.initializer is None:
        return True
    try:
        initializer = codec.loads_callable(config.initializer)
        initializer(*codec.decode(config.initargs))
    except BaseException as problem:
        data = failure.encode_exception(problem, task_id=0, note="the pool's initializer")
        with worker.write_lock:
            worker.results.write_payload(os.getpid(), 0, rec.R_INIT_ERROR, 0, data)
        worker.ring_the_parent()
        return False
    return True


def _loop(worker: Worker, baseline: Baseline, runner: Runner, max_tasks: int) -> None:
    local, inbox, run = worker.local, worker.inbox, runner.run
    words, block = worker.words, worker.block
    flush_ns = int(worker.settings.flush_s * 1e9)
    budget = max_tasks or -1
    spare = bool(words[block + lay.B_SPARE])
    fruitless = 0
    while True:
        try:
            handle = local.popleft()  # the start of a root
        except IndexError:
            handle = _NONE  # outside of this handler: it would be the context of each child's error
        if handle == _NONE:
            words[block + lay.B_CLAIMED] = 0
            found = worker.find_work()
            if not found:
                if worker.unflushed:
                    worker.ring_the_parent()
                if worker.stopping():
                    return
                fruitless += 1
                if fruitless == 1 and (came := idle.linger(worker)):
                    if came == idle.CAME:
                        continue
                    found = True
            if found:
                fruitless = 0
                if not local:  # another worker's child has run
                    worker.look(time.monotonic_ns())
                if spare and not local and worker.stopping():
                    break
                continue
            if fruitless > 1 and idle.park(worker):
                fruitless = 0 if idle.is_expected(worker) else 1
            if fruitless > 4:
                # Something is there that nobody gives us (a stopped process holds its lock).
                time.sleep(min(0.001, 0.00001 * 2 ** min(fruitless, 10)))
            continue
        now = run(handle)
        fruitless = 0
        worker.unflushed += 1
        if (
            (not local and not len(inbox))
            or worker.unflushed >= _BATCH
            or (now - worker.last_flush_ns >= flush_ns and now >= worker.patient_ns)
        ):
            worker.ring_the_parent()
            if now >= baseline.due_ns or not (local or len(inbox)):
                # After the ring: meanwhile the parent wakes up.
                baseline.look(now)
                if baseline.unfit:
                    break
        budget -= 1
        if not budget or (spare and worker.stopping()):
            break
    _retire(worker)


def _retire(worker: Worker) -> None:
    """Make room for a new process: give back what was claimed, and say that this is no death."""
    handles = []
    while worker.local:
        # One at a time: each goes to this thread or to the helper, never to both.
        with contextlib.suppress(IndexError):
            handles.append(worker.local.popleft())
    if handles:
        worker.give_back(handles)
    worker.ring_the_parent()
    # crash-point: worker.retiring
    worker.words[worker.block + lay.B_STATE] = lay.RETIRED


def _say(line: str) -> None:
    """Write a line to standard error, whatever a task has made of it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def _leave(worker: Worker, status: int) -> NoReturn:
    """Wait until nobody needs this process; `boot.run` ends it, with what tasks have left for that."""
    _let_go(worker)
    raise SystemExit(status)


def _let_go(worker: Worker) -> None:
    worker.flush_stdio()
    while not outcome.let_go(worker):
        # A child's home has not fetched its outcome yet, which goes with this process.
        time.sleep(0.001)
    worker.words[worker.block + lay.B_WAITS] = 0
    worker.words[worker.block + lay.B_STATE] = lay.RETIRED
    # crash-point: worker.leaving
