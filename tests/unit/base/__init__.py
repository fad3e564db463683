"""Tests of the room `_base`."""

from __future__ import annotations
