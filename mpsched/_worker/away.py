"""A child that is not private: its record, and how it ends.

See README.md, "Fork-join", and `_deque`, "Split deque". What is here needs one process only; waiting for
what another worker has is `awaiting`.
"""

# ruff: noqa: SLF001 - the slots of a handle belong to all of fork-join, and to nobody else
from __future__ import annotations

import contextlib
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, final

from mpsched._tasks import failure
from mpsched._worker import depth, hot, signals
from mpsched._worker.hot import NOTHING, Floor, _done, pop, stack
from mpsched.errors import TaskCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpsched._worker.hot import Handle

THREADED: Final = 0  #   a thread of the task runs it
PUBLISHING: Final = 1  # off the stack, in the hands of the thread that pickles it
PUBLISHED: Final = 2  #  it has an entry, whose state word tells the rest
PINNED: Final = 3  #     off the stack, and cannot be pickled: it runs here
INLINE: Final = 4  #     its call runs on this worker's stack
FETCHED: Final = 5  #    ended elsewhere; `value` is its outcome, not unpickled yet
DONE: Final = 6
FAILED: Final = 7

fork_lock = threading.RLock()
"""Guards kinds, serials and the stack's left end, between the main and the helper thread.

Re-entrant, for finalizers and signal handlers that spawn or join inside a section; so each section leaves
the records consistent at each of its lines. Never held while the user's code runs.
"""

opened: Final[list[Away]] = []
"""What left the stack on the left and whose end nobody has been told yet; ascending serials."""


@final
class Away:
    """The record in the function slot of a handle that is not plain. To call it is to join it.

    Attributes:
        kind: one of the constants above; changed under `fork_lock`, or by the thread that runs it.
        serial: 1, 2, 3 ... in the order in which children left the stack on the left; 0: it did not.
        entry: handle of its entry in the task table while it is PUBLISHED; `ident`: that entry's.
        told: whether its failure was raised somewhere.
        repeated: whether it was called again because a thief had died.
        held: what has to live until the thief has read the frame.
    """

    __slots__ = (
        "entry",
        "error",
        "fn",
        "held",
        "ident",
        "kind",
        "repeated",
        "rest",
        "serial",
        "told",
        "value",
        "x",
    )

    def __init__(
        self,
        kind: int,
        fn: Callable[..., Any] | None = None,
        x: Any = NOTHING,
        rest: tuple[Any, ...] = (),
    ) -> None:
        self.kind = kind
        self.fn = fn
        self.x = x
        self.rest = rest
        self.serial = 0
        self.entry = -1
        self.ident = 0
        self.value: Any = None
        self.error: BaseException | None = None
        self.told = False
        self.repeated = False
        self.held: object = None

    def __call__(self, _x: object) -> Any:
        return self.outcome()

    def outcome(self) -> Any:
        """Wait for the end, or run it here; return the value or raise the error."""
        if self.kind == PUBLISHED and take_plain(self):
            return self.value
        with fork_lock:
            kind = self.kind
            if kind in {PUBLISHING, PINNED}:
                # Whoever pickles it sees that, and forgets the pickle.
                self.kind = INLINE
        if kind in {PUBLISHING, PINNED}:
            self.run()
        elif kind in {PUBLISHED, FETCHED}:
            wait(self)
        elif kind == THREADED:
            while self.kind == THREADED:
                time.sleep(0.000_5)
        elif kind == INLINE:
            raise RuntimeError(
                "a child is joined while it runs, from itself or from its own children: that could "
                "never end. Only the task that spawned a child may join it"
            )
        return self.tell()

    def tell(self) -> Any:
        """Return the value, or raise the error, of one that has ended."""
        self.told = True
        self.close()
        if self.error is not None:
            raise self.error
        return self.value

    def close(self) -> None:
        """Take it off the list of those that somebody has to wait for."""
        if self.serial:
            with fork_lock, contextlib.suppress(ValueError):
                opened.remove(self)

    def run(self) -> None:
        """Call the function here, and finish what it leaves open; the kind says INLINE already.

        An error becomes the outcome. (Only the end of the stack may come out of here: then whoever
        is further up has room to clear away what is open.)
        """
        fn, x, rest = self.fn, self.x, self.rest
        assert fn is not None
        below = None
        held = signals.held()
        try:
            below = newest()
            if held:
                signals.release()  # not while the task's own code runs
            value = fn(x, *rest) if rest else fn(x)
            if held:
                signals.hold()
        except BaseException as problem:
            # Stores first: there may be no room on the stack for a call.
            self.error, self.kind = problem, FAILED
            self.fn, self.x, self.rest, self.held = None, NOTHING, (), None
            if held:
                signals.hold()
            if below is not None:
                self.error = ended_by(problem, below)
        else:
            try:
                clean = stack[-1] is below
            except IndexError:  # as in `newest`
                clean = False
            failures = None if clean else leftover(below)
            if failures:
                self.fail(first_of(failures))
            else:
                self.succeed(value)

    def succeed(self, value: Any) -> None:
        """Say that it ended with `value`."""
        self.fn, self.x, self.rest, self.held = None, NOTHING, (), None
        self.value = value
        self.kind = DONE

    def fail(self, problem: BaseException) -> None:
        """Say that it ended with `problem`."""
        self.fn, self.x, self.rest, self.held = None, NOTHING, (), None
        self.error = problem
        self.kind = FAILED


