"""Work that reaches the crash points, and what has to be true of it whoever was struck meanwhile."""

from __future__ import annotations

import collections
import os
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpsched
from mpsched.errors import TaskCancelled, TaskTimeout, WorkerDied
from tests.support import crash_calls as calls
from tests.support.crash_calls import write_line
from tests.support.pools import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from mpsched import Future, WorkStealingExecutor
    from mpsched.testing import Strike

WIDE = 4
"""Children of each node of a tree."""

TREE = 1 + WIDE + WIDE * WIDE


def noted(log: str, name: str, seconds: float = 0.0) -> str:
    """Note that it runs, and in which attempt; return its name."""
    task = mpsched.current_task()
    assert task is not None
    write_line(log, f"{name}/{task.attempt}")
    if seconds:
        time.sleep(seconds)
    return name


def noted_slow(log: str, name: str) -> str:
    return noted(log, name, 0.02)


def noted_item(item: tuple[str, str]) -> str:
    """An item of a map; over a millisecond, so that no other is in the same block."""
    return noted(*item, 0.0015)


class Name(str):
    """A result that is pickled by itself."""

    __slots__ = ()


def noted_sealed_item(item: tuple[str, str]) -> str:
    """As `noted_item`."""
    return Name(noted_item(item))


def noted_tree(log: str, name: str, depth: int) -> int:
    """Count the nodes of a tree, each a child; joined oldest first, so that joins wait."""
    noted(log, name)
    if not depth:
        time.sleep(0.001)
        return 1
    children = [mpsched.spawn(noted_tree, log, f"{name}.{n}", depth - 1) for n in range(WIDE)]
    return 1 + sum(child.join() for child in children)


def noted_large(log: str, name: str) -> bytes:
    """A result that leaves in a file."""
    noted(log, name)
    return name.encode().ljust(300_000)


def noted_failure(log: str, name: str) -> None:
    noted(log, name)
    raise ValueError(name)


def noted_death(log: str, name: str) -> None:
    noted(log, name)
    os._exit(3)


def noted_late(log: str, name: str) -> None:
    """Take longer than its limit, whatever it is asked."""
    noted(log, name, 10.0)


def noted_block(log: str, name: str) -> str:
    """Wait for something that is no child."""
    with mpsched.blocking():
        return noted(log, name, 0.03)


def noted_orphans(log: str, name: str, seconds: float) -> None:
    """End the process while children run elsewhere, if others have taken them."""
    noted(log, name)
    for n in range(WIDE):
        mpsched.spawn(noted, log, f"{name}.{n}", seconds)
    time.sleep(0.02)
    os._exit(3)


