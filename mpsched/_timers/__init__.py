"""What may run, and when. See README.md."""

from __future__ import annotations
