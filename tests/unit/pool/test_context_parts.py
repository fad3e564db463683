"""The frame of a scheduled task, made in two parts around its version."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from mpsched._pool.calls import after_version, before_version, in_context
from mpsched._pool.options import DEFAULT

if TYPE_CHECKING:
    import random


@pytest.mark.parametrize("version", [1, 255, 2**31, 2**62])
@pytest.mark.parametrize(
    "who",
    [(1,), (None,), ("a" * 300,), (b"\x8a\x08.t",), ((1, "b", 2.5, None, b"c", True),), "a label", (10**300,)],
)  # fmt: skip
def test_context_parts_are_what_is_pickled_whole(
    version: int, who: Any, rng: random.Random
) -> None:
    """Whatever the id, the options and the frame: the worker reads the same."""
    for options in (DEFAULT, DEFAULT._replace(timeout=2.5), DEFAULT._replace(blocking=True)):
        for size in (0, 1, 255, 256, 70_000):
            frame = rng.randbytes(size)
            parts = before_version(options) + version.to_bytes(8, "little")
            parts += after_version(who, frame)
            whole = in_context(frame, options, None, version, who)
            assert pickle.loads(parts) == pickle.loads(whole) == (
                None, int((options.timeout or 0) * 1e9), options.blocking, version, who, frame,
            )  # fmt: skip
