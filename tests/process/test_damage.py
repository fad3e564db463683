"""Pools whose shared memory something overwrites while they work: errors, and never a hang."""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING

import pytest

from mpsched._base.settings import Settings
from mpsched._pool.core import Pool
from mpsched._shm import layout as lay
from mpsched.errors import MpschedError
from tests.support import crash_calls, fork_calls
from tests.support.damage import damage
from tests.support.pools import DEADLINE_S, pool

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from mpsched._shm.layout import Layout

SMALL = Settings(entries_per_worker=32, window=16, inbox_slots=32, result_ring_bytes=4096)
AREAS = ("inboxes", "rings", "results", "entries", "functions", "blocks")


def places(layout: Layout, area: str) -> list[int]:
    """Return the words of an area that are in use in a small pool."""
    found: list[int] = []
    for worker in range(layout.workers):
        # A HEAD beyond TAIL is an empty ring to whoever only glances at it: what lies there is lost.
        if area == "inboxes":
            first = layout.inbox(worker)
            found += [first + lay.I_TAIL] * 8
            found += range(first + lay.INBOX_HEADER, first + lay.INBOX_HEADER + layout.inbox_slots)
        elif area == "rings":
            first = layout.ring(worker)
            found += [first + lay.I_TAIL] * 8
            found += range(first + lay.INBOX_HEADER, first + lay.INBOX_HEADER + 16)
        elif area == "results":
            first = layout.result(worker)
            found += [first + lay.R_HEAD, first + lay.R_TAIL]
            found += range(first + lay.RESULT_HEADER, first + lay.RESULT_HEADER + 64)
        elif area == "blocks":
            found += range(layout.block(worker), layout.block(worker) + lay.BLOCK_WORDS)
    if area == "blocks":
        found += range(lay.H_LIVE, lay.HEADER_WORDS)
    elif area == "entries":
        for field in (layout.meta, layout.length, layout.place, layout.root, layout.below):
            found += range(field, field + layout.entries)
            found += range(field + layout.entries, field + layout.total, 7)
    elif area == "functions":
        found += range(layout.function_table, layout.function_table + 4)
    return found


def damage_a_living_pool(area: str, seed: int) -> list[BaseException]:
    """Let a pool of two work while words of an area change; return the errors of its futures."""
    dice = random.Random(seed)
    with pool(2, settings=SMALL) as ex:
        inner = ex._pool
        assert isinstance(inner, Pool)
        words, layout = inner.segment.words, inner.layout
        futures: list[Future[Any]] = [ex.submit(crash_calls.nap, 0.0002) for _ in range(20)]
        try:
            for _ in range(6):
                for number in range(10):
                    futures.append(ex.submit(crash_calls.identity, number))
                futures.append(ex.submit(fork_calls.fib, 9))
                futures.append(ex.submit(crash_calls.identity, [number] * 50))
                # The pool has its memory as long as this section is not the supervisor's for good.
                if inner.leader.section.try_enter():
                    try:
                        if area in {"inboxes", "rings"}:
                            # One near by would be as good as the right one.
                            words[dice.choice(places(layout, area))] = 1 << dice.randrange(40, 63)
                        else:
                            damage(words, places(layout, area), dice)
                    finally:
                        inner.leader.section.leave()
                time.sleep(0.002)
        except MpschedError:
            assert ex.state == "failed", (area, seed)
        done, open_ = wait(futures, DEADLINE_S)
        assert not open_, f"area {area}, seed {seed}: {len(open_)} futures hang, {ex.state}"
        return [error for future in done if (error := outcome(future)) is not None]


def outcome(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception(0)
    except CancelledError as cancelled:
        return cancelled


def check(area: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that each error says what has happened, and is one of the pool's where a ring was damaged.

    (A damaged frame may still be one, of something else.)
    """
    print(f"area {area}, seed {seed}")
    with caplog.at_level(logging.CRITICAL):
        errors = damage_a_living_pool(area, seed)
    for error in errors:
        known = isinstance(error, MpschedError | CancelledError)
        assert known or area == "entries", repr(error)
        assert str(error), repr(error)


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("seed", [1, 2])
def test_damage_of_a_living_pool_ends_in_errors_and_not_in_a_hang(
    area: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each future is final, with its result or an error that says something; the pool ends."""
    check(area, seed, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("seed", range(100, 130))
def test_damage_of_a_living_pool_never_hangs(
    area: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The same with many seeds."""
    check(area, seed, caplog)
