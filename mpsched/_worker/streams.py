"""Random streams: in a root with `options(rng=...)` each child has its own. See README.md, "Streams"."""

# ruff: noqa: SLF001 - the stream of a context belongs to this module and to the context
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from mpsched._worker import context, long
from mpsched._worker.context import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpsched._worker.context import TaskContext


def seeded(task: TaskContext | None) -> TaskContext | None:
    """Return `task` if it has a stream that its children's depend on; else None."""
    return task if task is not None and task._stream.key is not None else None


def of_caller() -> TaskContext | None:
    """Return the task that the caller is, if its children's streams depend on its own; else None.

    A thread of a task is not the task: what it spawns has a place in no order.
    """
    return seeded(context.current_task() if long.in_task() else context.task_here())


@contextlib.contextmanager
def apart(task: TaskContext) -> Iterator[None]:
    """Let what happens inside change nothing in the task's own stream."""
    before, task._stream = task._stream, Stream(task._stream.key)
    try:
        yield
    finally:
        task._stream = before


def each(items: Iterable[Any], key: str, first: int) -> Iterator[Any]:
    """Yield items, each while the caller has the stream that belongs to its index."""
    task = of_caller()
    assert task is not None, "who has a key has a task"
    streams = Stream(key)
    for number, item in enumerate(items, first):
        task._stream = Stream(streams.key_of(number))
        yield item


def next_key(task: TaskContext) -> str:
    """Return the key of the next child of `task`."""
    return task._stream.next_key()


def wrap(
    task: TaskContext, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the argument of `in_stream` for the next child of `task`."""
    return task._stream.next_key(), fn, args, kwargs


def in_stream(call: tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> Any:
    """Stand for a function in the handle of a child that has a stream of its own."""
    key, fn, args, kwargs = call
    task = context.current_task()
    assert task is not None, "a child runs in a task"
    before, task._stream = task._stream, Stream(key)
    try:
        # One argument without a C frame in between.
        return fn(args[0]) if len(args) == 1 and not kwargs else fn(*args, **kwargs)
    finally:
        task._stream = before  # no call: there may be no room on the stack for one