def _wait_in_vain(record: Away) -> None:
    raise RuntimeError(
        "this process was forked off a worker, and has no part in what the worker's other children "
        "do; join them in the task that spawned them"
    )


wait: Callable[[Away], None] = _wait_in_vain
"""Wait for the end of a record that is PUBLISHED or FETCHED; `awaiting` puts its own here in a worker."""


def _not_plain(_record: Away) -> bool:
    return False


take_plain: Callable[[Away], bool] = _not_plain
"""End a PUBLISHED record whose outcome is there and a value of a plain type, as `tell` would; else False. As `wait`."""

published_is_done: Callable[[Away], bool] = lambda _record: False  # noqa: E731 - replaced as `wait` is
"""Whether a PUBLISHED record's outcome is there."""


def _stay(record: Away) -> int:
    return record.kind


advance: Callable[[Away], int] = _stay
"""Follow the state word of a PUBLISHED record, `fork_lock` held. As `wait`."""


def _never() -> bool:
    return False


is_cancelled: Callable[[], bool] = _never
"""Whether the root that runs was asked to stop. As `wait`."""


def _nothing_published(_record: Away, _why: BaseException) -> bool:
    return False


cancel_published: Callable[[Away, BaseException], bool] = _nothing_published
"""Prevent the start of a PUBLISHED child, or ask it to stop; False if it has ended. As `wait`."""


# --- joining ------------------------------------------------------------------------------------------


def join(handle: Handle[Any]) -> Any:
    """Join a child that is not the newest, or not private. Main thread."""
    fn = handle._fn
    if type(fn) is Away:  # which it stays
        return fn.outcome()
    record, fresh = _recorded(handle, INLINE)
    if record is None:
        return handle._x
    if not fresh:
        return record.outcome()
    record.run()
    return record.tell()


def _recorded(handle: Handle[Any], kind: int) -> tuple[Away | None, bool]:
    """Return the record of a handle, and whether it was made now, of that kind; None: it is done."""
    with fork_lock:
        fn = handle._fn
        if fn is _done:
            return None, False
        if type(fn) is Away:
            return fn, False
        # It is on the stack, or popped by the caller a moment ago.
        record = handle._fn = Away(kind, fn, handle._x, handle._rest)
        handle._x, handle._rest = NOTHING, ()
        return record, True


def join_in_thread(handle: Handle[Any]) -> Any:
    """Join a child of the task in another thread of it.

    It is run here if nobody has begun it; what it spawns runs at once then. No stack is touched.
    """
    record, _ = _recorded(handle, PINNED)
    if record is None:
        return handle._x
    while record.kind < DONE:
        with fork_lock:
            if record.kind == PUBLISHED:
                advance(record)
            kind = record.kind
            if kind in {PUBLISHING, PINNED}:
                record.kind = THREADED
        if kind in {PUBLISHING, PINNED}:
            _run_in_thread(record)
        elif kind == FETCHED:
            wait(record)
        else:
            time.sleep(0.000_5)  # it runs: on the task's stack, in another thread, or elsewhere
    return record.tell()


def _run_in_thread(record: Away) -> None:
    fn, x, rest = record.fn, record.x, record.rest
    assert fn is not None
    try:
        # In no task's main thread: an eager child.
        value = hot.outside(fn, (x, *rest), {}).join()
    except BaseException as problem:
        record.fail(problem)
    else:
        record.succeed(value)


