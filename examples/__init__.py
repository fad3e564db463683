"""Programs to read and run; `python -m examples.NAME`."""

from __future__ import annotations
