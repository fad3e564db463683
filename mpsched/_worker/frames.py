"""Room for the frames of deep recursions. See README.md, "Fork-join", *Depth*."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS: Final = 1 << 20
"""8 MiB of address space, and what the interpreter doubles it to: as much again for who is called."""


def _call(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*args)


def roomy(fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)`; Python frames below it, some ten thousand, lie in one piece of memory.

    CPython keeps frames in pieces of 16 KiB, of which it maps one when a call does not fit into the last
    and unmaps it when that call returns. So a function some hundred frames deep that happens to call at
    the end of a piece pays 10 to 30 us for each call, 300 times what a call costs. A frame that says it
    needs more gets a piece of that size, twice, and the frames of all that it calls lie behind it. Only
    what is touched becomes memory.
    """
    try:
        _spacious(_nothing, ())
    except MemoryError:  # an address space with a limit
        return fn(*args)
    return _spacious(fn, args)


def _nothing() -> None:
    pass


_spacious: Final = types.FunctionType(
    _call.__code__.replace(co_stacksize=_WORDS), globals(), "_spacious"
)
