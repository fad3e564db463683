"""Benchmarks against the pools that people use now; run `python -m benchmarks`."""

from __future__ import annotations
