"""Tests of the room `_tasks`."""

from __future__ import annotations
