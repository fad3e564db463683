"""Tests of the benchmarks: the harness and its tables."""

from __future__ import annotations
