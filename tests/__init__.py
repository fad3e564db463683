"""Tests; a package, so that workers can import what crosses to them from tests.support."""

from __future__ import annotations
