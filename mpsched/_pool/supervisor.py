"""The supervisor: the pool's own thread. It starts workers, buries them, and collects.

See README.md, "Supervisor". Everything that must not be interrupted by KeyboardInterrupt is here:
deaths, time limits, callbacks, the end of the pool. It keeps the pool alive until it is terminated.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._pool import alone, launch, obituary, trees
from mpsched._pool.alone import Alone
from mpsched._pool.audit import Audit
from mpsched._pool.burial import Burial
from mpsched._pool.limits import Limits
from mpsched._pool.memory import MemoryWatch
from mpsched._pool.slot import Slot
from mpsched._pool.spares import Spares
from mpsched._pool.waiting import Latch
from mpsched._shm import layout as lay
from mpsched._tasks import failure, records as rec
from mpsched._worker.baseline import UNFIT
from mpsched.errors import PoolFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._pool.core import Pool
    from mpsched._pool.task import Task

_LOG = logging.getLogger("mpsched")

_SAFETY_S: Final = (0.1, 5.0)
_LOOK_S: Final = 0.002
"""Seconds after which results are looked for again after something came, then twice as long each time: a
worker rings once per batch, and a long task may follow a short one."""
"""Seconds after which the supervisor looks by itself while work is open: first, most."""
_INSIDE_S: Final = 0.005
"""Seconds between looks while a callback waits for something else."""
_RETRY_S: Final = 0.001
"""Seconds until an inbox is tried again whose lock was taken."""
_LINGER_S: Final = (0.010, 0.040)
"""Seconds between looks while a caller's thread reads the results: first, and most while that thread reads a
map, whose results lie for `tell_s` anyway."""
_TRIES: Final = 4
"""Starts in a row that may fail before the pool does."""
_BACKOFF_S: Final = 0.05
_BACKOFF_MOST_S: Final = 5.0
_RESTART_S: Final = 0.1
"""Seconds after which a template that could not be made is tried again."""
_LEAVE_S: Final = 2.0
"""Seconds that idle workers have to leave when the pool ends."""


@final
class Supervisor:
    """The thread `mpsched-supervisor` of one pool.

    Attributes:
        draining: no new roots; the pool ends when nothing is open.
        kill: end the workers now, whatever they run.
        failed: why the pool failed, or None.
        done: set when nothing of the pool is left.
        deaths: worker processes that died.
        killed, unstarted: `id` of the futures and maps that the end of the pool has ended, or kept from
            starting; for whoever holds them (`close`).
    """

    def __init__(self, pool: Pool, make: Callable[[], launch.Launcher]) -> None:
        self._pool = pool
        self._slots = [Slot(spare=w >= pool.width) for w in range(pool.layout.workers)]
        self._spares = Spares(pool, self._slots)
        self.burial = Burial(pool)
        self.limits = Limits(pool, self.burial.trees)
        self.alone = Alone(pool)
        self._memory = MemoryWatch(pool, self._slots, self.limits, self.burial.trees)
        self.draining = False
        self.kill_now = False
        self.failed: BaseException | None = None
        self.done = Latch()
        self.deaths = 0
        self.killed: set[int] = set()
        self.unstarted: set[int] = set()
        # Asleep without a time limit, because nothing was open: only a bell wakes it.
        self.dozing = False
        self._populated = Latch()
        self._ever_ready = False
        self._template_gone = False
        self._safety = _SAFETY_S[0]
        self._linger = _LINGER_S[0]
        self._audit = Audit(pool)
        self._looked = 0.0
        self._stopping = False
        # In the caller's thread: what is wrong with the start method is the caller's to see, and
        # `fork` copies a process whose only other threads are the user's.
        self._launcher = make()
        self.thread = threading.Thread(target=self._run, name="mpsched-supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def discard(self) -> None:
        """End the processes of a pool whose thread was never started."""
        self._launcher.close()

    def pids(self) -> list[int]:
        """Return the process of each worker; its last one where there is none at present.

        Then those of the spares that have ever been started; 0 for one that has left.

        In a pool that was just made, waits up to a second until the processes exist. 0 is left for
        one that does not then: callers may well kill what they are told, and `os.kill(0)` is for
        everybody.
        """
        if threading.current_thread() is not self.thread:
            self._populated.wait(1.0)
        width = self._pool.width
        spares = itertools.takewhile(lambda slot: slot.last_pid, self._slots[width:])
        return [*(slot.last_pid for slot in self._slots[:width]), *(slot.pid for slot in spares)]

    def pid_of(self, worker: int) -> int:
        """Return the process of a worker; 0 while there is none. Supervisor only."""
        return self._slots[worker].pid

    def kill(self, worker: int, number: int, why: str | None = None) -> bool:
        """Send a signal to the process of a worker; `why` it ends, for the event. Supervisor only."""
        slot = self._slots[worker]
        slot.why = why or slot.why
        return bool(slot.pid) and self._launcher.kill(slot.pid, number)

    # --- the loop -------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._pool.ending.acquire(blocking=False):
            return  # whoever started it was interrupted, and has given everything back
        try:
            self._loop()
        except BaseException as problem:  # the pool's own fault: nothing may hang because of it
            _LOG.exception("the pool's supervisor failed; the pool is closed")
            self._fail(problem)
            self._settle_finished()
        try:
            self._end()
        except BaseException:
            _LOG.exception("the pool could not be ended in order")
        finally:
            self._pool.gone()
            self.done.set()

    def _loop(self) -> None:
        pool = self._pool
        while True:
            self._turn(None)
            if self.kill_now or (self.draining and pool.idle() and not pool.leader.finished):
                return

    def _turn(self, most: float | None) -> None:
        """Wait until there is something to do, `most` seconds at most, and do it."""
        pool = self._pool
        self._start_due()
        timeout = self._timeout(self._safety)
        if most is not None:
            timeout = most if timeout is None else min(timeout, most)
        woken = self._wait(timeout)
        self.dozing = False
        now = time.monotonic()
        recent = now - self._looked < _SAFETY_S[0]
        if timeout == self._linger and not woken and recent and pool.leader.section.taken():
            # The thread for which results were left to lie is there.
            self._linger = min(2 * timeout, _LINGER_S[bool(pool.runs)])
            return
        self._linger = _LINGER_S[0]
        self._safety = _LOOK_S if woken else min(self._safety * 2, _SAFETY_S[1])
        for event in self._launcher.events():
            self._handle(event)
        self._memory.check()
        self.limits.check()
        if not recent:
            self._looked = now
            self._tidy()
        pool.leader.collect()
        self._take_notices()
        self._spares.check()
        self._look_at_pinned()
        self.burial.look()
        self.alone.look()
        self._settle_finished()
        pool.dispatcher.pump(ring=False)
        self._cut_runs()
        self._report_runs()

    def wait_inside(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Wait in a callback, which runs in this thread, and go on with the pool's work meanwhile.

        Returns:
            `done()`; False if the deadline (`time.monotonic()`) is over.
        """
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self.kill_now:
                self._fail_rest()
            if self._stopping:
                self._settle_finished()
                return done()
            # Whoever leads completes futures and maps without telling this thread.
            self._turn(_INSIDE_S if left is None else min(left, _INSIDE_S))
        return True

    def _cut_runs(self) -> None:
        """End the maps whose input nobody will pull any more."""
        for run in list(self._pool.runs):
            if run.finished:
                run.tell_finished()  # whoever was to do it was interrupted
            elif self.draining or run.cancelled or run.dropped():
                run.cut()

    def _tidy(self) -> None:
        """Put right what KeyboardInterrupt has left, if anything (README.md, "Sections")."""
        sections = self._pool.leader.section, self._pool.dispatcher.section
        for section in sections:
            if section.recover():
                _LOG.debug("a section was left by an exception and is open again")
        leader, dispatcher = sections
        if not dispatcher.try_enter():
            return
        try:
            self._pool.dispatcher.tidy()
            self._pool.revoker.resolve()
            self._audit.look()
            if leader.try_enter():
                try:
                    self._pool.dispatcher.sweep()
                finally:
                    leader.leave()
        finally:
            dispatcher.leave()

    def _timeout(self, safety: float) -> float | None:
        """Return how long to sleep: until a limit, a start, or the safety look while work is open."""
        now = time.monotonic()
        times = [slot.start_at for slot in self._slots if slot.start_at is not None]
        looks = (self.limits.next(), self._spares.next(), self._memory.next())
        times += [look for look in looks if look is not None]
        if self.burial.trees.busy():
            times.append(now + trees.LOOK_S)
        if self.alone.busy():
            times.append(now + alone.LOOK_S)
        left = max(0.0, min(times) - now) if times else None
        if self._pool.leader.lingering:
            return self._linger if left is None else min(self._linger, left)
        if self._pool.dispatcher.busy:
            return _RETRY_S
        # First said, then looked: whoever adds work afterwards and waits from outside, rings.
        self.dozing = True
        if self._pool.idle():
            return left
        self.dozing = False
        return safety if left is None else min(safety, left)

    def _wait(self, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self._pool.collector_bell.read_fd, select.POLLIN)
        fd = self._launcher.fileno()
        if fd >= 0:
            poller.register(fd, select.POLLIN)
        ready = poller.poll(None if timeout is None else int(timeout * 1000) + (timeout > 0))
        self._pool.collector_bell.drain()
        return bool(ready)

    def _settle_finished(self) -> None:
        leader, dropped = self._pool.leader, self._pool.dispatcher.dropped
        self._pool.events.deliver()
        while dropped:
            # Callbacks run here and below, and may come back in here (`wait_inside`).
            dropped.popleft()._cancel()
        finished = leader.finished
        if not finished:
            return
        while finished:
            future, value, raw, failed = item = finished.popleft()
            try:
                # crash-point: settle.popped
                future._settle(value, raw, failed=failed)
            except BaseException:
                finished.appendleft(item)  # the pool fails now, and this one ends all the same
                raise
        leader.settled()

    def _report_runs(self) -> None:
        """Report the maps that ended unread: once nobody can read them, all when the pool is left.

        Until then they keep their results, and whatever their functions refer to.
        """
        pool = self._pool
        leaving = self.draining and pool.idle()
        for run in list(pool.unseen):
            if (leaving or run.dropped()) and pool.forget(run):
                run.report()

    # --- workers ----------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        if self._stopping or self.failed is not None:
            return
        now = time.monotonic()
        due = [
            (index, slot)
            for index, slot in enumerate(self._slots)
            if slot.start_at is not None and slot.start_at <= now
        ]
        if due and self._template_gone and not self._restarted():
            for _, slot in due:
                slot.start_at = now + _RESTART_S
            return
        for index, slot in due:
            slot.start_at = slot.why = None
            slot.incarnation += 1
            slot.ready = False
            slot.alive = True
            slot.done = self._memory.done_by(index)
            self._pool.segment.words[self._pool.layout.block(index) + lay.B_STOP] = 0
            # crash-point: start.asking
            self._launcher.start(index, slot.incarnation)

    def _restarted(self) -> bool:
        """Make a new template, not before a worker is due: so it backs off as the workers do."""
        try:
            # crash-point: recover.restarting
            self._launcher.restart()
        except OSError as problem:
            self._pool.events.note("template_died", f"a new one cannot be started yet: {problem}")
            return False
        self._template_gone = False
        return True

    def _handle(self, event: launch.Event) -> None:
        if isinstance(event, launch.Started):
            slot = self._slots[event.index]
            slot.pid = slot.last_pid = event.pid
            if all(one.last_pid for one in self._slots[: self._pool.width]):
                self._populated.set()
            if event.pidfd >= 0:
                with contextlib.suppress(OSError):
                    os.set_inheritable(event.pidfd, False)
        elif isinstance(event, launch.Exited):
            by_kill = event.status == -signal.SIGKILL
            self._exited(event.index, event.pid, event.status, event.reason, by_kill=by_kill)
        elif isinstance(event, launch.NotStarted):
            slot = self._slots[event.index]
            slot.reason = str(event.error)
            slot.alive = False
            self._start_again(slot, failed=True)
        else:
            self._template_died(event)

    def _template_died(self, event: launch.TemplateDied) -> None:
        self._template_gone = True
        if event.reason is not None and not self._ever_ready and self.failed is None:
            self._fail(PoolFailed(f"the pool's template process cannot start: {event.reason}"))
            return
        if self.failed is None and not self._stopping:
            why = event.reason or f"{obituary.how(event.status)}; a new one starts"
            self._pool.events.note("template_died", why)
        for index, slot in enumerate(self._slots):
            if slot.alive:
                slot.reason = event.reason
                by_kill = event.status == -signal.SIGKILL
                self._exited(index, slot.pid, None, event.reason, by_kill=by_kill)

    def _exited(
        self, index: int, pid: int, status: int | None, reason: str | None, *, by_kill: bool
    ) -> None:
        """Bury worker `index`: what it ran fails or runs again, what it held goes to others."""
        slot = self._slots[index]
        words, block = self._pool.segment.words, self._pool.layout.block(index)
        planned = words[block + lay.B_STATE] == lay.RETIRED
        if not planned:
            self.deaths += 1  # before anybody is told of what it ran
        cause = self.burial.bury(index, pid, status)
        words[block + lay.B_STATE] = lay.STARTING
        slot.pid = 0
        slot.alive = False
        self._take_notices()
        if not planned and slot.ready:
            why = obituary.how(status) + (f"; suspected cause: {cause}" if cause else "")
            why += f" because {slot.why}" if slot.why else ""
            self._pool.events.note("died", why, worker=index, pid=pid)
        elif planned and not self._stopping:
            unfit = "a task has left it unfit for others" if status == UNFIT else None
            why = (
                slot.why
                or unfit
                or (
                    f"it has run {self._pool.options.max_tasks} tasks (max_tasks_per_child)"
                    if slot.wanted
                    else "no task blocks any more"
                )
            )
            self._pool.events.note("recycled", why, worker=index, pid=pid)
        if reason:
            slot.reason = reason
        self._start_again(slot, failed=not slot.ready, by_kill=by_kill)

    def _start_again(self, slot: Slot, *, failed: bool, by_kill: bool = False) -> None:
        if self._stopping or not slot.wanted:
            return
        if not failed:
            slot.failures = 0
            slot.start_at = 0.0
            return
        if by_kill and self._ever_ready:
            # Somebody, or the kernel for want of memory, killed it while it was starting: that says
            # nothing about the next one.
            slot.start_at = time.monotonic() + 2 * _BACKOFF_S
            return
        slot.failures += 1
        why = slot.reason or "its process ended before it was ready"
        if self._spares.has(slot):
            self._pool.events.note("start_failed", why, worker=self._slots.index(slot))
            self._spares.failed(slot)
            return
        # While others do the work, one that cannot be started is tried again and again.
        others = any(one.alive and one.ready for one in self._slots if one is not slot)
        if slot.failures >= _TRIES and not others and self.failed is None:
            self._fail(
                PoolFailed(
                    f"a worker could not be started {slot.failures} times in a row"
                    + (f": {slot.reason}" if slot.reason else "")
                )
            )
            return
        delay = min(_BACKOFF_S * 2**slot.failures, _BACKOFF_MOST_S)
        slot.start_at = time.monotonic() + delay
        if self.failed is None:
            self._pool.events.note(
                "start_failed", f"{why}; tried again in {delay:g} s", worker=self._slots.index(slot)
            )

    def _look_at_pinned(self) -> None:
        """Tell once of each worker that keeps children because they cannot be pickled."""
        pool = self._pool
        if not pool.events.wanted("pinned"):
            return
        words = pool.segment.words
        for worker in range(words[lay.H_LIVE]):
            slot = self._slots[worker]
            if words[pool.layout.block(worker) + lay.B_PINNED] and not slot.pinned:
                slot.pinned = True
                why = "their function, arguments or results cannot be pickled (pinned)"
                pool.events.note("pinned", why, worker=worker, pid=slot.last_pid)

    def _take_notices(self) -> None:
        notices = self._pool.leader.notices
        while notices:
            worker, kind, pid, payload = notices.popleft()
            slot = self._slots[worker]
            if kind == rec.R_READY:
                self._pool.events.note("started", worker=worker, pid=pid)
                self._memory.look_at_new()
                slot.ready = True
                slot.failures = 0
                slot.reason = None
                self._ever_ready = True
            elif not self._ever_ready and self.failed is None:
                error = failure.decode_exception(payload)
                problem = PoolFailed(
                    "the initializer failed: " + f"{type(error).__name__}: {error}"
                )
                problem.__cause__ = error
                self._fail(problem)
            else:
                error = failure.decode_exception(payload)
                slot.reason = f"the initializer failed: {type(error).__name__}: {error}"

    # --- the end ------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """The pool cannot go on: every open task fails with `error`'s kind, an object of its own."""
        self.failed = error
        self._populated.set()
        pool = self._pool
        pool.events.note("failed", str(error) or repr(error))

        def own() -> PoolFailed:
            copy = PoolFailed(str(error))
            copy.__cause__ = error.__cause__ or error
            return copy

        pool.refuse(own)
        self.draining = True  # before the look at what is open: a submit looks in the other order
        self._fail_open(own)

    def _fail_open(
        self,
        make: Callable[[], BaseException],
        make_running: Callable[[Task], BaseException] | None = None,
    ) -> None:
        """Fail what is open with an error of its own each; what runs now with `make_running`.

        That is the case of a close, which wants to know which is which.
        """
        pool = self._pool
        pool.dispatcher.held = True
        waiting: list[Any] = pool.ready.items()
        apart = list(self.alone.waiting)
        self.alone.clear()
        for item in [*waiting, *apart, *pool.dispatcher.inflight.values()]:
            future = getattr(item, "future", None)
            if future is not None and not future.done():
                future._ending = True
                running = make_running if pool.is_running(item) else None
                error = make() if running is None else running(item)
                (self.unstarted if running is None else self.killed).add(id(future))
                pool.leader.finished.append((future, None, _raises(error), True))
        for run in list(pool.runs):
            if run.abandon(make, make_running):
                self.killed.add(id(run))
        for item in waiting:
            pool.ready.pop(item)
        for task in list(pool.dispatcher.inflight.values()):
            pool.dispatcher.inflight.pop(task.id, None)
            if task.handle >= 0:
                pool.entries.free(task.handle)
        with pool.room:
            pool.room.notify_all()

    def _fail_rest(self) -> None:
        if not self._pool.idle():
            self._fail_open(
                lambda: CancelledError("the pool was closed before this task was started"),
                obituary.killed_by_close,
            )

    def _end(self) -> None:
        """Let the workers leave, kill what stays, and give everything back."""
        pool = self._pool
        self._stopping = True
        self._populated.set()
        self._tidy()
        self._fail_rest()
        self._settle_finished()
        words = pool.segment.words
        for worker in range(pool.layout.workers):
            words[pool.layout.block(worker) + lay.B_STOP] = 1
            pool.bells[worker].wake()
        try:
            # crash-point: end.stopping
            self._launcher.stop(0.0 if self.kill_now or self.failed is not None else _LEAVE_S)
        except OSError:
            _LOG.exception("the pool's processes could not all be ended in time")
        finally:
            self._launcher.close()
            self._look_at_pinned()
            self._settle_finished()
            pool.last_stats = pool.stats()
            pool.close_files(unmap=self._enter_for_good())

    def _enter_for_good(self) -> bool:
        """Enter both sections and stay: nobody looks at the segment any more. False: in vain."""
        pool = self._pool
        pool.leader.wanted = True
        deadline = time.monotonic() + _LEAVE_S
        for section in (pool.leader.section, pool.dispatcher.section):
            while not section.try_enter():
                if section.recover():
                    continue  # an exception has left it since the last look
                # Everybody inside has seen by now that there is nothing to wait for; only user code
                # that pickles an item can take longer.
                if time.monotonic() > deadline:
                    return False
                pool.leader_bell.wake()
                time.sleep(0.000_2)
        return True


def _raises(error: BaseException) -> Callable[[], tuple[None, BaseException]]:
    return lambda: (None, error)
