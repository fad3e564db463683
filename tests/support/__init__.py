"""What tests share; every callable that crosses a process lives here."""

from __future__ import annotations
