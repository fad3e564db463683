"""A module whose import fails, for `preload`."""

from __future__ import annotations

raise RuntimeError("on purpose")
