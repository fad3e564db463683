"""Tests of what tests rely on."""

from __future__ import annotations
