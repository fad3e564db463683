"""Protocols against models, in one process."""

from __future__ import annotations
