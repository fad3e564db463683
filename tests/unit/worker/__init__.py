"""Tests of the room `_worker`."""

from __future__ import annotations
