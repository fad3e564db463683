"""`VersionedTimerHeap`: what waits for its time, and which version of an id is valid.

See README.md. Not locked: its caller is one thread at a time.
"""

from __future__ import annotations

import itertools
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Literal, final

from mpsched._timers import order
from mpsched._timers.book import TimerBook
from mpsched._timers.due import CancelResult, Due, Wait
from mpsched._timers.entry import Entry, attempt_of, drop, due_of, extra_of
from mpsched._timers.instants import finite, not_nan, whole
from mpsched._timers.states import CANCELLED, CLAIMED, COMPLETED, FAILED, PENDING, RUNNING
from mpsched.errors import StaleVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

_ENDS: Final = {
    "completed": COMPLETED,
    "failed": FAILED,
    "cancelled": CANCELLED,
    "missed": FAILED,
}

new_tuple: Final = tuple.__new__

# An enum's member costs two look-ups.
PREVENTED: Final = CancelResult.PREVENTED


@final
class VersionedTimerHeap(TimerBook):
    """Tasks that wait for their time, one valid version for each id.

    It has no thread and no clock: the caller says what time it is, and runs what `next` hands out.
    Times are seconds on any clock that does not go back. Ids are hashable objects of any kind,
    equal or not, and never put in order.

    Context:
        Any thread, one at a time: it has no lock of its own.

    Example:
        >>> heap = VersionedTimerHeap()
        >>> heap.schedule("tea", 180.0, 0, print)
        1
        >>> heap.next(100.0)
        Wait(seconds=80.0)
        >>> due = heap.next(180.0)
        >>> due.task_id, heap.status("tea").state
        ('tea', 'running')
        >>> heap.finish(due, "completed")
        True
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        ready_order: Literal["run_at", "priority"] = "run_at",
        aging: float = 0.0,
        groups: Mapping[str, float] | None = None,
        max_pending: int | None = None,
        remember: int = 1000,
        versions: Iterator[int] | None = None,
        on_drop: Callable[[Due, str], None] | None = None,
    ) -> None:
        """Make an empty heap.

        Args:
            ready_order: what comes first among what is due: the earliest time ("run_at"), or the
                highest priority ("priority").
            aging: points of priority that a due task gains per second; only with "priority".
            groups: weights by name: groups take turns, each as often as its weight says.
            max_pending: how many versions may be pending; None: any number.
            remember: of how many ids, at least, the end is still known; at most twice as many are.
            versions: where version numbers come from, rising; heaps that share it never use one
                twice. By default 1, 2, 3 and so on.
            on_drop: called with a version that ended without having started, and with why:
                "cancelled", "superseded" or "missed". At the end of the call that ended it, with the
                heap in order; it must not raise, and must not call the heap.

        Raises:
            TypeError, ValueError: An option is none of these; the message names it.
        """
        for name, value in (("max_pending", max_pending), ("remember", remember)):
            if value is not None and (whole(name, value) < 1):
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        super().__init__(order.make(ready_order, aging, groups), remember)
        self._groups = None if groups is None else frozenset(groups)
        self._limit = max_pending
        self._number = (itertools.count(1) if versions is None else versions).__next__
        self._on_drop = on_drop
        self._plain = self._queue.ready is None

    # --- into the heap -----------------------------------------------------------------------------

    def schedule(
        self,
        task_id: Hashable,
        run_at: float,
        priority: int,
        fn: Callable[..., Any],
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        group: str | None = None,
        at: float | None = None,
    ) -> int:
        """Have a task run at a time; an older version of the same id that has not started never does.

        Args:
            task_id: any hashable object.
            run_at: when, in seconds on the heap's clock; a past time is due at once.
            priority: higher is earlier among equals.
            fn: handed back by `next`; the heap never calls it.
            args: handed back as they are.
            kwargs: handed back as they are.
            deadline: the last moment at which it may start, on the same clock.
            group: one of the heap's groups.
            at: wall-clock seconds of which `run_at` is the present image; see `rebase`.

        Returns:
            The new version, higher than any before, of any id.

        Raises:
            TypeError: A time or priority is no number, or the id is not hashable.
            ValueError: A time is not finite, or the group unknown.
            PendingLimitReached: `max_pending` versions are pending, and this replaces none of them.

        Complexity:
            O(log n), n counting stale entries, of which TIMER-5 bounds the number.
        """
        if type(run_at) is not float or run_at - run_at != 0.0:  # NaN or infinite
            run_at = finite("run_at", run_at)
        if type(priority) is not int:
            priority = whole("priority", priority)
        extra = (
            None
            if deadline is None and group is None and at is None
            else self._extra_for(deadline, group, at)
        )
        current = self._current
        old = current.get(task_id)
        if self._limit is not None and (old is None or old.state != PENDING):
            self._refuse_more(task_id, self._limit)
        version = self._number()
        entry = Entry(run_at)
        entry.priority = priority
        entry.version = version
        entry.state = 0  # PENDING
        entry.task_id = task_id
        entry.fn = fn
        entry.args = args
        entry.kwargs = kwargs
        entry.extra = extra
        if old is not None and old.state == RUNNING:
            # Before it is out of `_current`: so it can be found at each moment (`repair`).
            self._replaced.setdefault(task_id, []).append(old)
        current[task_id] = entry
        # `LazyQueue.put`, without its call.
        queue = self._queue
        if run_at > queue.edge:
            self._later.append(entry)
        else:
            heap = self._heap
            heappush(heap, entry)
            if len(heap) > queue.full:
                queue.spill()
        if extra is not None:
            self._enlist(entry, extra)
        if old is not None and old.state != RUNNING:
            self._never(old, CANCELLED, "superseded")
        return version

    def reschedule(
        self,
        task_id: Hashable,
        *,
        run_at: float | None = None,
        priority: int | None = None,
        at: float | None = None,
    ) -> bool:
        """Move the pending version of an id to another time or priority. It stays the same version.

        Args:
            task_id: whose.
            run_at: the new time; None: as it was. It does not follow the wall clock any more then.
            priority: the new priority; None: as it was.
            at: wall-clock seconds of which `run_at` is the present image.

        Returns:
            Whether there is one that is pending, and not claimed.

        Raises:
            TypeError: A time or priority is no number, or `at` comes without `run_at`.
            ValueError: A time is not finite.
        """
        if at is not None and run_at is None:
            raise TypeError(f"at={at!r} says which wall-clock time run_at follows: give both")
        entry = self._pending(task_id)
        if entry is None:
            return False
        if run_at is not None:
            run_at = finite("run_at", run_at)
        if priority is not None:
            priority = whole("priority", priority)
        if at is not None:
            at = finite("at", at)
        entry = self._taken_out(entry)
        if run_at is not None:
            entry = self._set_time(entry, run_at)
            self._follow(entry, at)
        if priority is not None:
            entry.priority = priority
        self._put_in(entry)
        return True

    def pause(self, task_id: Hashable) -> bool:
        """Have the pending version of an id wait for `resume`. Its deadline goes on.

        Returns:
            Whether there is one that is pending, and not claimed.
        """
        entry = self._pending(task_id)
        if entry is None:
            return False
        if entry.extra is None or not entry.extra.paused:
            entry = self._taken_out(entry)
            extra_of(entry).paused = True
            self._paused += 1
            self._queue.sweep()
        return True

    def resume(self, task_id: Hashable, run_at: float | None = None) -> bool:
        """Put a paused version back, at its own time or at another one.

        Returns:
            Whether there is one that is paused.
        """
        entry = self._pending(task_id)
        if entry is None or entry.extra is None or not entry.extra.paused:
            return False
        if run_at is not None:
            entry = self._set_time(entry, finite("run_at", run_at))
            self._follow(entry, None)
        extra_of(entry).paused = False
        self._paused -= 1
        self._put_in(entry)
        return True

    def rebase(self, offset: float) -> int:
        """Give each pending version that follows the wall clock its time anew.

        Args:
            offset: the wall clock less the heap's clock, in seconds.

        Returns:
            How many were moved.

        Complexity:
            O(w log n) for w such versions.
        """
        offset = finite("offset", offset)
        moved = 0
        for task_id in list(self._walls.values()):
            entry = self._current[task_id]
            at = extra_of(entry).at
            assert at is not None  # TIMER-7
            run_at = at - offset
            if run_at != entry:
                entry = self._taken_out(entry)
                entry = self._set_time(entry, run_at)
                self._put_in(entry)
                moved += 1
        return moved

    # --- out of the heap ---------------------------------------------------------------------------

    def next(self, now: float) -> Due | Wait | None:
        """Take the first task that is due; it is running now.

        Args:
            now: what the heap's clock shows.

        Returns:
            The task; or how long until one is due; or None if nothing waits for a time.

        Raises:
            ValueError: `now` is NaN.

        Complexity:
            O(log n), amortized over the calls that made entries stale.
        """
        if now != now:  # noqa: PLR0124 - `not_nan`, without its call
            not_nan(now)
        if self._front or not self._plain:
            first = self._first_due(now)
            if first is None:
                return self._wait(now)
            entry = first
        else:
            # `_first_due` for the common case, without its calls.
            heap, run, later, queue = self._heap, self._run, self._later, self._queue
            while True:
                if run:
                    # Taken, and put back where it is not to be had: cheaper than to look first.
                    entry = run.pop()
                    if entry.state:  # not PENDING
                        queue.stale -= 1
                        continue
                    if not heap or entry < heap[0]:
                        if entry > now:
                            run.append(entry)
                            return Wait(entry - now)
                        break
                    run.append(entry)
                elif not heap:
                    if not later:
                        return None
                    queue.open()
                    continue
                entry = heap[0]
                if entry.state:
                    heappop(heap)
                    queue.stale -= 1
                    continue
                if entry > now:
                    return Wait(entry - now)
                heappop(heap)
                if (heap and heap[0] == entry) or (run and run[-1] == entry):
                    entry = queue.untie(entry)
                break
            queue.margin = margin = queue.margin - 1
            if margin < 0:
                queue.sweep()
        # PENDING -> CLAIMED -> RUNNING in one step.
        entry.state = 2
        version = entry.version
        if entry.extra is not None:
            self._walls.pop(version, None)
            return due_of(entry)
        # As `due_of`: a named tuple's own constructor is a Python function, and takes twice as long.
        return new_tuple(
            Due,
            (entry.task_id, version, +entry, entry.priority, version, entry.fn, entry.args,
             entry.kwargs, 1),
        )  # fmt: skip

    def claim(self, now: float) -> Due | Wait | None:
        """Take the first task that is due, to be started later; it can still be taken back.

        As `next`, in arguments, results and errors.
        """
        not_nan(now)
        entry = self._first_due(now)
        return self._wait(now) if entry is None else self._claimed(entry)

    def claim_many(self, now: float, most: int) -> list[Due]:
        """Claim up to `most` tasks that are due, in order; an empty list if none is."""
        not_nan(now)
        taken: list[Due] = []
        heap, run, queue = self._heap, self._run, self._queue
        while len(taken) < most:
            if self._front or not self._plain:
                first = self._first_due(now)
                if first is None:
                    break
                taken.append(self._claimed(first))
                continue
            # As in `next`.
            if run and run[-1].state:
                run.pop()
                queue.stale -= 1
                continue
            if not run and not heap:
                if not self._later:
                    break
                queue.open()
                continue
            if run and (not heap or run[-1] < heap[0]):
                entry = run[-1]
                if entry > now:
                    break
                run.pop()
            else:
                entry = heap[0]
                if entry.state:
                    heappop(heap)
                    queue.stale -= 1
                    continue
                if entry > now:
                    break
                heappop(heap)
                if (heap and heap[0] == entry) or (run and run[-1] == entry):
                    entry = queue.untie(entry)
            queue.margin = margin = queue.margin - 1
            if margin < 0:
                queue.sweep()
            if entry.extra is not None:
                taken.append(self._claimed(entry))
                continue
            entry.state = 1  # CLAIMED
            self._claims += 1
            version = entry.version
            taken.append(
                new_tuple(
                    Due,
                    (entry.task_id, version, +entry, entry.priority, version, entry.fn,
                     entry.args, entry.kwargs, 1),
                )
            )  # fmt: skip
        return taken

    def start(self, due: Due) -> bool:
        """Note that a claimed task was entered.

        Returns:
            Whether it may run: False if it was cancelled, replaced or taken back meanwhile.
        """
        entry = self._entry_of(due)
        if entry is None or entry.state != CLAIMED or attempt_of(entry) != due.attempt:
            return False
        entry.state = RUNNING
        self._claims -= 1
        self._overdue.pop(due.version, None)
        return True

    def revoke(self, due: Due) -> bool:
        """Put a claimed task back into its place.

        Returns:
            Whether it is there again: False if it has started, or was cancelled or replaced.
        """
        entry = self._entry_of(due)
        if entry is None or entry.state != CLAIMED or attempt_of(entry) != due.attempt:
            return False
        self._overdue.pop(due.version, None)
        entry.state = PENDING
        self._claims -= 1
        self._queue.put(entry)
        if entry.extra is not None:
            self._enlist(entry, entry.extra)
        return True

    def finish(
        self, due: Due, outcome: Literal["completed", "failed", "cancelled", "missed"]
    ) -> bool:
        """Note how a task ended that was claimed or started.

        Args:
            due: what `next` or `claim` handed out.
            outcome: "missed" is a failure: its deadline passed before it started.

        Returns:
            Whether it is the newest version of its id.

        Raises:
            StaleVersion: This attempt is final already, or waits again.
            ValueError: No such outcome, or none for a task that has not started ("completed") or
                has ("missed").
        """
        end = _ENDS.get(outcome)
        if end is None:
            raise ValueError(f"outcome must be one of {', '.join(_ENDS)}, not {outcome!r}")
        entry = self._entry_of(due)
        if entry is None or attempt_of(entry) != due.attempt:
            raise StaleVersion(
                f"version {due.version} of {due.task_id!r}, attempt {due.attempt}, is over or was taken "
                "back: an attempt is finished once"
            )
        if entry.state == (CLAIMED if end == COMPLETED else RUNNING) and outcome in {
            "completed",
            "missed",
        }:
            raise ValueError(
                f"version {due.version} of {due.task_id!r} cannot be {outcome!r}: it "
                + ("has started" if entry.state == RUNNING else "has not started")
            )
        self._overdue.pop(due.version, None)
        if entry.state == CLAIMED:
            self._claims -= 1
        entry.state = end
        if outcome == "missed":
            extra_of(entry).missed = True
        task_id = entry.task_id
        newest = self._current.get(task_id) is entry
        if newest:
            del self._current[task_id]
            self._ends.put(task_id, entry)
        else:
            self._not_running(task_id, entry)
        drop(entry)
        return newest

    def ran(self, due: Due) -> bool:
        """Note that a claimed task was entered, if that is not known yet, and that it completed.

        As `start` and `finish`, in what it returns and raises.
        """
        task_id = due.task_id
        entry = self._current.get(task_id)
        if (
            entry is None
            or entry.state != CLAIMED
            or entry.version != due.version
            or entry.extra is not None
        ):
            self.start(due)
            return self.finish(due, "completed")
        # Both for the common case, without their calls.
        entry.state = 3  # COMPLETED
        self._claims -= 1
        del self._current[task_id]
        self._ends.put(task_id, entry)
        drop(entry)
        return True

    def retry(self, due: Due, run_at: float) -> bool:
        """Have a task that ran wait again, as the next attempt of the same version.

        Returns:
            Whether it does. False, and nothing is changed, if it was replaced or asked to stop: then
            it is to be finished.

        Raises:
            StaleVersion: This attempt is not running.
        """
        run_at = finite("run_at", run_at)
        entry = self._entry_of(due)
        if entry is None or entry.state != RUNNING or attempt_of(entry) != due.attempt:
            raise StaleVersion(
                f"version {due.version} of {due.task_id!r}, attempt {due.attempt}, does not run"
            )
        if self._current.get(entry.task_id) is not entry:
            return False
        extra = extra_of(entry)
        if extra.requested:
            return False
        extra.at = None
        entry = self._set_time(entry, run_at)
        entry.state = PENDING  # from here on it has happened (`repair`)
        extra.attempt += 1
        self._queue.put(entry)
        self._enlist(entry, extra)
        return True

    def cancel(self, task_id: Hashable, version: int | None = None) -> CancelResult:
        """Keep a task from starting, or ask it to stop if it has.

        Args:
            task_id: whose newest version. If that one is over, older ones that still run are asked.
            version: this version instead.

        Returns:
            PREVENTED: it never starts, in any attempt. REQUESTED: it runs, and was asked.
            TOO_LATE: it is over. UNKNOWN: never seen, or forgotten.

        Complexity:
            O(1), amortized: a rebuild is paid for by the calls that made it necessary.
        """
        if version is not None:
            return self._cancel(task_id, version)
        # `_never` for the common case, without its calls.
        entry = self._current.pop(task_id, None)
        if entry is None:
            return self._cancel(task_id, None)
        if entry.state or entry.extra is not None:
            self._current[task_id] = entry
            return self._cancel(task_id, None)
        entry.state = 5  # CANCELLED
        ends = self._ends
        newer = ends.newer
        newer[task_id] = entry
        if len(newer) >= ends.most:
            ends.turn()
        queue = self._queue
        queue.stale += 1
        queue.margin = margin = queue.margin - 2
        if margin < 0:
            queue.sweep()
        if self._on_drop is not None:
            self._on_drop(due_of(entry), "cancelled")
        entry.fn = entry.args = entry.kwargs = None  # `drop`
        return PREVENTED
