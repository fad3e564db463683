"""What a fork of the parent must not keep: the descriptors by which workers see the parent's end.

A program may fork itself (`os.fork`, multiprocessing's fork). Its child would hold copies: workers
would outlive the parent until the child ends as well, and the child could speak to the template.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Holder(Protocol):
    """Something with descriptors that only this process may have."""

    def let_go(self) -> None:
        """Close all descriptors and touch no process."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def watch(holder: Holder) -> None:
    """Have `holder.let_go()` called in every fork of this process, as long as it lives."""
    _holders.add(holder)


def _in_child() -> None:
    for holder in list(_holders):
        holder.let_go()
    _holders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
