"""Keyword arguments that a function does not have: an error that names the one that was meant.

See README.md, "Keywords".
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

P = ParamSpec("P")
T = TypeVar("T")


def unknown(
    what: str, key: str, known: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> TypeError:
    """Return the error for a keyword that is none of those that are known.

    Args:
        what: what was called, and what it calls its keywords: "f() got an unexpected keyword argument".
        key: the one that it was given.
        known: those that there are, in the order in which they are listed.
        elsewhere: keywords that belong to another call, and how to write that.
    """
    hint = (elsewhere or {}).get(key, "")
    if not hint:
        import difflib  # 2 ms of each new pool

        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{what} {key!r}{hint and '; '}{hint} (known: {', '.join(known)})")


def explained(
    name: str, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that is called `name()`, so that an unknown keyword is explained.

    Not for hot paths: one more call, and a look at each keyword.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        names = code.co_varnames[
            code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount
        ]
        known = tuple(one for one in names if one != "self")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for key in kwargs:
                if key not in known:
                    raise unknown(
                        f"{name}() got an unexpected keyword argument", key, known, elsewhere
                    )
            return function(*args, **kwargs)

        return call

    return decorate
