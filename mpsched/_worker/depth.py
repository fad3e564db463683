"""How deep joins may nest. See README.md, "Depth"."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

from mpsched.errors import RecursionTooDeep

if TYPE_CHECKING:
    from types import FrameType

STACK_BYTES: Final = 112 << 20
"""Soft limit of the stack while a root forks.

The most that is safe: the kernel keeps 128 MiB free below the stack of a fresh program, whatever the
limit was then.
"""

FRAMES: Final = 30_500
"""Recursion limit while a root forks: what such a stack holds of C recursion on 3.11, with room to spare."""

MANY: Final = 50
"""Joins in a nest from which on a RecursionError is the nest's, and not that of one function."""

_before: tuple[int, tuple[int, int] | None, int] | None = None


def raise_limits() -> None:
    """Make room for a deep nest, where the system allows it. Main thread; undone by `restore`."""
    global _before
    if _before is not None:
        return
    stack_before = None
    frames = FRAMES
    try:
        import resource
    except ImportError:  # no such limits here: the interpreter's own is all that can be raised
        frames = sys.getrecursionlimit()
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        unlimited = resource.RLIM_INFINITY
        wanted = STACK_BYTES if hard == unlimited else min(STACK_BYTES, hard)
        if soft != unlimited and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
            except (OSError, ValueError):
                wanted = soft
            else:
                stack_before = (soft, hard)
        # A smaller stack holds in proportion fewer.
        frames = int(
            FRAMES * min(1.0, (wanted if soft == unlimited else max(soft, wanted)) / STACK_BYTES)
        )
    # The recursion limit is that of all threads, so those that start meanwhile get such a stack too.
    _before = sys.getrecursionlimit(), stack_before, threading.stack_size(STACK_BYTES)
    sys.setrecursionlimit(max(frames, _before[0]))


def restore() -> None:
    """Put back what `raise_limits` found."""
    global _before
    if _before is None:
        return
    frames, stack_before, thread_stack = _before
    _before = None
    threading.stack_size(thread_stack)
    if stack_before is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_STACK, stack_before)
    # Cannot be too low: the nest is gone.
    sys.setrecursionlimit(frames)


def explained(problem: BaseException) -> BaseException:
    """Return `problem`, or a RecursionTooDeep in place of a RecursionError of a nest of joins."""
    if not isinstance(problem, RecursionError) or isinstance(problem, RecursionTooDeep):
        return problem
    joins = nested_joins(sys._getframe())
    return too_deep(problem, joins) if joins >= MANY else problem


def nested_joins(frame: FrameType | None) -> int:
    """Count the joins among a frame and those below it."""
    from mpsched._worker import hot

    # What `Handle.join` is, and what the futures of children call, whoever calls them; `join_all`.
    codes = {hot._join.__code__}  # noqa: SLF001
    futures = sys.modules.get("mpsched._worker.forkfuture")
    if futures is not None:
        codes.add(futures._join.__code__)  # noqa: SLF001
    together = sys.modules.get("mpsched._worker.together")
    if together is not None:
        codes.add(together.join_all.__code__)
    joins = 0
    while frame is not None:
        joins += frame.f_code in codes
        frame = frame.f_back
    return joins


def too_deep(problem: BaseException, joins: int = 0) -> RecursionTooDeep:
    """Return the error that replaces a RecursionError of a nest of joins."""
    count = f"{joins:,} joins" if joins else "joins"
    error = RecursionTooDeep(
        f"{count} are nested in one another, and the stack ends there (recursion limit "
        f"{sys.getrecursionlimit():,}). Let small subproblems be plain calls (a grain), split into "
        "halves instead of one by one, or make the function a generator with @mpsched.resumable, which "
        "suspends instead of nesting"
    )
    error.__cause__ = problem
    return error
