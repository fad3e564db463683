"""What was handed out too early gives way to what comes before it. See README.md, "Making way"."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Final

from mpsched._schedule.attempt import Attempt

if TYPE_CHECKING:
    from mpsched._schedule.desk import Desk
    from mpsched._schedule.handout import HandOut

_LONG: Final = 4
"""Windows up to this length are those of jobs that take long."""


def is_wanted(desk: HandOut, now: float) -> bool:
    """Note in `way` what waits with the pool behind the first that is due; whether there is any. Lock held.

    What lies with workers before its time gives way to whatever comes before it, due or not.
    """
    pool = desk.pool
    assert pool is not None
    if desk.state != "accepting":
        return False
    early = desk.still_early(now)
    short = pool.dispatcher.window() > _LONG
    if short and not early:
        return False
    rank = desk.workers.first_rank(now)
    stays: list[Attempt] = []
    if early and rank is None:
        rank = desk.workers.first_rank(now, early[-1].handle.run_at)
    elif early and pool.dispatcher.idle_one() >= 0:
        stays = early  # what is due goes to the worker that is free
    if rank is not None:
        rank_of = desk.workers.rank_of
        runs = [run for run in (early if short else _waiting(desk)) if run not in stays]
        ranks = [(rank_of(run.handle.due), run) for run in runs]  # type: ignore[arg-type]
        behind = [item for item in ranks if item[0] > rank]
        behind.sort(key=lambda item: item[0], reverse=True)
        desk.way = [run for _, run in behind]
    if not desk.way and desk.in_order and not desk.early:
        desk.mixed = False  # until another one comes late
    return bool(desk.way)


def _waiting(desk: HandOut) -> list[Attempt]:
    """Return what is with the pool, and has not started as far as can be seen."""
    pool = desk.pool
    assert pool is not None
    # On their way tasks are always in one of these, and move from one to the next in this order.
    tasks = [task for _, task, _ in desk.prepared]
    tasks += list(pool.ready.plain)  # type: ignore[arg-type]  # a scheduler's own pool runs no maps
    tasks += pool.dispatcher.in_hand()
    tasks += list(pool.dispatcher.inflight.values())
    # By their futures, so each is there once.
    runs = {run: None for task in tasks if isinstance(run := task.future, Attempt)}
    return [run for run in runs if not run.asked and run.waits()]


def make(desk: Desk) -> None:
    """Take back what is to give way, and hand out what it gives way to. No lock is held.

    It comes to an end: nothing is handed out meanwhile, and nothing is asked twice.
    """
    with desk.lock, desk.whole:
        if desk.making or not desk.way:
            return
        desk.making = get_ident()
    back = False
    while True:
        runs, desk.way = desk.way, []
        for run in runs:
            if not run.waits():
                continue  # it has started, or somebody else has taken it back
            run.take_back()
            if run.cancelled():
                back = True
            else:
                run.asked = True
                run.wanted = False
        with desk.lock, desk.whole:
            if is_wanted(desk, desk.clock.monotonic()):
                continue  # what was scheduled meanwhile comes before others as well
            desk.making = 0
            desk.give_way(back)
            return
