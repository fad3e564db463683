"""Tests of `mpsched.testing`."""

from __future__ import annotations
