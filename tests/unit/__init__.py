"""Tests of one process: no worker, no waiting."""

from __future__ import annotations
