"""Floor 1: memory that processes share, kernel locks, parking, payloads; see README.md."""

from __future__ import annotations
