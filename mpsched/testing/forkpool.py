"""Recursive code under a schedule that a seed decides.

`ForkPool` runs recursive code in this process, under a schedule that a seed decides: children run at
once, later or at their join, on their own arguments or on copies, as they would in a real pool. A test
over some seeds finds code that relies on an order, or on a child changing what it was given:

    >>> import mpsched
    >>> def fib(n):
    ...     if n < 2:
    ...         return n
    ...     first = mpsched.spawn(fib, n - 1)
    ...     return fib(n - 2) + first.join()
    >>> {ForkPool(seed).run(fib, 10) for seed in range(20)}
    {55}
"""

from __future__ import annotations

import enum
import random
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from mpsched import forkjoin
from mpsched._tasks import codec
from mpsched._tasks.failure import with_siblings
from mpsched._worker import contract, depth, hot
from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched.forkjoin import Handle

__all__ = ["ForkPool"]

T = TypeVar("T")

_IN_BAND: Final = 1 << 62

_THIEVES: Final = 3  # at work at the same time: each is nested in what the others interrupted


@final
class ForkPool:
    """A pool without workers whose schedule depends on a seed alone.

    At each spawn and join a waiting child may be "stolen": then it runs there and then, on a pickled
    copy of its arguments, and its result is pickled as well. What nobody steals runs at its join. The
    same seed gives the same schedule; globals are shared, which real workers do not.

    Attributes:
        stolen: children that ran on copies, in the last `run`.
        spawned: children in the last `run`.
    """

    def __init__(self, seed: int = 0, *, steals: float = 0.3) -> None:
        """Choose a schedule.

        Args:
            seed: Which.
            steals: How likely a child is stolen at each spawn and join, from 0 (never: plain
                recursion, each child at its join) to 1 (each at its spawn).
        """
        if not 0 <= steals <= 1:
            raise ValueError(f"steals is a probability from 0 to 1, not {steals!r}")
        self.seed = seed
        self.stolen = self.spawned = 0
        self._steals = steals
        self._rng = random.Random(seed)  # noqa: S311 - for a schedule, not for secrets
        self._waiting = _Waiting()
        self._task: list[_Child] | None = None  # the open children of the one that runs
        self._thieves = 0
        self._running = False

    def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return `fn(*args, **kwargs)`; what it spawns is scheduled as the seed says.

        Raises:
            ArgumentChanged: A child that was stolen has changed an argument, which nobody will see.
            RuntimeError: This pool runs something already.
            BaseException: What a pool would raise.
        """
        if self._running:
            raise RuntimeError("this ForkPool runs something already; make another one")
        self._running = True
        self._rng.seed(self.seed)
        self.stolen = self.spawned = 0
        before = _active.pool
        _active.pool = self
        # The limits are the main thread's; other threads have their own small stacks.
        deep = before is None and threading.current_thread() is threading.main_thread()
        if deep:
            depth.raise_limits()
        try:
            result: T = self._call(fn, args, kwargs)
            return result
        finally:
            _active.pool = before
            if deep:
                depth.restore()
            self._waiting = _Waiting()
            self._running = False

    def _spawn(
        self, siblings: list[_Child], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Handle[Any]:
        child = _Child(self, fn, args, kwargs)
        self.spawned += 1
        siblings.append(child)
        self._waiting.append(child)
        self._maybe_steal()
        return hot.foreign(child)

    def _maybe_steal(self) -> None:
        """Let somebody be idle, perhaps: it takes a waiting child, mostly the oldest."""
        if not self._waiting or self._thieves == _THIEVES or self._rng.random() >= self._steals:
            return
        waiting = self._waiting
        child = waiting.oldest() if self._rng.random() < 0.7 else waiting.any_of(self._rng)
        self._thieves += 1
        try:
            child.steal()
        finally:
            self._thieves -= 1

    def _call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        """Call a task, and finish what it leaves open."""
        before = self._task
        mine: list[_Child] = []
        self._task = mine
        try:
            try:
                value = fn(*args, **kwargs)
            except BaseException as problem:
                with_siblings(problem, self._leftover(mine))
                raise
            failures = self._leftover(mine)
        finally:
            self._task = before
        if failures:
            raise with_siblings(failures[0], failures[1:])
        return value

    @staticmethod
    def _leftover(children: list[_Child]) -> list[BaseException]:
        """Run what is still waiting, newest first; return the failures that nobody has read."""
        failures: list[BaseException] = []
        # One at a time, and kept no longer: what runs may spawn another one here, and so may the
        # finalizer of anything that a child holds.
        while children:
            child = children.pop()
            child.finish()
            if child.error is not None and not child.read:
                failures.append(child.error)
            del child
        failures.reverse()
        return failures


@final
class _Waiting:
    """Children that nobody has begun, in the order of their spawns.

    They leave from anywhere: so who has left stays in the list, until more than half are such.
    """

    __slots__ = ("_children", "_count", "_first")

    def __init__(self) -> None:
        self._children: list[_Child] = []
        self._first = 0  # what stands before it has left
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, child: _Child) -> None:
        self._children.append(child)
        self._count += 1

    def leave(self, child: _Child) -> None:
        """Note that a child does not wait any more; its phase says so."""
        assert child.phase is not _Phase.WAITING
        self._count -= 1
        if len(self._children) > 2 * self._count:
            self._children = [one for one in self._children if one.phase is _Phase.WAITING]
            self._first = 0

    def oldest(self) -> _Child:
        """Return the oldest; there must be one."""
        while self._children[self._first].phase is not _Phase.WAITING:
            self._first += 1
        return self._children[self._first]

    def any_of(self, rng: random.Random) -> _Child:
        """Return one, each as likely; there must be one."""
        while True:
            child = self._children[rng.randrange(self._first, len(self._children))]
            if child.phase is _Phase.WAITING:
                return child


class _Active(threading.local):
    pool: ForkPool | None = None


_active = _Active()


def _outside(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle[Any]:
    """Spawn where no task of a worker runs: in the test's pool if this thread is in its `run`."""
    pool = _active.pool
    siblings = None if pool is None else pool._task
    if pool is None or siblings is None:  # a finalizer, before the run's function or after it
        return forkjoin.outside(fn, args, kwargs)
    return pool._spawn(siblings, fn, args, kwargs)


