"""Models in Promela, searched by SPIN; see README.md beside it."""

from __future__ import annotations
