"""In which order what a bundle consists of is loaded. See README.md, "Protocol: pickling a bundle"."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

_K = TypeVar("_K", bound="Hashable")


def needed_first(roots: Iterable[_K], needs: Mapping[_K, Iterable[_K]]) -> list[_K]:
    """Return the roots and what they need, each behind all that it needs itself.

    Where some need each other, the one that was met first comes last of them. Without recursion:
    functions that name each other may be a long chain.

    Complexity:
        Linear.
    """
    ordered: list[_K] = []
    met: set[_K] = set()
    done: set[_K] = set()
    for root in roots:
        open_ = [root]
        while open_:
            key = open_[-1]
            if key not in met:
                met.add(key)
                below = [one for one in needs.get(key, ()) if one not in met]
                if below:
                    below.reverse()  # the first is next
                    open_ += below
                    continue
            # Nothing that it needs is open above it. A second time: it was met below another one.
            del open_[-1]
            if key not in done:
                done.add(key)
                ordered.append(key)
    return ordered
