"""Tests of the room `_deque`."""

from __future__ import annotations
