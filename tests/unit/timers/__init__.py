"""Tests of `mpsched._timers`."""

from __future__ import annotations
