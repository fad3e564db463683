"""Tests with real worker processes."""

from __future__ import annotations
