"""What runs at its time, in this process's hands. See README.md."""

from __future__ import annotations
