"""The thread that waits for the next time and hands out what is due. See README.md, "Waiting"."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, final

from mpsched._base.clock import SystemClock
from mpsched._pool import lifecycle
from mpsched._schedule import closing
from mpsched._schedule.bell import no_slack
from mpsched._schedule.book import STUCK_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._base.clock import Jump
    from mpsched._schedule.desk import Desk
    from mpsched._schedule.verdict import Verdict

_LOG = logging.getLogger("mpsched")

_LOOK_S: Final = 0.02
"""Seconds between looks at deadlines while what is due waits for room."""


_LEAD_LEAST_S: Final = 0.000_1
_LEAD_MOST_S: Final = 0.000_5
"""Seconds before its time at which it wakes; at most so long it keeps a core busy for each."""

_IN_A_ROW: Final = 8
"""So many are handed over before their time before it looks at anything else again."""

_AHEAD_S: Final = 0.000_2
"""Seconds after the next time until which what is due is prepared with it."""


class ClockJump(NamedTuple):
    """The wall clock does not show what it should: it was set, or the machine slept.

    Jobs with a calendar time were moved to where that time is now; all others are as they were.

    Attributes:
        seconds: by how much it is ahead of what was expected; below 0: it was set back.
        suspended: how much of it the machine was suspended; 0.0 if it was not, or nobody knows.
        at: when it was noticed, on the scheduler's monotonic clock.
    """

    seconds: float
    suspended: float
    at: float


@final
class Dispatcher:
    """The thread `mpsched-scheduler` of one desk. It runs no code of the user's."""

    def __init__(self, desk: Desk, on_event: Callable[[ClockJump], object] | None) -> None:
        self._desk = desk
        self._on_event = on_event
        self.thread = threading.Thread(target=self._run, name="mpsched-scheduler", daemon=True)
        desk.thread = self.thread
        self._lead = _LEAD_LEAST_S
        self._late = self._took = 0.0  # how late its sleeps end, and how long handing over takes
        self._owes = False  # the pool's own thread is to hear of what was handed over
        self._unwatch = desk.clock.watch(desk.bell.ring)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def _run(self) -> None:
        no_slack()
        desk = self._desk
        try:
            while not self._turn():
                pass
        except BaseException:  # our own fault: nobody may wait for ever because of it
            _LOG.exception("the scheduler's dispatcher failed; the scheduler is closed")
            closing.give_up(desk)
        finally:
            self._unwatch()
            closing.finish(desk)

    def _turn(self) -> bool:
        """Hand out what is due, then wait for the next time. True if the scheduler is at its end."""
        desk = self._desk
        with desk.lock, desk.whole:
            now = desk.clock.monotonic()
            jump = self._look_at_the_wall() if desk.follows_wall() else None
            overdue = (
                [*desk.workers.expire(now), *desk.inside.expire(now)] if desk.deadlines else []
            )
            if desk.inside_waits():
                desk.hand_to_threads(now)
            pump = desk.hand_out(now, look=True)
            more = pump and desk.blocked and not desk.own_order
        if pump or desk.cut:
            desk.cut = False
            desk.pump()  # first of all: the rest is bookkeeping
            while desk.chores:  # of interrupted calls
                desk.chores.popleft()()
        with desk.lock:
            verdicts = [*desk.verdicts(now), *desk.stuck()]
            if jump is None:
                jump = self._look_at_the_wall()  # nothing followed it, so this can come last
            ended = closing.is_over(desk)
            seconds = 0.0 if more or overdue else self._seconds(now)
        for due in overdue:
            verdicts += desk.miss(due)
        self._tell(verdicts)
        if jump is not None:
            self._report(ClockJump(jump.seconds, jump.suspended, now))
        if ended:
            return True
        if more:
            return False
        desk.turns += 1
        for _ in range(_IN_A_ROW):
            if not self._sleep(now, seconds) or desk.bell.is_rung():
                break
            # All that there was for now lies with workers; when the next one is near, the rest can wait.
            with desk.lock, desk.whole:
                now = desk.clock.monotonic()
                seconds = self._seconds(now)
        return False

    def _sleep(self, now: float, seconds: float | None) -> bool:
        """Sleep until a ring, or until the next time: to the microsecond, and with a worker awake for it.

        A sleep ends late, by how much depends on the machine and its other work: so it ends early by what
        it was late before, and the rest is spent awake.

        Returns:
            Whether what is due at the next time was handed over, before it.
        """
        desk, lead = self._desk, self._lead
        bell, clock = desk.bell, desk.clock
        if self._owes and (seconds is None or seconds > lead):
            # Not before: the pool's own thread, which may wake by this, competes with this one for the GIL.
            self._owes = False
            desk.outsider()
        if seconds is None or now + seconds < desk.wakes_at or type(clock) is not SystemClock:
            bell.wait(seconds)
            return False
        until = now + seconds
        if (left := until - clock.monotonic()) > lead:
            if bell.wait(left - lead):
                return False
            late = clock.monotonic() - until + lead
            # Up at once, down slowly: one in a hundred is to be on time, too.
            self._late = max(late * 1.25, self._late * 0.98)
            self._lead = min(_LEAD_MOST_S, max(_LEAD_LEAST_S, self._late + self._took))
        left = until - clock.monotonic()
        if left > 0 and not desk.expect(until):
            bell.wait(left)  # all workers are busy: they need this core more
            return False
        with desk.lock, desk.whole:
            # Not beyond a deadline: nothing may be missed before it is over.
            desk.prepare(until if desk.deadlines else until + _AHEAD_S)
            more = len(desk.prepared) > 1
            if desk.prepared:
                until = min(until, desk.prepared[0][0])
        if more:
            desk.expect(until, 2)
        if desk.prepared and desk.own_order:
            with desk.lock, desk.whole:
                gone = self._hand_early()
            took = clock.monotonic() - until + left
            self._took = max(took, self._took * 0.98)
            if gone:
                return True
        self._wait_awake(until)
        return False

    def _hand_early(self) -> bool:
        """Give what is prepared to idle workers; whether all of it is given. Lock held."""
        desk = self._desk
        waiting = len(desk.prepared)
        gone = desk.hand_early()
        self._owes |= len(desk.prepared) < waiting
        return gone

    def _wait_awake(self, until: float) -> None:
        """Hand over what is prepared at its time, or before to a worker that gets free."""
        desk = self._desk
        bell, clock = desk.bell, desk.clock
        while True:
            while (now := clock.monotonic()) < until:
                if bell.is_rung():
                    return
                os.sched_yield()
                if desk.prepared and desk.own_order:
                    with desk.lock, desk.whole:
                        if self._hand_early():
                            return
                        until = min(until, desk.prepared[0][0])
            with desk.lock, desk.whole:
                released = desk.release(now)
                until = desk.prepared[0][0] if desk.prepared else 0.0
            if not released:
                return  # it is nothing for a worker, or came since
            desk.dispatch()
            self._owes = True
            if not until:
                return

    def _seconds(self, now: float) -> float | None:
        """Return how long to sleep, and note it: who schedules something earlier rings. Lock held."""
        desk = self._desk
        waits = []
        if desk.in_threads < desk.threads.most:
            waits.append(desk.inside.peek(now))
        if not desk.blocked:
            waits.append(desk.workers.peek(now))
        elif desk.mixed and not desk.in_order:
            # What comes first among what is due then may come before what waits with the pool.
            waits.append(desk.workers.coming(now))
        seconds = min((wait.seconds for wait in waits if wait is not None), default=None)
        if desk.deadlines and (desk.blocked or desk.in_threads >= desk.threads.most):
            seconds = _LOOK_S if seconds is None else min(seconds, _LOOK_S)
        if desk.prepared:
            left = max(0.0, desk.prepared[0][0] - now)
            seconds = left if seconds is None else min(seconds, left)
        if desk.untold:
            seconds = STUCK_S if seconds is None else min(seconds, STUCK_S)
        desk.wakes_at = float("inf") if seconds is None else now + seconds
        return desk.clock.timeout(seconds, walls=desk.follows_wall())

    def _look_at_the_wall(self) -> Jump | None:
        """Move what follows the wall clock if that has jumped. Lock held."""
        desk = self._desk
        jump = desk.walls.look()
        if jump is not None:
            desk.jumps += 1
            desk.mixed = True
            desk.workers.rebase(desk.walls.offset)
            desk.inside.rebase(desk.walls.offset)
        return jump

    def _tell(self, verdicts: list[Verdict]) -> None:
        """Have the pool's own thread tell them: callbacks must not keep this one from being on time."""
        if not verdicts:
            return
        pool = self._desk.pool
        assert pool is not None
        for verdict in verdicts:
            pool.leader.finished.append((verdict, None, None, False))  # type: ignore[arg-type]
        if not pool.supervisor.done.is_set():
            lifecycle.ring(pool)
            if not pool.supervisor.done.is_set():
                return
        for verdict in verdicts:  # it has ended, so it may not have seen them; each is told once
            verdict.tell()

    def _report(self, jump: ClockJump) -> None:
        _LOG.warning(
            "the wall clock jumped by %+.3f s%s; jobs with a calendar time follow it",
            jump.seconds,
            " (the machine was suspended)" if jump.suspended else "",
        )
        if self._on_event is not None:
            self._tell([Event(self._on_event, jump)])  # type: ignore[list-item]


@final
class Event:
    """A clock jump that is to be told to the user; see `Verdict`."""

    __slots__ = ("_call", "_jump", "_told")

    def __init__(self, call: Callable[[ClockJump], object], jump: ClockJump) -> None:
        self._call = call
        self._jump = jump
        self._told = False

    def tell(self) -> None:
        """Call the user's function; what it raises is logged."""
        if self._told:
            return
        self._told = True
        try:
            self._call(self._jump)
        except BaseException:  # as with on_error
            _LOG.exception("on_event raised")

    def _settle(self, _value: object, _raw: object, *, failed: bool = False) -> None:
        self.tell()