class Scene:
    """What was given to one pool, and what its tasks have noted.

    Attributes:
        deaths: how many futures may have died, each as an item or root that ran at a kill.
    """

    def __init__(self, ex: WorkStealingExecutor, folder: Path) -> None:
        self.ex = ex
        self.folder = folder
        self.log = str(folder / "log")
        Path(self.log).touch()
        self.rounds = 0
        self.futures: dict[str, Future[Any]] = {}
        self.tiny: list[Future[int]] = []
        self.prevented: set[str] = set()
        self.items: dict[str, Any] = {}
        self.deaths = 0

    # --- the work ---------------------------------------------------------------------------------

    def work(
        self,
        *,
        poison: bool = False,
        late: bool = False,
        block: bool = False,
        timed: bool = False,
        sealed: bool = False,
        orphans: float = 0.0,
    ) -> None:
        """One round of everything, and wait for it.

        Args:
            poison: One root ends its worker, so that there is something to recover from.
            late: One root takes longer than its limit, so that its worker is ended for it; another
                has one as well, and ends in time.
            block: Roots block, so that spares stand in.
            timed: Roots have a time, and workers wait for it.
            sealed: Results of items are pickled one by one.
            orphans: One root ends its worker, and its children run elsewhere for so many seconds.
        """
        self.rounds += 1
        ex, log, at = self.ex, self.log, f"r{self.rounds}"
        again = ex.options(retries=1)
        # Alone, so that others are idle and steal.
        tree = self.futures[f"{at}tree"] = again.submit(noted_tree, log, f"{at}tree", 2)
        tree.exception(DEADLINE_S)
        if orphans:
            name = f"{at}orphans"
            self.futures[name] = ex.submit(noted_orphans, log, name, orphans)
            self.deaths += 1
            self.futures[name].exception(DEADLINE_S)
        # Asked to stop while children of it are in others' hands.
        asked = self.futures[f"{at}asked"] = again.submit(noted_tree, log, f"{at}asked", 2)
        self._wait_for(f"{at}asked.0", asked)
        if asked.cancel():
            self.prevented.add(f"{at}asked")
        else:
            asked.exception(DEADLINE_S)
        # So tiny that what follows is claimed at once, and waits behind the slow one.
        self.tiny += [ex.submit(abs, -n) for n in range(30)]
        slow = self._submit(noted_slow, f"{at}slow")
        behind = [f"{at}behind{n}" for n in range(12)]
        for name in behind:
            self._submit(noted, name)
        self._wait_for(f"{at}slow", slow)
        for name in behind[::2]:
            if self.futures[name].cancel():
                self.prevented.add(name)
        for n in range(12):
            self._submit(noted, f"{at}root{n}")
        if poison:
            self._submit(noted_death, f"{at}poison")
            self.deaths += 1
        self._submit(noted_large, f"{at}large")
        self._submit(noted_failure, f"{at}failure")
        if late:
            limited = ex.options(timeout=0.05, grace=0.01)
            self.futures[f"{at}late"] = limited.submit(noted_late, log, f"{at}late")
            in_time = ex.options(timeout=DEADLINE_S)
            self.futures[f"{at}time"] = in_time.submit(noted, log, f"{at}time")
            self.deaths += 1
        if block:
            for n in range(2):
                self._submit(noted_block, f"{at}block{n}")
        if timed:
            self._timed(at)
        items = [f"{at}item{n}" for n in range(24)]
        pairs = [(log, name) for name in items]
        # In one piece, of which idle workers want a half.
        item = noted_sealed_item if sealed else noted_item
        results = ex.map(item, pairs, chunksize=24, return_exceptions=True)
        self.items |= zip(items, results, strict=True)
        for future in self.futures.values():
            future.add_done_callback(lambda _future: None)
        for name, future in self.futures.items():
            if name not in self.prevented:
                future.exception(DEADLINE_S)

    def _timed(self, at: str) -> None:
        """Some that are due one after the other; a few are cancelled about then."""
        with mpsched.Scheduler(executor=self.ex) as s:
            s._desk.own_order = True  # as with a pool of its own: nothing is handed over early else
            begin = s.now() + 0.05
            names = [f"{at}timed{n}" for n in range(16)]
            for n, name in enumerate(names):
                handle = s.schedule(name, begin + n * 0.003, 0, noted, args=(self.log, name))
                self.futures[name] = handle
            for name in names[3::4]:
                self.futures[name].exception(DEADLINE_S)
                # The one after it: it waits, lies with a worker, or has started.
                after = names[(names.index(name) + 1) % len(names)]
                if s.cancel(after):
                    self.prevented.add(after)
            for name in names:
                if name not in self.prevented:
                    self.futures[name].exception(DEADLINE_S)

    def _wait_for(self, name: str, future: Future[Any]) -> None:
        """Wait until `name` has been noted, or its future is done without."""
        wait_until(lambda: future.done() or self.runs()[f"{name}/1"], f"start of {name}")

    def _submit(self, function: Any, name: str) -> Future[Any]:
        future = self.futures[name] = self.ex.submit(function, self.log, name)
        return future

    # --- what has to be true ------------------------------------------------------------------------

    def runs(self) -> collections.Counter[str]:
        """Return how often each attempt of each root, item and child has started."""
        return collections.Counter(Path(self.log).read_text("utf-8").split())

    def check(self, struck: list[Strike]) -> None:
        """Assert that nothing was lost, nothing ran twice, and that the pool is whole again."""
        kills = [strike for strike in struck if strike.action == "kill"]
        # With the template all workers go.
        most = sum(self.ex._pool.width if k.role == "template" else 1 for k in kills)
        runs = self.runs()
        died = [name for name in self.futures if self._outcome(name, runs) == "died"]
        lost = [name for name, value in self.items.items() if value != name]
        assert all(isinstance(self.items[name], WorkerDied) for name in lost), lost
        # An item takes longer than results may lie: it dies alone, or with the one before.
        died += [f"abs {n}" for n, future in enumerate(self.tiny) if future.exception(DEADLINE_S)]
        assert len(died) + bool(lost) <= most + self.deaths, (died, lost, kills)
        assert len(lost) <= 2 * most, (lost, kills)
        for name in self.items:
            assert runs[f"{name}/1"] == 1 or name in lost, name
        self._check_counts(runs, len(kills))
        self._check_pool()

    def _outcome(self, name: str, runs: collections.Counter[str]) -> str:
        future = self.futures[name]
        assert future.done(), f"{name} has no end"
        # Who was killed between RUNNING and the call runs in its second attempt alone.
        ran = runs[f"{name}/1"] or runs[f"{name}/2"]
        if name in self.prevented:
            assert not ran, f"{name} was prevented, and ran"
            return "prevented"
        if future.cancelled():
            raise AssertionError(f"{name} was cancelled by nobody: {CancelledError}")
        error = future.exception(0)
        if isinstance(error, WorkerDied):
            return "died"
        if isinstance(error, TaskTimeout):
            assert "late" in name, f"{name}: {error!r}"
            return "late"
        assert ran == 1, f"{name} ran {ran} times"
        if "asked" in name and isinstance(error, TaskCancelled):
            return "cancelled"
        if "failure" in name:
            assert isinstance(error, ValueError), error
            return "failed"
        assert error is None, f"{name}: {error!r}"
        value = future.result(0)
        expected: Any = name
        if "tree" in name or "asked" in name:
            expected = TREE
        elif "large" in name:
            expected = name.encode().ljust(300_000)
        assert value == expected, f"{name} gave {value!r:.80}"
        return "value"

    def _check_counts(self, runs: collections.Counter[str], kills: int) -> None:
        """Each attempt once; of a tree, a child may be called again for each thief that died."""
        for attempt, count in runs.items():
            most = 1 + kills + self.deaths if "." in attempt else 1
            assert count <= most, f"{attempt} ran {count} times"

    def _check_pool(self) -> None:
        inner: Any = self.ex._pool
        dispatcher = inner.dispatcher
        wait_until(lambda: not dispatcher.inflight and not dispatcher.moving(), "nothing in flight")
        wait_until(lambda: not inner.runs, "no map")
        slots = inner.supervisor._slots[: inner.width]
        wait_until(lambda: all(slot.alive and slot.ready for slot in slots), "the full width")
        meeting = self.folder / f"meeting-{self.rounds}"
        meeting.mkdir()
        # (Spares, which come and go, may be among them.)
        meet = [self.ex.submit(calls.meet, str(meeting), inner.width) for _ in slots]
        assert len({future.result(DEADLINE_S) for future in meet}) == inner.width
        taken = wait_until(lambda: not _taken(inner) or None, "free locks")
        assert taken
        wait_until(lambda: not inner.leader.section.taken(), "a free leader's section")
        wait_until(lambda: not dispatcher.section.taken(), "a free dispatcher's section")

        def swept() -> bool:
            inner.ring()  # so that the supervisor looks after what was left
            return not inner.entries.in_use()

        wait_until(swept, "free entries")


def _taken(inner: Any) -> list[int]:
    """Return which locks of a pool are held by another process: F_GETLK, which takes none."""
    import fcntl
    import struct

    form = "hhqqi4x"  # l_type, l_whence, l_start, l_len, l_pid
    held = []
    for index in range(2 * inner.layout.workers):
        asked = struct.pack(form, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        kind, *_ = struct.unpack(form, fcntl.fcntl(inner.locks.fd, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            held.append(index)
    return held
