"""What every worker must know: sent once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpsched.cli.func import FuncRef

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an item becomes a call, and a value becomes an answer. Pickled; see README.md, "Calling"."""

    func: FuncRef
    init: FuncRef | None = None
    reduce: FuncRef | None = None
    form: str = "text"
    """text, batch, block or kwargs."""
    convert: str = "text"
    """What the first parameter gets: text, path, int, float, dict, content or line."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """The values of `--arg`, converted."""
    paths: frozenset[str] = frozenset()
    """With `--kwargs`: the parameters annotated `Path`."""
    capture: bool = False
    suffix: str | None = None
    """With `--out-dir`: the suffix asked for; None: by the value's type."""
    error_attempts: int = 1
    """An exception is an error row from this attempt on; before it, it is tried again."""