def finish(handle: Handle[Any], below: object) -> None:
    """Finish what a child that has returned left open; its value is in the handle already.

    Raises:
        BaseException: The first failure among those, which is the child's from now on.
    """
    failures = leftover(below)
    if failures:
        problem = first_of(failures)
        _keep_failure(handle, problem)
        raise problem


def failed(handle: Handle[Any], problem: BaseException, below: object) -> None:
    """Finish what a child that has raised left open. Returns if the caller has to raise `problem`.

    Raises:
        RecursionTooDeep: Instead of a RecursionError.
    """
    _keep_failure(handle, problem)
    final = ended_by(problem, below)
    if final is not problem:
        _keep_failure(handle, final)
        raise final from problem


def _keep_failure(handle: Handle[Any], problem: BaseException) -> None:
    record = Away(FAILED)
    record.error = problem
    record.told = True
    handle._fn, handle._x, handle._rest = record, NOTHING, ()


# --- what a task left open ----------------------------------------------------------------------------


def newest() -> object:
    """Return the stack's newest entry, at least a Floor. Main thread."""
    try:
        return stack[-1]
    except IndexError:
        with fork_lock:  # the helper has the floor in its hand, or nobody has it any more
            return top()


def top() -> Any:
    """Return the stack's newest entry, at least a Floor, which is put back if it is lost.

    A join has the Floor in its hand for a moment, and a signal handler that raises there takes it along.
    Main thread, `fork_lock` held.
    """
    if not stack:
        if _leaving:
            return _NO_FLOOR  # a finalizer or signal handler in the middle of `leave`
        stack.appendleft(Floor(_serial))
    return stack[-1]


def leftover(below: object, *, run: bool = True) -> list[BaseException]:
    """Finish what a task left open that began when `below` was the newest entry.

    Private children first, newest first, without a search; then what is away (`_deque`, Leftover).

    Args:
        below: The entry.
        run: Whether private children are run; else they are dropped, as after a RecursionError, where
            each would run into the end of the stack again.

    Returns:
        The failures that nobody was told of, in the order of the spawns.
    """
    dropped: BaseException | None = None
    private: list[BaseException] = []
    away: list[BaseException] = []
    _refuse_a_stranger(below)
    while True:
        record = None
        with fork_lock:
            last = top()
            if last is below or last is _NO_FLOOR:
                break
            if type(last) is Floor:
                record = _oldest_after(_serial_of(below))
                if record is None:
                    break
            elif type(last._fn) is Away and last._fn.kind == THREADED:
                record = last._fn
            elif (problem := _drop_stale(last)) is not NOTHING:
                if problem is not None:
                    private.append(problem)
                continue
        if record is None or record.kind in {PINNED, PUBLISHING}:
            if run and is_cancelled():
                # Nothing more begins in a root that was asked to stop.
                run, dropped = (
                    False,
                    TaskCancelled("the task was asked to stop before its children ran"),
                )
            if not run:
                why = dropped or RecursionError("its parent ran into the end of the stack")
                cancel(last if record is None else record, why)
                continue
        try:
            if record is None:
                last.join()
            else:
                record.outcome()
        except BaseException as problem:
            (private if record is None else away).append(problem)
            # Else what is left would run into the end of the stack once more, again and again.
            run = run and not isinstance(problem, RecursionError)
    private.reverse()
    failures = away + private
    if dropped is not None and not failures:
        failures.append(dropped)
    return failures


def _drop_stale(last: Any) -> Any:
    """Pop `last`, the newest, if it is not plain; return its untold error or None; else NOTHING."""
    fn = last._fn
    if fn is _done:
        pop()
        return None
    if type(fn) is not Away:
        return NOTHING
    pop()
    if fn.kind == FAILED and not fn.told:
        fn.told = True
        return fn.error
    return None


def _serial_of(below: object) -> int:
    if type(below) is Floor:
        return below.serial
    fn = below._fn  # type: ignore[attr-defined]  # what is not a Floor is a Handle
    serial: int = fn.serial if type(fn) is Away else 0
    return serial


def _refuse_a_stranger(below: object) -> None:
    """Raise if somebody has joined `below` who had not spawned it: then nobody knows whose is what."""
    if type(below) is Floor or _serial_of(below):
        return
    with fork_lock:
        if _serial_of(below):
            return
        for entry in reversed(stack):
            if entry is below:
                return
    raise RuntimeError(
        "a child was joined by a task that had not spawned it; only the task that spawned a child may "
        "join it"
    )


