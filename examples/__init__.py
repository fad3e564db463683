"""Runnable examples of mpsched, and the report that `make demo` runs."""

from __future__ import annotations