hot.outside = _outside


class _Phase(enum.Enum):
    """Where a child is."""

    WAITING = enum.auto()  # anybody may take it
    COPYING = enum.auto()  # a thief pickles it; a `__reduce__` may spawn, and even join it
    PINNED = enum.auto()  #  it cannot be pickled: nobody takes it, it runs at its join
    RUNNING = enum.auto()
    OVER = enum.auto()


_ALLOWED: Final = {
    _Phase.WAITING: {_Phase.COPYING, _Phase.RUNNING, _Phase.OVER},
    _Phase.COPYING: {_Phase.PINNED, _Phase.RUNNING, _Phase.OVER},
    _Phase.PINNED: {_Phase.RUNNING, _Phase.OVER},
    _Phase.RUNNING: {_Phase.OVER},
    _Phase.OVER: set(),
}

_UNSTARTED: Final = frozenset({_Phase.WAITING, _Phase.COPYING, _Phase.PINNED})


@final
class _Child(hot.Foreign):
    """A child in a `ForkPool`."""

    __slots__ = ("args", "error", "fn", "kwargs", "phase", "pool", "read", "value")

    @property
    def told(self) -> bool:
        return self.read

    def __init__(self, pool: ForkPool, fn: Any, args: Any, kwargs: Any) -> None:
        self.pool = pool
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.phase = _Phase.WAITING
        self.read = False
        self.value: Any = None
        self.error: BaseException | None = None

    def outcome(self) -> Any:
        if self.phase is not _Phase.OVER:
            self.pool._maybe_steal()  # perhaps this one
        self.finish()
        if self.error is not None:
            self.read = True
            raise self.error
        return self.value

    def done(self) -> bool:
        return self.phase is _Phase.OVER

    def cancel(self) -> None:
        if self.phase in _UNSTARTED:
            self._enter(_Phase.OVER)
            self.error = TaskCancelled("it was cancelled before it started")
            self.read = True

    def finish(self) -> None:
        """Run it on its own arguments, if it has not run yet."""
        if self.phase is _Phase.OVER:
            return
        if self.phase is _Phase.RUNNING:
            raise RuntimeError("a child is joined while it runs, from itself or from its children")
        self._run(self.fn, self.args, self.kwargs)

    def steal(self) -> None:
        """Run it on copies; not if they cannot be made: then it runs at its join."""
        self._enter(_Phase.COPYING)
        fn, args, kwargs = contract.prepare(self.fn, self.args, self.kwargs)
        if self.phase is not _Phase.COPYING:
            return  # a `__reduce__` has joined or cancelled it
        if fn is not contract.on_copy:
            self._enter(_Phase.PINNED)
            return
        self.pool.stolen += 1
        self._run(fn, args, kwargs)
        if self.error is None:
            self._send_back()

    def _send_back(self) -> None:
        try:
            self.value = codec.decode(*codec.encode(self.value, threshold=_IN_BAND))
        except Exception as error:  # a real pool raises it at the join
            self.error = error

    def _run(self, fn: Any, args: Any, kwargs: Any) -> None:
        self._enter(_Phase.RUNNING)
        self.fn = self.args = self.kwargs = None  # as in a pool: it keeps nothing that it was given
        try:
            self.value = self.pool._call(fn, args, kwargs)
        except KeyboardInterrupt:
            raise  # of the user at the keyboard
        except BaseException as error:
            self.error = error
        finally:
            self._enter(_Phase.OVER)

    def _enter(self, phase: _Phase) -> None:
        before = self.phase
        assert phase in _ALLOWED[before], f"{before} -> {phase}"
        self.phase = phase
        if before is _Phase.WAITING:
            self.pool._waiting.leave(self)