def _oldest_after(serial: int) -> Away | None:
    for record in opened:
        if record.serial > serial:
            return record
    return None


def ended_by(problem: BaseException, below: object) -> BaseException:
    """Finish what a task left open that has raised; return what its error is."""
    too_deep = isinstance(problem, RecursionError)
    problem = depth.explained(problem)
    others = leftover(below, run=not too_deep)
    return failure.with_siblings(problem, [o for o in others if not isinstance(o, TaskCancelled)])


def first_of(failures: list[BaseException]) -> BaseException:
    """Return the first failure, the others attached to it."""
    return failure.with_siblings(depth.explained(failures[0]), failures[1:])


_serial = 0
_leaving = 0
"""Ident of the thread that has the floor in its hand."""

_NO_FLOOR: Final = Floor(1 << 62)
"""Nothing has left after it."""


# --- leaving the stack on the left --------------------------------------------------------------------


def leave() -> Away | None:
    """Take the oldest private child off the stack; it is PUBLISHING then. `fork_lock` held.

    Returns None if there is none.
    """
    global _leaving, _serial
    _leaving = get_ident()
    floor: Any = None
    try:
        while True:
            try:
                floor = stack.popleft()
            except IndexError:
                return None  # the main thread has the floor in its hand, and nothing else is there
            if type(floor) is not Floor:  # as in `top`
                stack.appendleft(floor)
                floor = Floor(_serial)
            _serial = floor.serial
            try:
                record, plain = _take_oldest()
            finally:
                # Also where a signal handler has raised: without a Floor nothing works any more.
                stack.appendleft(floor if _serial == floor.serial else Floor(_serial))
            if record is None or plain:
                return record
    finally:
        _leaving = 0


def _take_oldest() -> tuple[Away | None, bool]:
    """Take what is oldest off the stack; return (its record, whether it was plain)."""
    global _serial
    handle: Any = None
    try:
        # (One that was put back while a finalizer ran in the middle of a join is there twice.)
        while handle is None or type(handle) is Floor:
            handle = stack.popleft()
    except IndexError:
        return None, False
    _serial += 1
    fn = handle._fn
    plain = False
    if type(fn) is Away:
        record = fn
    elif fn is _done:
        record = Away(DONE)
        record.value = handle._x
    else:
        plain = True
        record = Away(PUBLISHING, fn, handle._x, handle._rest)
    # It may be what somebody remembers as `below`: so it gets a serial, whatever it is.
    record.serial = _serial
    if plain or (record.kind == FAILED and not record.told):
        opened.append(record)
    handle._fn, handle._x, handle._rest = record, NOTHING, ()
    return record, plain


def cancel(child: Handle[Any] | Away, why: BaseException) -> bool:
    """End a child that has not started, with `why` as its error; True if it never will.

    A PUBLISHED one is not for this function.
    """
    with fork_lock:
        record = child if type(child) is Away else child._fn
        if record is _done:
            return False
        if type(record) is Away:
            if record.kind not in {PUBLISHING, PINNED}:
                return False
        else:
            record = Away(PINNED)
            child._fn, child._x, child._rest = record, NOTHING, ()  # type: ignore[union-attr]
        record.fail(why)
        record.told = True
    record.close()
    return True


def forget() -> None:
    """Forget all children; in a process that was forked off a worker."""
    global fork_lock, wait, take_plain, published_is_done, cancel_published
    global advance, is_cancelled, _serial
    # The helper thread, which is not in this process, may have held it.
    fork_lock = threading.RLock()
    stack.clear()
    stack.append(Floor(0))
    _serial = 0
    opened.clear()
    wait, take_plain, published_is_done = _wait_in_vain, _not_plain, lambda _record: False
    cancel_published, advance, is_cancelled = _nothing_published, _stay, _never
    hot.careful, hot.forking = True, False


# --- telling of handles -------------------------------------------------------------------------------


def is_done(handle: Handle[Any]) -> bool:
    """Whether a child has ended."""
    fn = handle._fn
    if type(fn) is not Away:
        return fn is _done
    return fn.kind >= FETCHED or (fn.kind == PUBLISHED and published_is_done(fn))


def is_elsewhere(handle: Handle[Any]) -> bool:
    """Whether a child that has not ended was given to others."""
    fn = handle._fn
    return type(fn) is Away and fn.kind == PUBLISHED and not published_is_done(fn)
